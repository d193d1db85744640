"""When to save, at the same step on every rank.

Rank 0 decides. The others must learn it without a message for each step, and without waiting for rank 0. So steps (calls of
should_save) come in windows, and only the first step of a window may be saved:
  1. When rank 0 enters a window, it announces the next one: how many steps it has, and whether its first step is saved.
  2. The other ranks read that when they enter that next window, about half a second later. If rank 0 is later than that,
     they wait for it.
A decision thus takes effect one window later, or two.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from .._errors import DeadlineExceeded
from .agreement import Ranks

_WINDOW = 0.5  # Seconds, about.
_LONGEST = 100  # Steps of a window: its pace may change.


class Interval:
    """Due once this many seconds have passed since the last save began, or, before the first, since this was made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def saved(self) -> None:
        self._last = time.monotonic()

    def due(self, _step: int, ahead: float) -> bool:
        """Whether it will be due in `ahead` seconds."""
        return time.monotonic() + ahead - self._last >= self._seconds


class Schedule:
    """`due(step, ahead)` says on rank 0 whether a save will be due in `ahead` seconds. Not for several threads."""

    def __init__(self, ranks: Ranks, due: Callable[[int, float], bool]) -> None:
        self._ranks, self._due = ranks, due
        self._window, self._left = 0, 0  # Its number, and the steps that it still has.
        self._next = (1, False)  # The next window, on rank 0.
        self._entered = (0.0, 0)  # When rank 0 entered the window, and how many steps it has.
        self._wanted = False

    def should_save(self, step: int) -> bool:
        """The answer for this step, the same on every rank. Call it once for each step, on every rank."""
        leads = self._ranks.rank == 0
        due = leads and self._due(step, 0.0)
        if self._ranks.world == 1:
            return due
        if self._left > 0:
            self._left -= 1
            self._wanted |= due and not self._next[1]
            return False
        length, saves = self._next if leads or self._window == 0 else self._hear(step)
        self._window += 1
        self._left = length - 1
        if leads:
            self._announce(step, length, saves, due)
        return saves

    def _announce(self, step: int, length: int, saves: bool, due: bool) -> None:
        """The window after the one of this length, which rank 0 has just entered."""
        now = time.monotonic()
        began, steps = self._entered
        pace = max((now - began) / steps, 1e-6) if steps else _WINDOW  # Seconds a step.
        # The save of this step has not begun yet, so that it still counts as due.
        wanted = not saves and (self._wanted or due or self._due(step, length * pace))
        self._entered = now, length
        self._next = max(1, min(_LONGEST, 2 * length, round(_WINDOW / pace))), wanted
        self._wanted = False
        self._ranks.announce(f"window/{self._window + 1}", json.dumps(self._next).encode())

    def _hear(self, step: int) -> tuple[int, bool]:
        try:
            length, saves = json.loads(self._ranks.hear(f"window/{self._window + 1}"))
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"should_save({step}): rank 0 has not called it in time: every rank calls it once after each step "
                f"({error})"
            ) from error
        return int(length), bool(saves)
