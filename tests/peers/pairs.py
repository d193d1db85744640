"""How long a save blocks training, compared with a framework's own asynchronous saving: adjacent pairs, one state.

Each blocked.py beside the tests of a framework gives two functions, which return the seconds that the training thread
spent in the save and in the wait before the optimizer's step. Whatever the save still does then ends before the next
one begins. The first pair is not counted: pools and buffers are made in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

PAIRS = 15


def compare(name: str, state_bytes: int, theirs: Callable[[int], float], ours: Callable[[int], float]) -> None:
    """Prints the medians and the median of the pairs' ratios with its range."""
    pairs = [(theirs(number), ours(number)) for number in range(1, PAIRS + 2)][1:]
    ratios = sorted(mine / other for other, mine in pairs)
    other, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{name}: {state_bytes / 1e6:.0f} MB, {PAIRS} pairs; training blocked {other * 1e3:.1f} ms by its own saving, "
        f"{mine * 1e3:.1f} ms by Cairn; ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
