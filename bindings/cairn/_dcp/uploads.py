"""The uploads of dcp.async_save, one after the other. See cairn.dcp.

DCP uploads each save on a thread of its own, with collectives of the process group. Two such threads at once mix them up,
in another order on each rank, and all ranks hang. So an upload begins once those before it have left DCP's code. Every
rank stages the same saves in the same order: that is the order of the uploads too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from types import CodeType
from typing import ClassVar

from torch.distributed.checkpoint import state_dict_saver

from .._checkpointer import Checkpointer
from .._errors import Error
from .._save import Save
from .items import WriteShares

_LOOK_EVERY = 0.05  # Seconds. DCP calls nobody when it is done, and its thread may stay in the caller's callbacks.


class Upload:
    """One staged save, until DCP is done with it."""

    def __init__(self, save: Save) -> None:
        self.save = save
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """DCP begins, on this thread. When it is done and has not let the save commit, the save is abandoned."""
        self._thread = threading.current_thread()
        arguments = self._thread, _code_of_dcp()
        threading.Thread(target=self._watch, args=arguments, name="cairn-upload", daemon=True).start()

    def end(self) -> None:
        self.save.cancel()  # Does nothing once its commit has begun.
        self._ended.set()

    def wait(self) -> None:
        """Returns once DCP is done with it, or will not begin."""
        if self._thread is threading.current_thread():  # A callback of this upload saves.
            self.end()
        while not self._ended.wait(_LOOK_EVERY):
            if self._thread is None and self.save.done():
                return

    def _watch(self, thread: threading.Thread, dcp: CodeType | None) -> None:
        while thread.is_alive() and _runs(thread, dcp):
            thread.join(_LOOK_EVERY)
        self.end()


class Uploads:
    """The uploads of one Checkpointer, oldest first."""

    _of: ClassVar[weakref.WeakKeyDictionary[Checkpointer, Uploads]] = weakref.WeakKeyDictionary()

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.shares = WriteShares(checkpointer._ranks)
        self._uploads: list[Upload] = []

    @classmethod
    def of(cls, checkpointer: Checkpointer) -> Uploads:
        if checkpointer not in cls._of:
            cls._of[checkpointer] = cls(checkpointer)
        return cls._of[checkpointer]

    def add(self, save: Save) -> Upload:
        self._uploads = [one for one in self._uploads if not (one._ended.is_set() and one.save.done())]
        self._uploads.append(Upload(save))
        return self._uploads[-1]

    def wait_for_step(self, step: int) -> None:
        """Waits for the end of an earlier save of this step: DCP may have reported its failure before."""
        for upload in self._uploads:
            if upload.save.step == step:
                upload.wait()
                with contextlib.suppress(Error):
                    upload.save.wait()

    def wait_before(self, upload: Upload | None = None) -> None:
        """Waits until DCP is done with all uploads, or with those before this one."""
        for one in list(self._uploads):
            if one is upload:
                return
            one.wait()

    def in_flight(self) -> int:
        return sum(not one._ended.is_set() for one in self._uploads)


def _code_of_dcp() -> CodeType | None:
    """The outermost of DCP's functions on this thread's stack."""
    found, frame = None, sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_globals.get("__name__") == state_dict_saver.__name__:
            found = frame.f_code
    return found


def _runs(thread: threading.Thread, code: CodeType | None) -> bool:
    """Whether the thread is in this code; None: in any."""
    frame = sys._current_frames().get(thread.ident or 0)
    while code is not None and frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return code is None or frame is not None
