"""The thread that looks, once a save is captured, whether what it has read was moved meanwhile, and lets it commit.

It is one of Python's own, so that no thread of C++ takes the GIL.
"""

from __future__ import annotations

import threading

from . import _core

_watching: list[tuple[_core.Watcher, threading.Thread]] = []  # Those whose Checkpointers are gone, too.


def start(watcher: _core.Watcher) -> threading.Thread:
    """It ends once the watcher is stopped."""
    thread = threading.Thread(target=watcher.run, name="cairn-watch", daemon=True)
    thread.start()
    _watching[:] = [one for one in _watching if one[1].is_alive()]
    _watching.append((watcher, thread))
    return thread


def stop_all() -> None:
    """Before the interpreter ends: none of them may want it then."""
    for watcher, thread in _watching:
        watcher.stop()
        thread.join()
