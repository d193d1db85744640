"""What must end before the interpreter does: Checkpointers with saves in flight, and the threads that watch their
saves.

Such a thread looks, once a save is captured, whether the memory that it read was moved meanwhile, and only then lets it
commit. Python makes these threads, so that no thread of C++ takes the GIL.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from functools import partial
from typing import Any

from . import _core, _threads
from ._engine import Held, log_events, release_captured
from ._errors import Error

open_checkpointers: weakref.WeakSet[Any] = weakref.WeakSet()
_watching: list[tuple[_core.Watcher, threading.Thread]] = []  # Also those whose Checkpointers are gone.


def start_watching(core: _core.Checkpointer, held: deque[Held]) -> threading.Thread:
    """The thread ends once the watcher is stopped. It also lets go of what captured saves have read, and logs warnings,
    at once."""
    watcher = core.watcher
    log = partial(log_events, core.events)
    calls = (log, partial(release_captured, held))
    thread = _threads.start(threading.Thread(target=watcher.run, args=calls, name="cairn-watch", daemon=True))
    _watching[:] = [one for one in _watching if one[1].is_alive()]
    _watching.append((watcher, thread))
    return thread


def _finish() -> None:
    """Finishes what is in flight. Says that it is lost, or that a save had failed and nobody has heard of it."""
    try:
        for checkpointer in list(open_checkpointers):
            try:
                checkpointer.close()
            except Error as error:
                print(f"cairn: {checkpointer.root}: a save has failed: {error}", file=sys.stderr)
    finally:
        for watcher, thread in _watching:
            watcher.stop()
            thread.join(2.0)  # A handler of the program may hold it.


def _forget() -> None:
    open_checkpointers.clear()
    _watching.clear()


# A forked child has nothing to finish: the saves are its parent's.
os.register_at_fork(after_in_child=_forget)
# Earlier than atexit: daemon threads still run, and so do thread pools.
threading._register_atexit(_finish)  # type: ignore[attr-defined]
