"""The sizes of the models that the layouts divide."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    layers: int
    hidden: int
    heads: int
    positions: int
    vocabulary: int


# The vocabulary is GPT-2's 50257, padded so that all tensor-parallel sizes up to 8 have the same tensors.
SIZES = {
    "tiny": Sizes(4, 32, 4, 16, 64),
    "small": Sizes(6, 48, 4, 16, 64),
    "xl/8": Sizes(12, 1032, 12, 1024, 51200 // 4),  # An eighth of xl's bytes.
    "xl": Sizes(24, 2064, 24, 1024, 51200),  # Tenplex's GPT-3 XL: 2064, which its 24 heads divide.
    "2.7B": Sizes(32, 2560, 32, 1024, 51200),
    "6.7B": Sizes(32, 4096, 32, 1024, 51200),
}
