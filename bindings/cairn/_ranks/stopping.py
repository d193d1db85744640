"""How the ranks of a job agree on the step after which all of them stop.

Each rank counts its calls of `reached`, one after each step. Only one rank may know that the job is to stop:

  1. A thread of each rank waits in torch.distributed's store for the next message to its rank.
  2. The first rank that wants to stop sends "ask" to every rank, with its reason.
  3. The thread that reads "ask" freezes its rank's count: from here on the rank's next call waits. It writes the count
     to `at/<rank>`.
  4. The last rank to do so sends every rank "until": the highest of the counts, plus one.
  5. The call with that number returns True on every rank; calls before it return False.

No rank has passed that call, because the counts were frozen. A call that waits does so for other ranks' threads, never
for their training, so it cannot wait for a rank that waits for this one in a collective. A rank that leaves unasked
writes its count too, so that nobody waits for it.

Before a stop is asked for, a call costs no communication. The keys are under the prefix that the caller gives; `to/<r>`
counts the messages to rank r, `to/<r>/<i>` is message i. The last rank that leaves removes what is left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import _threads
from .._errors import DeadlineExceeded, Error, IoError
from .stores import LONGEST_WAIT, first_line, own_connection, wait

_JOIN = 5.0  # Seconds that leaving waits for the store and the thread.
_TELLING = 1.0  # Seconds that the store has to tell which ranks are missing.


class Agreement:
    """One rank's part. A store that fails is an error of `reached`, if it has to wait."""

    def __init__(self, store: Any, rank: int, world: int, prefix: str) -> None:
        self.reason = ""  # Why the job stops, once any rank has asked.
        self._given = store
        self._rank, self._world, self._prefix = rank, world, prefix
        self._lock = threading.Lock()
        self._count = 0
        self._frozen = False
        self._until = 0  # The number of the call that ends training.
        self._error: Error | None = None
        self._known = threading.Event()  # `_until` or `_error` is.
        self._asked = False
        self._answered = False
        self._sending: Any = None  # A connection that no wait blocks.
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="cairn-stop", daemon=True)
        _threads.start(self._thread)

    def reached(self, wanted: str | None, timeout: float) -> bool:
        """Counts a step. Returns whether it is the last one, on every rank. `wanted` is why this rank wants to stop.

        Raises DeadlineExceeded, naming the ranks, if some do not say within `timeout` seconds where they are.
        """
        end = time.monotonic() + timeout
        if wanted is not None and not self._asked:
            self._asked = True
            with self._lock:
                self._frozen = True  # Before this step is counted, so that it may be the last one.
            _within(timeout, lambda: self._ask(wanted, timeout))
        with self._lock:
            self._count += 1
            number = self._count
            if not self._frozen:
                return False
        if not self._known.wait(max(0.0, end - time.monotonic())):
            raise DeadlineExceeded(self._missing(timeout))
        if self._error is not None:
            raise self._error
        return number >= self._until

    def leave(self) -> None:
        """Ends the thread. Other ranks' calls do not wait for this rank any more. Never raises Error."""
        end = time.monotonic() + _JOIN
        _within(_JOIN, self._say_that_it_leaves)
        self._thread.join(max(0.0, end - time.monotonic()))

    def _say_that_it_leaves(self) -> None:
        if self._connected.wait(_JOIN) and self._error is None and self._thread.is_alive():
            try:
                self._send(self._sending, self._rank, "leave")
            except Exception as error:  # noqa: BLE001 (torch's store raises many kinds)
                self._fail(error)

    def _key(self, *parts: object) -> str:
        return "/".join((self._prefix, *map(str, parts)))

    def _send(self, store: Any, rank: int, message: str) -> None:
        store.set(self._key("to", rank, store.add(self._key("to", rank), 1)), message)

    def _ask(self, reason: str, timeout: float) -> None:
        if not self._connected.wait(timeout) or self._error is not None:
            return  # `reached` raises.
        try:
            if self._sending.add(self._key("askers"), 1) == 1:
                for rank in range(self._world):
                    self._send(self._sending, rank, f"ask:rank {self._rank}: {reason}")
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _missing(self, timeout: float) -> str:
        told: list[str] = []

        def tell() -> None:
            with contextlib.suppress(Exception):  # The store may be lost.
                told.append(self._late())

        if self._sending is not None:
            _within(_TELLING, tell)
        late = told[0] if any(told) else "some ranks (torch.distributed's store did not tell which)"
        return (
            f"to stop, all ranks must agree on a step; {late} did not say within {timeout:.3g} s which one they have "
            "reached. Every rank must call stop_on, and stop_requested after each step"
        )

    def _late(self) -> str:
        at = [self._key("at", rank) for rank in range(self._world)]
        return ", ".join(f"rank {rank}" for rank in range(self._world) if not self._sending.check([at[rank]]))

    # The thread

    def _serve(self) -> None:
        try:
            store = own_connection(self._given)
            self._sending = own_connection(self._given)
            self._connected.set()
            number = 1
            while self._obey(store, self._key("to", self._rank, number)):
                number += 1
            self._answer(store)
            if store.add(self._key("left"), 1) == self._world:
                self._remove(store)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _obey(self, store: Any, message: str) -> bool:
        """Does what the message of that key says, once it is there. Returns False if it says to leave."""
        while not wait(store, message, LONGEST_WAIT):
            pass
        kind, _, text = store.get(message).decode().partition(":")
        store.delete_key(message)
        if kind == "ask":
            self.reason = text
            self._answer(store)
        elif kind == "until":
            self._until = int(text)
            self._known.set()
        return bool(kind != "leave")

    def _answer(self, store: Any) -> None:
        if self._answered:
            return
        self._answered = True
        with self._lock:
            self._frozen = True
            count = self._count
        store.set(self._key("at", self._rank), str(count))
        if store.add(self._key("answers"), 1) == self._world:
            highest = max(int(store.get(self._key("at", rank))) for rank in range(self._world))
            for rank in range(self._world):
                self._send(store, rank, f"until:{highest + 1}")

    def _remove(self, store: Any) -> None:
        for rank in range(self._world):
            for number in range(1, store.add(self._key("to", rank), 0) + 1):
                store.delete_key(self._key("to", rank, number))
            store.delete_key(self._key("to", rank))
            store.delete_key(self._key("at", rank))
        for name in ("askers", "answers", "left"):
            store.delete_key(self._key(name))

    def _fail(self, error: Exception) -> None:
        text = f"the ranks cannot agree on when to stop: torch.distributed's store failed: {first_line(error)}"
        self._error = error if isinstance(error, Error) else IoError(text)
        self._known.set()
        self._connected.set()


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Does it on a thread of its own, and waits for it no longer than that: a call of the store may hang."""
    thread = threading.Thread(target=work, name="cairn-stop-call", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python starts none any more while the process ends.
        work()
    else:
        thread.join(seconds)
