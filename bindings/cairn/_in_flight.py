"""Reading waits for the saves of this process that it would read: else it would find an older checkpoint, or none.

They are the saves of the step that was asked for, or all saves under the root if that is the newest, which were started
before the call. A save that fails leaves what was committed before it, and its error stays with its handle. A Checkpointer
with a `memory` reads what it has kept there; other readers read the disk.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from . import _exit
from ._errors import DeadlineExceeded
from ._paths import step_named

if TYPE_CHECKING:
    from ._core import Checkpointer, Save

_log = logging.getLogger("cairn")


class Paths(Protocol):
    """What gives checkpoints their paths, beside the roots' own step-N."""

    def await_path(self, path: str, timeout: float) -> None:
        """Waits for what is on its way to this path. Raises DeadlineExceeded."""


path_stores: weakref.WeakSet[Any] = weakref.WeakSet()  # Of Paths.


def wait_for(root: str, step: int | None, folder: str, timeout: float, reader: Checkpointer | None = None) -> None:
    """Waits for the saves that a reader of this step (None: of the newest), or of a checkpoint's folder, would read.

    Raises DeadlineExceeded, with the save's name, after so many seconds.
    """
    timeout = min(timeout, threading.TIMEOUT_MAX)
    end = time.monotonic() + timeout
    if folder:
        for store in list(path_stores):
            store.await_path(folder, timeout)
        root, name = os.path.split(os.path.realpath(folder))
        if (step := step_named(name)) is None:
            return
    root = os.path.realpath(root)
    for writer in list(_exit.open_engines):
        started = [one for one in writer.started() if step is None or one.step == step]
        if started and os.path.realpath(writer.root) == root:
            writer.end_main_step()
            for save in started:
                _wait(save, writer.root, end, timeout, or_kept=writer.core is reader)


def _wait(save: Save, root: str, end: float, timeout: float, or_kept: bool) -> None:
    _log.debug("%s: reading waits for step %d, which is being saved", root, save.step)
    if not or_kept:
        save.want()
    if not save.wait_ended(max(0.0, end - time.monotonic()), or_kept):
        raise DeadlineExceeded(
            f"{root}: expected step {save.step}, which this process saves, to be durable before it is read; found it "
            f"{save.stats()['phase']} after {timeout:g} s"
        )
    if save.stats()["phase"] not in ("durable", "kept"):
        _log.warning("%s: the save of step %d has ended without a checkpoint: what is older is read", root, save.step)
