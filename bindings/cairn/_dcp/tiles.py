"""Whether parts of a tensor make the whole. A part is a box: its offset and its shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias

Offset: TypeAlias = tuple[int, ...]
Box: TypeAlias = tuple[Offset, tuple[int, ...]]
_LISTED = 8


def untiled(whole: tuple[int, ...], parts: Iterable[Box]) -> str | None:
    """What is wrong, if these do not make the whole, each element once."""
    boxes = sorted(box for box in parts if 0 not in box[1])
    found = sum(math.prod(shape) for _, shape in boxes)
    if found == math.prod(whole) and not overlap(boxes):
        return None
    listed = ", ".join(f"{[*shape]} at {[*offset]}" for offset, shape in boxes[:_LISTED])
    return (
        f"expected parts that make the whole of {[*whole]}, {math.prod(whole)} elements, found {found} in {len(boxes)} "
        f"parts of all ranks: {listed}{', ...' if len(boxes) > _LISTED else ''}"
    )


def overlap(boxes: Sequence[Box]) -> bool:
    """Whether two of these, which are in order, have an element in common."""
    return any(map(partial(_overlaps_later, boxes), range(len(boxes))))


def _overlaps_later(boxes: Sequence[Box], i: int) -> bool:
    """Those behind its rows begin no sooner."""
    offset, shape = boxes[i]
    for other, extents in boxes[i + 1 :]:
        if not shape or other[0] >= offset[0] + shape[0]:
            return not shape
        if all(a < b + m and b < a + n for a, n, b, m in zip(offset, shape, other, extents, strict=True)):
            return True
    return False


def common(a: Box, b: Box) -> int:
    """How many elements two of them have in common."""
    ends = ((max(i, j), min(i + n, j + m)) for i, n, j, m in zip(*a, *b, strict=False))
    return math.prod(max(end - begin, 0) for begin, end in ends)
