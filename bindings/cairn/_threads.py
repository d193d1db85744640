"""Threads of this package."""

from __future__ import annotations

import resource
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ._errors import ResourceExhausted


class Stoppable(Protocol):
    def stop(self) -> None: ...


# Threads that must have ended before the interpreter does, because they are in C++ most of the time, and what stops each;
# also those whose Checkpointers are gone. See _exit.
serving: list[tuple[Stoppable, threading.Thread]] = []


def serve(stoppable: Stoppable, thread: threading.Thread) -> threading.Thread:
    """Starts such a thread."""
    start(thread)
    serving[:] = [one for one in serving if one[1].is_alive()]
    serving.append((stoppable, thread))
    return thread


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


def start_or_work(work: Callable[[], object], name: str, *, daemon: bool) -> None:
    """Does it on a thread; here, once the process ends and Python starts no thread any more."""
    try:
        start(threading.Thread(target=work, name=name, daemon=daemon))
    except ResourceExhausted:
        raise
    except RuntimeError:
        work()


class InTurn:
    """Calls what it is given, one after the other, on a thread that lives while there is something to call. The calls
    must not raise."""

    def __init__(self, name: str, *, daemon: bool) -> None:
        self._name, self._daemon = name, daemon
        self._mutex = threading.RLock()
        self._calls: deque[Callable[[], object]] = deque()  # With the one that is under way.
        self._served = False  # By a thread that has seen the calls, and leaves only when there is none.

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def add(self, call: Callable[[], object]) -> None:
        """If this raises, the call is not made."""
        with self._mutex:
            self._calls.append(call)
            try:
                if not self._served:
                    start_or_work(self._serve, self._name, daemon=self._daemon)
            except BaseException:
                self._calls.pop()  # The thread may have started: it waits for the mutex, and finds no call.
                raise

    def _serve(self) -> None:
        with self._mutex:
            if self._served or not self._calls:
                return
            self._served = True
        while True:
            with self._mutex:
                call = self._calls[0]
            call()
            with self._mutex:
                self._calls.popleft()
                if not self._calls:
                    self._served = False
                    return


def pause(seconds: float) -> None:
    """Waits so long. A handler of a signal may raise in it: in the wait of an Event or a Condition it can leave a lock that
    is released without being held."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=seconds)
