"""How a job's ranks divide a model."""

import itertools
import os
from dataclasses import dataclass

KEPT = 16  # Bytes of each weight: it, its gradient and AdamW's moments in fp32.


class BadLayout(ValueError):
    """A layout that this model or batch cannot have. Says which number does not fit."""


@dataclass(frozen=True)
class Layout:
    """Sizes of pipeline, tensor and data parallelism. Ranks are in Megatron's order: tensor fastest, pipeline slowest."""

    pipeline: int
    tensor: int
    data: int

    @classmethod
    def parse(cls, text):
        """From "4,2,2"."""
        try:
            sizes = [int(part) for part in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != 3 or min(sizes) < 1:
            raise BadLayout(f'layout {text!r}: expected pipeline, tensor and data parallel sizes, such as "4,2,2"')
        return cls(*sizes)

    @property
    def world(self):
        return self.pipeline * self.tensor * self.data

    def __str__(self):
        return f"{self.pipeline},{self.tensor},{self.data}"

    def check(self, sizes, batch, micro_batch):
        """BadLayout unless it can train a model of these sizes."""
        for what, whole, part in (
            ("heads", sizes.heads, self.tensor),
            ("vocabulary", sizes.vocabulary, self.tensor),
            ("batch", batch, self.data * micro_batch),
        ):
            if whole % part:
                raise BadLayout(f"layout {self}: expected a {what} that {part} divides, found {whole}")
        if batch // (self.data * micro_batch) < self.pipeline:
            raise BadLayout(
                f"layout {self}: expected at least {self.pipeline} micro-batches a step for 1F1B, found "
                f"{batch // (self.data * micro_batch)}"
            )

    def check_memory(self, sizes, here):
        """BadLayout if this host's ranks, so many, need more than it has. On a GPU they need little of the host's."""
        if os.path.exists("/dev/nvidiactl"):
            return
        needed = KEPT * sizes.weights * self.data * here // self.world
        with open("/proc/meminfo") as file:
            found = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
        if needed > found:
            raise BadLayout(
                f"layout {self}: expected at least {needed / 1e9:.1f} GB of memory for fp32 weights, gradients and AdamW's "
                f"moments of the {here} ranks here, found {found / 1e9:.1f}; NAME/N has an Nth of all widths"
            )


UNIFORM, CUSTOM = "uniform_transformer", "custom:"


def partition(method, stages, sizes):
    """The model's pieces on each pipeline stage, as lists. BadLayout, which says what does not fit.

    Methods as Merak means them: "uniform_transformer", as many transformer layers on each stage; or "custom:0,8,14,20,26", where
    stages begin at these pieces and the last number is how many there are, embeddings and the head included.
    """
    found = sizes.pieces
    bounds = _uniform(stages, sizes, found) if method == UNIFORM else _custom(method, stages, len(found))
    return [found[begin:end] for begin, end in itertools.pairwise(bounds)]


def _uniform(stages, sizes, found):
    first, count = found.index("0"), sum(piece.isdigit() for piece in found)
    if sizes.family == "t5" and stages > 1:  # Encoders on the first half of the stages, decoders on the other.
        if stages % 2 or sizes.layers < stages // 2:
            raise BadLayout(f"partition method {UNIFORM}: expected an even number of stages for T5, at most "
                            f"{2 * sizes.layers}, found {stages}")  # fmt: skip
        half = stages // 2
        within = [stage * sizes.layers // half for stage in range(half)]
        starts = [*within, *(sizes.layers + 2 * one for one in within)]
    elif stages > count:
        raise BadLayout(
            f"partition method {UNIFORM}: expected at most a stage for each of {count} layers, found {stages}"
        )
    else:
        starts = [stage * count // stages for stage in range(stages)]
    return [0, *(first + start for start in starts[1:]), len(found)]


def _custom(method, stages, count):
    numbers = method.removeprefix(CUSTOM).split(",")
    if not method.startswith(CUSTOM) or not all(number.isascii() and number.isdigit() for number in numbers):
        raise BadLayout(
            f"partition method {method!r}: expected {UNIFORM}, or {CUSTOM} with the layers at which stages begin and the "
            f"number of layers, such as {CUSTOM}{','.join(str(stage * count // stages) for stage in range(stages + 1))}"
        )
    bounds = [int(number) for number in numbers]
    if len(bounds) != stages + 1:
        raise BadLayout(f"partition method {method}: expected {stages + 1} numbers, because there are {stages} stages, "
                        f"found {len(bounds)}")  # fmt: skip
    if bounds[0] != 0:
        raise BadLayout(f"partition method {method}: expected stage 0 to begin at layer 0, found {bounds[0]}")
    if bounds[-1] != count:
        raise BadLayout(f"partition method {method}: expected the model's {count} layers at last, embeddings and head "
                        f"included, found {bounds[-1]}")  # fmt: skip
    for stage, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if begin >= end:
            raise BadLayout(
                f"partition method {method}: expected stage {stage} to have a layer, found {begin} to {end}"
            )
    return bounds


# Tenplex (SOSP 2024), figure 9: (minutes, GPUs) of one training job, and its layout at each number of GPUs.
SEGMENTS = [(35, gpus) for gpus in (16, 8, 4, 8) * 3 + (16, 8, 4)] + [(13, 8)]
LAYOUTS = {16: Layout(4, 2, 2), 8: Layout(4, 2, 1), 4: Layout(2, 2, 1)}
