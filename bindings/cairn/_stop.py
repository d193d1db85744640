"""Stopping early: signals and notices become one answer that a training loop asks for after each step.

A handler only takes a note. It saves nothing: at the moment of a signal an optimizer may have changed half of the
tensors. The loop saves, between two steps.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from . import _threads
from ._arguments import callback, seconds, several
from ._errors import Error, FailedPrecondition, InvalidArgument
from ._exit import say
from ._ranks.stopping import Agreement
from ._tree.paths import shown

if TYPE_CHECKING:
    from ._core import Checkpointer
    from ._ranks.agreement import Ranks

_log = logging.getLogger("cairn")
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
_AGREEING = 1.0  # Seconds that the ranks have to agree, also after the grace.
_CTRL_C = b"\ncairn: ends after this step and a last save; Ctrl-C again ends it at once\n"


class Stop:
    """Collects the reasons to stop; knows the time that is left. See Checkpointer.stop_on."""

    def __init__(
        self,
        signals: Iterable[str | int],
        notice: Callable[[], Any] | None,
        every: float,
        grace: float | None,
        ranks: Ranks,
        root: str,
        core: Checkpointer,
    ) -> None:
        callback("notice", notice)
        grace = None if grace is None else seconds("grace", grace)
        if not (every := seconds("every", every)):
            raise InvalidArgument("every: expected seconds above 0, found 0")
        numbers = [_number(one) for one in several("signals", signals)]
        self.reason: str | None = None  # Set once requested() has returned True.
        self._heard: str | None = None
        self._since = 0.0
        self._grace = grace
        self._root, self._core = root, core
        self._ended = threading.Event()
        self._heard_or_ended: SimpleQueue[None] = SimpleQueue()  # A signal handler may put into it at any time.
        self._asked_or_ended = threading.Event()
        self._agreement: Agreement | None = ranks.make_stopping()
        try:
            self._handlers = Handlers(numbers, self._hear)
        except BaseException:
            if self._agreement is not None:
                self._agreement.leave()
            raise
        try:
            if notice is not None:
                watch = threading.Thread(target=self._watch, args=(notice, every), name="cairn-notice", daemon=True)
                _threads.start(watch)
            if grace is not None:
                _threads.start(
                    threading.Thread(target=self._say_unasked, args=(grace,), name="cairn-grace", daemon=True)
                )
        except BaseException:
            self.end()
            raise

    def requested(self, timeout: float) -> bool:
        if self.reason is not None:
            return True
        if self._heard is not None:
            self._asked_or_ended.set()
        if self._agreement is None:
            self.reason = self._heard
        elif self._agreement.reached(self._heard, max(_AGREEING, timeout)):
            self._hear(self._agreement.reason)
            self.reason = self._agreement.reason
        if self.reason is not None:
            _log.warning("stopping: %s", self.reason)
        return self.reason is not None

    def within_grace(self, timeout: float) -> float:
        if self._grace is None or self._heard is None:
            return timeout
        return min(timeout, max(0.0, self._since + self._grace - time.monotonic()))

    def end(self) -> None:
        self._ended.set()
        self._asked_or_ended.set()
        self._heard_or_ended.put(None)
        self._handlers.remove()
        if self._agreement is not None:
            self._agreement.leave()
            self._agreement = None

    def _hear(self, reason: str) -> None:
        """Also called by signal handlers, in the midst of anything: takes no lock."""
        if self._heard is None:
            self._since = time.monotonic()
            self._heard = reason
            if self._grace is not None:
                self._core.end_waits_in(self._grace)
            self._heard_or_ended.put(None)

    def _say_unasked(self, grace: float) -> None:
        """Says it if the loop does not ask within the grace: it may be in a long evaluation, or never ask."""
        self._heard_or_ended.get()
        if self._asked_or_ended.wait(max(0.0, self._since + grace - time.monotonic())):
            return
        try:
            steps = [str(info["step"]) for info in self._core.checkpoints() if info["damage"] is None]
        except Error:  # Closed meanwhile.
            return
        last = f"the newest durable checkpoint is step {steps[-1]}" if steps else "no checkpoint is durable"
        say(f"{self._root}: {self._heard} came {grace:g} s ago, and nobody has called stop_requested() since: {last}")

    def _watch(self, notice: Callable[[], Any], every: float) -> None:
        failed = False
        while not self._ended.is_set():
            try:
                said = notice()
            except Exception:  # noqa: BLE001 (the user's)
                said = None
                if not failed:
                    failed = True
                    _log.warning("stop_on: notice failed, and is called again every %g s", every, exc_info=True)
            if said:
                self._hear(said if isinstance(said, str) else "notice")
                return
            self._ended.wait(every)


class Handlers:
    """Handlers of some signals, on top of the earlier ones. Raises FailedPrecondition outside the main thread."""

    def __init__(self, signals: list[int], hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._process = os.getpid()
        self._active = True
        self._interrupted = False
        self._earlier: dict[int, Any] = {}
        if signals and threading.current_thread() is not threading.main_thread():
            raise FailedPrecondition(
                "stop_on: expected the main thread, found another: only there Python handles signals"
            )
        for number in signals:
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                self._earlier[number] = signal.getsignal(number)
                signal.signal(number, self.handle)
        _installed.add(self)

    def handle(self, number: int, frame: Any) -> None:
        earlier = self._earlier[number]
        if not self._active or (number == signal.SIGINT and self._interrupted):
            _pass_on(number, frame, earlier)
            return
        self._hear(signal.Signals(number).name)
        if number == signal.SIGINT:
            self._interrupted = True
            if os.getpid() == self._process and sys.stderr is not None:
                os.write(2, _CTRL_C)  # Not print: the signal may have come in the midst of one.
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)

    def remove(self, *numbers: int) -> None:
        """Puts the earlier handlers back. Where that cannot be done (another handler is on top, or this is not the main
        thread), this one only passes signals on."""
        if not numbers:
            self._active = False
            _installed.discard(self)
        if threading.current_thread() is not threading.main_thread():
            return
        for number in numbers or tuple(self._earlier):
            if signal.getsignal(number) == self.handle:
                signal.signal(number, self._before(number))

    def _before(self, number: int) -> Any:
        """The earlier handler, below other Checkpointers' that have ended."""
        earlier = self._earlier[number]
        below = getattr(earlier, "__self__", None)
        if isinstance(below, Handlers) and not below._active:
            return below._before(number)
        return signal.SIG_DFL if earlier is None else earlier


