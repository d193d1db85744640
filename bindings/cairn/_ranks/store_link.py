"""The ranks of a job talk through torch.distributed's c10d Store. torch is not imported here.

The protocol is C++'s: see src/group/store_link.h. Two daemon threads of Python run it, each with a client connection of
its own, so that it neither waits for others nor lets them wait, and the process may end while they hang in the store. The
engine's threads never enter Python; C++ keeps the deadlines, whatever the store does.
Before torch 2.8, `cairn/prefix` stays in a PrefixStore: see `stores.reconnect`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from .. import _core, _threads
from .._errors import DeadlineExceeded, Error, error_named, text_of
from .stores import Connection

_OPENING = 1.0  # Seconds that a call waits longer while ranks open the root: those who open it say what is wrong.
_JOIN = 5.0  # Seconds that closing waits for the last messages to be sent.
_WITHDRAWN = b"withdrawn"  # Instead of the message of a rank that has waited in vain.
_PATIENCE = 5.0  # Seconds, or a tenth of the timeout: for a call that has passed over another one.


def pack(kind: str, parts: Sequence[bytes]) -> bytes:
    """Rank 0's answer to all: each part after its length."""
    return b"".join(b"%d:%b" % (len(part), part) for part in (kind.encode(), *parts))


def unpack(answer: bytes) -> tuple[str, list[bytes]]:
    parts: list[bytes] = []
    at = 0
    while at < len(answer):
        colon = answer.index(b":", at)
        at = colon + 1 + int(answer[at:colon])
        parts.append(answer[colon + 1 : at])
    return parts[0].decode(), parts[1:]


class _PassedOver(Exception):
    """The ranks do not meet at this number, but at the next one."""

    def __init__(self, why: Error | None = None) -> None:
        self.why = why


class StoreLink:
    """Serves `core` through `store` until `close`. Seconds throughout."""

    def __init__(self, store: Any, rank: int, world: int, root: str, timeout: float) -> None:
        self.core = _core.StoreGroup(os.path.abspath(root), rank, world, timeout, _JOIN)
        self._store, self._rank, self._timeout = store, rank, timeout
        self._calls: dict[str, int] = {}
        connect = (partial(Connection, store),)
        self._threads = [
            threading.Thread(target=self.core.run_listener, args=connect, name="cairn-listen", daemon=True),
            threading.Thread(target=self.core.run_sender, args=connect, name="cairn-send", daemon=True),
        ]
        try:
            for thread in self._threads:
                _threads.serve(self.core, thread)
        except BaseException:
            self.core.stop()
            raise

    def gather(
        self, what: str, message: bytes, timeout: float | None = None, *, joins_late: bool = True
    ) -> list[bytes]:
        """Every rank's message for `what`. The n-th call here matches the n-th call there. Blocks up to `timeout`.

        A call that some ranks made alone shifts nothing: a rank that has waited for rank 0 in vain withdraws its message,
        and if rank 0 finds that, all ranks pass over this number and meet at the next one. Unless this rank `joins_late`,
        it also passes over a number at which rank 0 had waited for it in vain.
        """
        if timeout is None:
            timeout = self._timeout + (0 if self.core.opened else _OPENING)
        passed: Error | None = None
        while True:
            self._calls[what] = number = self._calls.get(what, 0) + 1
            try:
                return self.gather_key(f"{what}/{number}", message, timeout, joins_late=joins_late)
            except _PassedOver as over:
                passed = over.why or passed
                timeout = min(timeout, max(_PATIENCE, timeout / 10))
            except DeadlineExceeded as error:
                raise passed or error from None

    def gather_key(self, key: str, message: bytes, timeout: float, *, joins_late: bool = True) -> list[bytes]:
        """The same with the caller's key. Rank 0 collects all messages and announces them, or its error, to all ranks."""
        if self._rank != 0:
            self.core.send(key, message)
            try:
                reply = self.core.await_message(f"{key}/all", timeout)
            except BaseException:
                self.core.send(key, _WITHDRAWN)
                raise
            kind, parts = unpack(reply)
            if kind == "messages":
                return parts
            if kind == "passed":
                raise _PassedOver
            name, text, *heard = parts
            theirs = error_named(name.decode(), text.decode())
            if heard and not heard[self._rank] and not joins_late:
                raise _PassedOver(theirs)
            if heard:
                heard[self._rank] = b"=" + message
                if all(heard):  # This rank alone was late.
                    return [said[1:] for said in heard]
            raise theirs
        try:
            messages, error = self.core.collect(key, timeout)
        except BaseException as interrupt:
            self.core.announce(f"{key}/all", pack("error", [b"", f"rank 0: {type(interrupt).__name__}".encode()]))
            raise
        said = [message, *messages]
        if _WITHDRAWN in said:
            self.core.announce(f"{key}/all", pack("passed", []))
            raise _PassedOver
        if error is not None:
            heard = [b"" if one is None else b"=" + one for one in said]
            about = [type(error).__name__.encode(), text_of(error).encode()]
            self.core.announce(f"{key}/all", pack("error", [*about, *heard]))
            raise error
        complete = [one for one in said if one is not None]
        self.core.announce(f"{key}/all", pack("messages", complete))
        return complete

    def shared(self, name: str) -> tuple[Any, str]:
        """The store, and a prefix of keys in it that all ranks know once they have opened the root together."""
        return self._store, self.core.key(name)

    def close(self, end: float = math.inf) -> None:
        """Sends the messages that are queued, and ends the threads. Waits until `end`, of time.monotonic(), but at least
        one second and at most a few: then it leaves them to a store that does not answer."""
        end = time.monotonic() + min(_JOIN, max(1.0, end - time.monotonic()))
        self.core.stop()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._threads.clear()
        _threads.serving[:] = [one for one in _threads.serving if one[0] is not self.core]  # They have had their time.
