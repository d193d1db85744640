"""Threads of this package."""

from __future__ import annotations

import resource
import sys
import threading

from ._errors import ResourceExhausted


def start(thread: threading.Thread) -> threading.Thread:
    """Starts it. Raises ResourceExhausted, with the thread's name and the limit, if the system allows no more threads;
    and Python's RuntimeError once the process ends, when Python starts none any more."""
    try:
        thread.start()
    except RuntimeError as error:
        if sys.is_finalizing() or "shutdown" in str(error):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        most = "unlimited" if limit == resource.RLIM_INFINITY else limit
        raise ResourceExhausted(
            f"cannot start thread {thread.name}: {error}; see ulimit -u ({most}) and pids.max of the control group"
        ) from error
    return thread
