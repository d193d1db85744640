"""A save in flight, and a committed checkpoint."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _core, _threads
from ._arguments import timeout_of
from ._errors import FailedPrecondition

if TYPE_CHECKING:
    from ._engine import Engine

_log = logging.getLogger("cairn")


@dataclass(frozen=True)
class Checkpoint:
    """One committed checkpoint, as `Checkpointer.checkpoints` lists it. Sizes in bytes."""

    step: int
    line: int  # Of training: each restore begins a new one, and the newest checkpoint is of the highest.
    root: str  # The id of the root that it was saved in; "" if its writer knew none.
    copy: bool  # It does not lie in that root: it was copied, or published at a path.
    attempt: str
    parent: int | None
    world: int
    bytes: int
    pinned: bool
    nonfinite: str | None  # "nan" or "inf" if its tensors held NaNs or infinities; None if not, or if nobody looked.
    suspect: bool  # What is frozen in it may be older than its step: a later save has found that it had changed unseen.
    path: str
    mirrors: tuple[str, ...]  # The targets that have a copy, as the root's mirrors have last said.
    damage: str | None  # Why its manifest cannot be read; None if the manifest is good. Says nothing of the shards.
    _describe: Callable[[str, str], dict[str, Any]] = field(repr=False, compare=False)

    @property
    def metadata(self) -> dict[str, Any]:
        """The `metadata` of its save; empty if it had none. Each use reads a file: NotFound if the checkpoint is gone,
        FailedPrecondition once the Checkpointer is closed."""
        return self._describe(self.path, "metadata")

    @property
    def metrics(self) -> dict[str, float]:
        """The `metrics` of its save; like `metadata`."""
        return self._describe(self.path, "metrics")


class Save:
    """A save in flight. Safe from any thread. May outlive its Checkpointer."""

    def __init__(self, core: _core.Save, engine: weakref.ref[Engine]) -> None:
        self._core = core
        self._engine = engine
        self._callbacks = _threads.InTurn("cairn-done", daemon=False)

    @property
    def step(self) -> int:
        """The step that is being saved."""
        return self._core.step

    @property
    def stats(self) -> dict[str, Any]:
        """Its progress. Times are seconds since the call of `save` began (0 if not reached), sizes bytes of this rank.

        step                which one; phase is "queued", "capturing", "captured", "committing", "kept", "durable" or "failed"
        bytes               of its tensors; bytes_written is what the filesystem has got, with header and padding
        call                how long the call took; stall is how long it, and fences, blocked the caller for this save
        enqueued            when every copy was enqueued; captured, written, kept, durable: when that was reached
        gpu_checksum_bytes  how many of its bytes GPUs have summed
        staged              whether it went through `staging`; direct: written with O_DIRECT; recycled: over the blocks
                            of a retired checkpoint
        """
        return self._core.stats()

    def captured(self, timeout: float | None = None) -> None:
        """Waits until the tensors may be overwritten. DeadlineExceeded after `timeout` seconds leaves it running."""
        self._core.wait_captured(timeout_of(timeout))

    def kept(self, timeout: float | None = None) -> None:
        """Waits until the death of the process cannot lose it: it is kept in the Checkpointer's `memory`, or durable. Raises
        its error if it failed before that."""
        self._core.wait_kept(timeout_of(timeout))

    def wait(self, timeout: float | None = None, *, where: str | os.PathLike[str] | None = None) -> None:
        """Waits until no crash and no power cut can lose it. Raises its error if it failed; earlier checkpoints
        stay. With `memory` it raises Cancelled at once if the disk does not get it, because a newer save was kept before
        the disk was free.

        With `where`, the target of one of the Checkpointer's mirrors, waits until it is there, too. Raises
        FailedPrecondition if that mirror will never take it (`every`, `keep_last`, a checkpoint that is damaged, or that the
        root has removed before its turn), and on ranks other than 0; DeadlineExceeded with the mirror's last error."""
        limit = timeout_of(timeout)
        end = math.inf if limit is None else time.monotonic() + limit
        self._core.wait_durable(limit)
        if where is None:
            return
        if (engine := self._engine()) is None:
            raise FailedPrecondition(f"step {self.step}: its Checkpointer, which runs the mirrors, is gone")
        engine.wait_mirrored(self.step, where, None if limit is None else max(0.0, end - time.monotonic()))

    def result(self, timeout: float | None = None) -> int:
        """The step, once it is durable."""
        self.wait(timeout)
        return self.step

    def done(self) -> bool:
        """Whether it has ended, durable or failed; or kept alone, because the disk does not get it."""
        return self._core.ended

    def add_done_callback(self, callback: Callable[[Save], object]) -> None:
        """Calls `callback(save)` once the save has ended, durable or failed; `result()` in it says which.

        Callbacks run in the order of these calls, on a thread of their own, also if the save has ended already. They may
        call anything, `drain` and `close` too. An exception is logged. `drain` and `close` do not wait for callbacks;
        Python's exit does.
        """
        self._callbacks.add(partial(self._call_back, callback))

    def _call_back(self, callback: Callable[[Save], object]) -> None:
        self._core.wait_ended(None)
        try:
            callback(self)
        except BaseException:  # noqa: BLE001 (SystemExit too: later callbacks must still be called)
            _log.exception("step %d: a done callback failed", self.step)

    def _release(self) -> None:
        """Lets a held save commit."""
        self._core.release()

    def cancel(self) -> bool:
        """Abandons the save. Returns False, and the save goes on, if its commit has begun. Does not wait."""
        return self._core.cancel()

    def __await__(self) -> Generator[Any, None, int]:
        self._core.want()
        # Whoever gives up by a timeout has not heard how the save ended.
        yield from asyncio.to_thread(self._core.wait_ended, None).__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<cairn.Save step={self.step} {self.stats['phase']}>"
