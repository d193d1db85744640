"""The uploads of dcp.async_save, one after the other. See cairn.dcp.

DCP uploads each save on a thread of its own, with collectives of the process group. Two such threads at once mix them up,
in another order on each rank, and all ranks hang. So an upload begins once those before it have left DCP's code: all of
this process, since several Checkpointers may save on one process group. Every rank stages the same saves in the same
order: that is the order of the uploads too.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import weakref
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, ClassVar

from .. import _threads
from .._checkpointer import Checkpointer
from .._errors import DeadlineExceeded, Error
from .._save import Save
from .failures import first_of
from .shares import WriteShares

_log = logging.getLogger("cairn")
_LOOK_EVERY = 1.0  # Seconds, at a save whose upload has not begun: it may have failed, and then never does.


class Upload:
    """One staged save, until DCP is done with it."""

    def __init__(self, save: Save) -> None:
        self.save = save
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """DCP begins, on this thread. When it is done and has not let the save commit, the save is abandoned."""
        self._thread = threading.current_thread()
        future = _future_of_this_thread()
        try:
            _threads.start(
                threading.Thread(target=self._watch, args=(self._thread, future), name="cairn-upload", daemon=True)
            )
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self.save.cancel()  # Does nothing once its commit has begun.
        self._ended.set()

    def ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, end: float = math.inf) -> bool:
        """Returns True once DCP is done with it, or will not begin; False at `end`, of time.monotonic()."""
        if self._thread is threading.current_thread():  # A callback of this upload saves.
            self.end()
        while not self._ended.wait(min(_LOOK_EVERY, max(0.0, end - time.monotonic()))):
            if self._thread is None and self.save.done():
                return True
            if time.monotonic() >= end:
                return False
        return True

    def _tell(self, future: Future[Any]) -> None:
        """Nobody may ask the future. What failed within the save is logged with it; another rank, whose call has failed in
        the same way, may have ended the save already."""
        error = None if future.cancelled() else future.exception()
        if error is not None and not (isinstance(first_of(error), Error) and self.save.done()):
            _log.error("step %s is not saved: async_save has failed: %s", self.save.step, first_of(error))

    def _watch(self, thread: threading.Thread, future: Future[Any] | None) -> None:
        if future is None:
            thread.join()
        else:
            wait([future])
            self._tell(future)  # Before end(), after which the save is done in any case.
        self.end()


class Uploads:
    """The uploads of one Checkpointer, and the order of those of the whole process. Oldest first."""

    _order: ClassVar[list[Upload]] = []
    _of: ClassVar[weakref.WeakKeyDictionary[Checkpointer, Uploads]] = weakref.WeakKeyDictionary()

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.shares = WriteShares(
            checkpointer._engine.ranks,
            checkpointer.root,
            checkpointer._engine.compare_replicas,
            checkpointer._engine.per_rank,
        )
        self._engine = checkpointer._engine
        self._uploads: list[Upload] = []

    @classmethod
    def of(cls, checkpointer: Checkpointer) -> Uploads:
        if checkpointer not in cls._of:
            cls._of[checkpointer] = cls(checkpointer)
        return cls._of[checkpointer]

    def add(self, save: Save) -> Upload:
        upload = Upload(save)
        self._uploads = [one for one in self._uploads if not (one.ended() and one.save.done())] + [upload]
        Uploads._order = [one for one in Uploads._order if not one.ended()] + [upload]
        return upload

    def wait_for_step(self, step: int) -> None:
        """Waits for the end of an earlier save of this step: DCP may have reported its failure before."""
        for upload in self._uploads:
            if upload.save.step == step:
                upload.wait()
        for save in self._engine.started():
            if save.step == step:
                save.wait_ended(None)

    @classmethod
    def wait_before(cls, upload: Upload | None = None, *, timeout: float = math.inf) -> None:
        """Waits until DCP is done with all uploads of this process, or with those before this one. Raises
        DeadlineExceeded."""
        end = time.monotonic() + timeout
        for one in cls._order:  # `add` makes a new list.
            if one is upload:
                return
            if not one.wait(end):
                raise DeadlineExceeded(
                    f"step {one.save.step}: expected DCP to be done with its async_save before this process loads, found "
                    f"it at work after {timeout:g} s: it uses the same process group"
                )

    @classmethod
    def in_flight(cls) -> int:
        return sum(not one.ended() for one in cls._order)


def _future_of_this_thread() -> Future[Any] | None:
    """The future of the call that a ThreadPoolExecutor makes on this thread: async_save returns it as the upload's. It
    has its result before its callbacks, which may wait for anything, are called on this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "concurrent.futures.thread" and frame.f_code.co_name == "run":
            found = getattr(frame.f_locals.get("self"), "future", None)
            return found if isinstance(found, Future) else None
        frame = frame.f_back
    return None
