"""What must end before the interpreter does: Checkpointers with saves in flight, and the threads that watch their saves
or serve their groups.

A thread that watches looks, once a save is captured, whether the memory that it read was moved meanwhile, and only then
lets it commit. Python makes these threads, so that no thread of C++ takes the GIL.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from . import _core, _threads
from ._errors import Error, FailedPrecondition
from ._held import Held, log_events, release_captured

if TYPE_CHECKING:
    from ._engine import Engine

_JOIN = 5.0  # Seconds for threads that a handler of the program, or a store, may hold.
_ended = False  # The process is so far that every Checkpointer has been closed.
open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def start_watching(core: _core.Checkpointer, held: deque[Held]) -> threading.Thread:
    """The thread ends once the watcher is stopped. It also lets go of what captured saves have read, and logs warnings,
    at once."""
    watcher = core.watcher
    log = partial(log_events, core.events)
    calls = (log, partial(release_captured, held))
    return _threads.serve(watcher, threading.Thread(target=watcher.run, args=calls, name="cairn-watch", daemon=True))


def refuse_late(root: str, step: int) -> None:
    """For a save on a closed Checkpointer: raises FailedPrecondition if it was closed because the process ends. Few see
    errors of an atexit hook, so stderr says it, and the exit code."""
    if not _ended:
        return
    message = (
        f"{root}: step {step} is not saved: the process ends, and its Checkpointers are closed; a hook of atexit that saves "
        "must be registered after cairn was imported"
    )
    _say_lost(message)
    raise FailedPrecondition(message)


def _say_lost(message: str) -> None:
    print(f"cairn: {message}", file=sys.stderr)
    _core.fail_exit()


def _finish() -> None:
    """Finishes what is in flight. Says that it is lost, or that a save had failed and nobody has heard of it."""
    global _ended
    _ended = True
    try:
        for engine in list(open_engines):
            try:
                engine.close()
            except Error as error:
                _say_lost(f"{engine.root}: a save has failed: {error}")
    finally:
        for stoppable, _ in _threads.serving:
            stoppable.stop()
        end = time.monotonic() + _JOIN
        for _, thread in _threads.serving:
            thread.join(max(0.0, end - time.monotonic()))


def _forget() -> None:
    open_engines.clear()
    _threads.serving.clear()


# A forked child has nothing to finish: the saves are its parent's.
os.register_at_fork(after_in_child=_forget)
# All threads that are no daemons have ended by then, and so have the hooks that were registered after this one.
atexit.register(_finish)
