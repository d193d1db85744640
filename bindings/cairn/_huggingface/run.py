"""What one call of Trainer.train keeps track of."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from .._checkpointer import Checkpointer
from .._errors import NotFound
from .._save import Save


class Run:
    """One call of train(): its checkpointer, what it resumes from, and which saves are in flight."""

    def __init__(self, checkpointer: Checkpointer, keep_last: int, folder: str) -> None:
        self.checkpointer = checkpointer
        self.keep_last = keep_last
        self.folder = folder  # Represents the checkpoint in Trainer's calls; holds trainer_state.json.
        self.step: int | None = None
        self.source = ""  # The folder of a checkpoint outside the root.
        self.resumes = False
        self.restored: dict[str, Any] = {}
        self.steps = set(checkpointer.steps())
        self.saves: dict[int, Save] = {}  # Those that may not have ended.
        self.order: list[int] = []  # Steps saved by this run.
        self.pinned: int | None = None

    def take(self, part: str) -> Any:
        if part not in self.restored:
            raise NotFound(f"the checkpoint's {part} was not restored, or has been used already")
        return self.restored.pop(part)

    def pin_best(self, best: int | None, wait: bool) -> None:
        """Pins the best model's checkpoint, and unpins the previous best."""
        if self.keep_last == 0 or best is None or best == self.pinned or best not in self.steps:
            return
        if save := self.saves.get(best):
            # Retention reaches it only with the keep_last-th save after it.
            if not wait and not save.done() and sum(step > best for step in self.order) + 1 < self.keep_last:
                return
            save.wait()
        self.checkpointer.pin(best)
        if self.pinned is not None:
            with suppress(NotFound):
                self.checkpointer.unpin(self.pinned)
        self.pinned = best

    def finish(self, best: int | None) -> None:
        """Returns when every save is durable; raises the first failure."""
        self.checkpointer.drain()
        self.checkpointer.check()
        self.pin_best(best, wait=True)
