"""The sizes of the models that the layouts divide."""

import argparse
import functools
import json
import os
from dataclasses import dataclass

from ..shared import ROOT


@dataclass(frozen=True)
class Sizes:
    layers: int  # Of each of T5's two stacks.
    hidden: int
    heads: int
    positions: int
    vocabulary: int
    family: str = "gpt"
    feed_forward: int = 0  # 0: four times hidden.
    head_size: int = 0  # 0: hidden over heads.

    @property
    def inner(self):
        return self.feed_forward or 4 * self.hidden

    @property
    def of_head(self):
        return self.head_size or self.hidden // self.heads

    @property
    def weights(self):
        """How many, without those of norms and biases."""
        attention, feed_forward = 4 * self.hidden * self.heads * self.of_head, 2 * self.hidden * self.inner
        each = 3 * attention + 2 * feed_forward if self.family == "t5" else attention + feed_forward
        return self.layers * each + (2 * self.vocabulary + self.positions) * self.hidden

    @property
    def pieces(self):
        """What pipeline stages divide, in order: embeddings, the layers' numbers, the head. Merak counts all as layers, and
        each of T5's decoder layers as two."""
        layers = 3 * self.layers if self.family == "t5" else self.layers
        embeddings = ("tokens", "positions") if self.family == "gpt" else ("tokens",)
        return [*embeddings, *map(str, range(layers)), "head"]


SIZES = {
    "tiny": Sizes(4, 32, 4, 16, 64),
    "small": Sizes(6, 48, 4, 16, 64),
    "xl/8": Sizes(12, 1032, 12, 1024, 51200 // 4),  # An eighth of xl's bytes.
    "xl": Sizes(24, 2064, 24, 1024, 51200),  # Tenplex's GPT-3 XL: 2064, which its 24 heads divide.
}
# Tokens of a sample, where the model itself has no limit: as Merak trains them.
POSITIONS = {"bloom": 1024, "t5": 512}
FAMILIES = ("bert", "bloom", "gpt", "t5")
PADDING = 1024  # Of the vocabulary, so that all tensor-parallel sizes up to 8 have the same tensors.


@functools.cache
def published():
    """{name: (family, sizes)} of every model known by name, and of its other names."""
    with open(os.path.join(ROOT, "src/advice/models.json")) as file:
        models = json.load(file)
    found = {}
    for name, about in models.items():
        of = next(iter(about.items()))
        found |= dict.fromkeys([name, *about.get("also", ())], of)
    return found


@functools.cache
def sizes_of(name):
    """Of a model by name. NAME/N has all its layers, with every width an Nth: hidden and head size, feed-forward,
    vocabulary and positions. ValueError says what does not fit."""
    if name in SIZES:
        return SIZES[name]
    whole, _, divisor = name.partition("/")
    if whole not in published():
        raise ValueError(
            f"model {name}: unknown; there are {', '.join([*SIZES, *published()])}, and each of the latter as NAME/N"
        )
    family, has = published()[whole]
    if family not in FAMILIES:
        raise ValueError(f"model {name}: a state only, for cairn plan and bench_training; a pipeline trains the layers of "
                         f"{', '.join(FAMILIES)}")  # fmt: skip
    head_size = has.get("head_size", has["hidden"] // has["heads"])
    part = int(divisor or 1) if (divisor or "1").isdigit() else 0
    if part == 0 or head_size % part:
        raise ValueError(f"model {name}: expected a divisor of its heads' size {head_size}, found {divisor}")
    padding = max(8, PADDING // part)
    return Sizes(
        has["layers"], has["hidden"] // part, has["heads"],
        has.get("positions", POSITIONS.get(family)) // part,
        -(-has["vocabulary"] // (part * padding)) * padding, family,
        has.get("intermediate", has.get("ffn", 4 * has["hidden"])) // part, head_size // part,
    )  # fmt: skip


def model_name(text):
    """For argparse."""
    try:
        sizes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("model ")) from None
    return text