_installed: weakref.WeakSet[Handlers] = weakref.WeakSet()


def _pass_on(number: int, frame: Any, earlier: Any) -> None:
    if callable(earlier):
        earlier(number, frame)
    elif earlier != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _in_forked_child() -> None:
    """A child must end when its parent terminates it."""
    for handlers in list(_installed):
        if signal.SIGTERM in handlers._earlier:
            handlers.remove(signal.SIGTERM)


os.register_at_fork(after_in_child=_in_forked_child)


def shield_worker(worker_id: int = 0) -> None:
    """DataLoader(..., worker_init_fn=cairn.shield_worker): a first signal to the whole job does not end the worker.

    SLURM sends signals to every process of a step, and a terminal sends Ctrl-C to every process in the foreground. A
    worker that dies of one makes its DataLoader raise in the training loop, before the loop could save. So a worker
    ignores its first SIGTERM and SIGINT, and SIGUSR1 and SIGUSR2. It still ends with its DataLoader, or if its process
    dies.
    """

    def swallow(number: int, _: Any) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, swallow)


def _number(given: str | int) -> int:
    try:
        number = signal.Signals[given] if isinstance(given, str) else signal.Signals(given)
    except (KeyError, ValueError):
        number = None
    if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
        raise InvalidArgument(
            f'stop_on: expected signals that can be caught, such as "SIGTERM", found {shown(given)}'
        ) from None
    return number
