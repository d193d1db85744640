"""What must end before the interpreter does: Checkpointers with saves in flight, and the threads that watch their saves
or serve their groups.

A thread that watches looks, once a save is captured, whether the memory that it read was moved meanwhile, and only then
lets it commit. Python makes these threads, so that no thread of C++ takes the GIL.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
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
_LAST = -1000  # The priority of a finalizer: multiprocessing itself has none below -100.
_ended = False  # The process is so far that every Checkpointer has been closed.
_lost = False  # A save was lost, and nobody has heard of it.
_child_finishes = False  # multiprocessing calls _finish_child at the end of this process.
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
    global _lost
    _lost = True
    _core.fail_exit()
    say(message)


def say(message: str) -> None:
    """On stderr, never anywhere else."""
    stream = sys.stderr or sys.__stderr__  # None: the program, or whoever started it, has none.
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"cairn: {message}", file=stream, flush=True)


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


def opened(engine: Engine) -> None:
    """The engine will be closed at the end of the process, if nobody does so before."""
    global _child_finishes
    open_engines.add(engine)
    if not _child_finishes and _leaves_without_atexit():
        _child_finishes = True
        multiprocessing.util.Finalize(None, _finish_child, exitpriority=_LAST)


def _leaves_without_atexit() -> bool:
    """Whether multiprocessing has forked this process: it ends by os._exit, after finalizers of multiprocessing only."""
    if multiprocessing.parent_process() is None:
        return False
    method = getattr(multiprocessing.current_process(), "_start_method", None) or multiprocessing.get_start_method()
    return method != "spawn"


def _finish_child() -> None:
    # As multiprocessing does next: first the threads that are no daemons end.
    threading._shutdown()  # type: ignore[attr-defined]
    _finish()
    error = sys.exc_info()[1]  # What has ended the process's function.
    if _lost and (error is None or (isinstance(error, SystemExit) and not error.code)):
        raise SystemExit(1)


def _forget() -> None:
    global _child_finishes, _lost
    _child_finishes = _lost = False
    open_engines.clear()
    _threads.serving.clear()


# A forked child has nothing to finish: the saves are its parent's.
os.register_at_fork(after_in_child=_forget)
# All threads that are no daemons have ended by then, and so have the hooks that were registered after this one.
atexit.register(_finish)
