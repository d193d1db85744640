"""The ranks of a job talk through torch.distributed's c10d Store. torch is not imported here.

Two daemon threads serve one `_core.StoreGroup`. Each has its own client connection, so that it neither waits for others
nor lets them wait. The sender puts this rank's messages into the store. The listener, while anybody waits for a message,
blocks in the store until the next message comes. The engine's threads never enter Python; C++ keeps the deadlines,
whatever the store does.

To open, the ranks agree on a session: see `meeting`. **Keys**, under the session's prefix:
  inbox, inbox/<i>   how many entries, and entry i: a rank's message to rank 0, or that it has closed. Rank 0 removes it.
                     If an entry was counted and does not come (its rank died), rank 0 fills it, so that later entries
                     can be read. It stays; a rank that finds its entry filled takes the next one.
  log/<i>            entry i: what rank 0 announces to all others, that it has closed, or why it did not open after
                     all. Each reads them in order. A rank that closes while it waits for an entry writes an empty one
                     there itself.
  read/<i>           how many ranks have read it; the last removes both. An entry says how many readers it has.
  end                how far rank 0 had written and read when it left
  left               how many ranks have left; the last removes what is left of all this.
So a save costs each rank except rank 0 a few calls and bytes, however many ranks there are.
Before torch 2.8, `cairn/prefix` stays in a PrefixStore: see `stores.reconnect`.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import _core, _errors, _threads
from .._errors import CODES, DeadlineExceeded, Error, FailedPrecondition, IoError
from . import stores
from .meeting import Meeting
from .stores import LONGEST_WAIT, first_line, put, wait

_GAP = 1.0  # Seconds between rank 0's checks for a message that was counted and does not come.
_OPENING = 1.0  # Seconds that a call waits longer while ranks open the root: those who open it say what is wrong.
_JOIN = 5.0  # Seconds that closing waits for the last messages to be sent.
_BLOCKED = 0.05  # Seconds until a listener that has not ended is woken.
_AT_ONCE = 1024  # Messages that rank 0 reads in one call.
_ENDED = {"refused": FailedPrecondition, "late": DeadlineExceeded}  # Entries that say why rank 0 did not open.
_WITHDRAWN = b"withdrawn"  # Instead of the message of a rank that has waited in vain.
_PATIENCE = 5.0  # Seconds, or a tenth of the timeout: for a call that has passed over another one.
_LEFTOVERS = 32  # Entries of the log that the last rank removes: those written while others left.


def pack(kind: str, parts: Sequence[bytes]) -> bytes:
    """One entry: each part after its length."""
    return b"".join(b"%d:%b" % (len(part), part) for part in (kind.encode(), *parts))


def unpack(entry: bytes) -> tuple[str, list[bytes]]:
    parts: list[bytes] = []
    at = 0
    while at < len(entry):
        colon = entry.index(b":", at)
        at = colon + 1 + int(entry[at:colon])
        parts.append(entry[colon + 1 : at])
    return parts[0].decode(), parts[1:]


class _PassedOver(Exception):
    """The ranks do not meet at this number, but at the next one."""

    def __init__(self, why: Error | None = None) -> None:
        self.why = why


class StoreLink:
    """Serves `core` through `store` until `close`. Seconds throughout."""

    def __init__(self, store: Any, rank: int, world: int, root: str, timeout: float) -> None:
        self.core = _core.StoreGroup(rank, world)
        self._store = store
        self._rank, self._world, self._timeout = rank, world, timeout
        self._root = os.path.abspath(root)
        self._meeting = Meeting(rank, world, root, timeout)
        self._session = ""
        self._joined = False
        self._next = 1  # The entry of the inbox, or the log, that the listener waits for.
        self._missing = 0  # The entry that was counted but missing at rank 0's last check.
        self._filled: list[int] = []  # Entries of the inbox that rank 0 filled.
        self._written = 0  # The log's last entry, on rank 0.
        self._readers = world - 1  # Of an entry of the log.
        self._gone: set[int] = set()  # Ranks that have closed, as far as rank 0 knows.
        self._calls: dict[str, int] = {}
        self._sender = threading.Thread(target=self._serve, args=(self._send,), name="cairn-send", daemon=True)
        self._listener = threading.Thread(target=self._serve, args=(self._listen,), name="cairn-listen", daemon=True)
        _threads.start(self._sender)

    def gather(
        self, what: str, message: bytes, timeout: float | None = None, *, joins_late: bool = True
    ) -> list[bytes]:
        """Every rank's message for `what`. The n-th call here matches the n-th call there. Blocks up to `timeout`.

        A call that some ranks made alone shifts nothing: a rank that has waited for rank 0 in vain withdraws its message,
        and if rank 0 finds that, all ranks pass over this number and meet at the next one. Unless this rank `joins_late`,
        it also passes over a number at which rank 0 had waited for it in vain.
        """
        if timeout is None:
            timeout = self._timeout + (0 if self._joined else _OPENING)
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
            error = (getattr(_errors, name.decode()) if name.decode() in CODES else Error)(text.decode())
            if heard and not heard[self._rank] and not joins_late:
                raise _PassedOver(error)
            if heard:
                heard[self._rank] = b"=" + message
                if all(heard):  # This rank alone was late.
                    return [said[1:] for said in heard]
            raise error
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
            about = [type(error).__name__.encode(), str(error).encode()]
            self.core.announce(f"{key}/all", pack("error", [*about, *heard]))
            raise error
        complete = [one for one in said if one is not None]
        self.core.announce(f"{key}/all", pack("messages", complete))
        return complete

    def shared(self, name: str) -> tuple[Any, str]:
        """The store, and a prefix of keys in it that all ranks know once they have opened the root together."""
        return self._store, self._key(name)

    def close(self) -> None:
        """Sends the messages that are queued, and ends the threads; waits a few seconds at most."""
        self._meeting.close()
        self.core.stop()
        self._sender.join(_JOIN)

    # The threads.

    def _serve(self, work: Callable[[Any], None]) -> None:
        try:
            work(stores.own_connection(self._store))
        except Error as error:
            self.core.fail(CODES[type(error).__name__], str(error))
        except Exception as error:  # noqa: BLE001
            # Any exception of torch's store: the store is lost. A connection that has failed is not used again.
            code = CODES[IoError.__name__]
            self.core.fail(code, f"{self._root}: torch.distributed's store failed: {first_line(error)}")

    def _send(self, store: Any) -> None:
        self._session = self._meeting.agree(store, partial(self._tell_why, store))
        self._joined = True
        _threads.start(self._listener)
        while True:
            try:
                message = self.core.next_message(_GAP if self._rank == 0 else math.inf)
            except DeadlineExceeded:
                self._fill_gap(store)
                continue
            if message is None:
                break
            self._put_message(store, *message)
        self._leave(store)

    def _tell_why(self, store: Any, error: Error) -> None:
        """Rank 0 has not opened: for its caller, and for the ranks that have joined."""
        self.core.fail(CODES[type(error).__name__], str(error))
        if readers := self._meeting.joined:
            kind = "late" if isinstance(error, DeadlineExceeded) else "refused"
            entry, number = pack(kind, [b"%d" % readers, str(error).encode()]), 1
            while not put(store, f"{self._meeting.session}/log/{number}", entry):
                number += 1

    def _key(self, *parts: object) -> str:
        return "/".join((self._session, *map(str, parts)))

    def _put_message(self, store: Any, key: str, message: bytes) -> None:
        self._append(store, "message", [key.encode(), message])

    def _append(self, store: Any, kind: str, parts: list[bytes]) -> None:
        if self._rank != 0:
            entry = pack(kind, [b"%d" % self._rank, *parts])
            while not put(store, self._key("inbox", store.add(self._key("inbox"), 1)), entry):
                pass
        elif self._readers:
            entry = pack(kind, [b"%d" % self._readers, *parts])
            self._written += 1
            while not put(store, self._key("log", self._written), entry):
                self._written += 1

    def _fill_gap(self, store: Any) -> None:
        """Fills the entry of a rank that died between counting its message and writing it, so that later ones are read."""
        at = self._next
        if self.core.wanted and store.add(self._key("inbox"), 0) >= at:
            if at == self._missing:
                put(store, self._key("inbox", at), pack("filled", [b"0"]))
            self._missing = at

    def _listen(self, store: Any) -> None:
        while self.core.wait_until_wanted():
            if wait(store, self._awaited(), LONGEST_WAIT):
                self._read_inbox(store) if self._rank == 0 else self._read_log(store)

    def _awaited(self) -> str:
        return self._key("inbox" if self._rank == 0 else "log", self._next)

    def _read_log(self, store: Any) -> None:
        """The next entry, which is there."""
        number, self._next = self._next, self._next + 1
        name, read = self._key("log", number), self._key("read", number)
        kind, parts = self._unpack(name, store.get(name))
        self._readers = int(parts[0])
        if kind == "message":
            self.core.hear(0, parts[1].decode(), parts[2])
        elif kind == "closed":
            self._gone.add(0)
            self.core.leave(0)
        elif kind in _ENDED:
            self.core.fail(CODES[_ENDED[kind].__name__], parts[1].decode())
        if store.add(read, 1) == self._readers:
            store.delete_key(name)
            store.delete_key(read)

    def _read_inbox(self, store: Any) -> None:
        """The next entry, which is there, and those after it."""
        count = store.add(self._key("inbox"), 0)
        names = [self._key("inbox", n) for n in range(self._next, min(count + 1, self._next + _AT_ONCE))]
        while len(names) > 1 and not store.check(names):  # The newest are on their way.
            names = names[: len(names) // 2]
        names = names or [self._awaited()]  # Not counted: the entry that wakes this listener to close.
        entries = [self._unpack(name, entry) for name, entry in zip(names, store.multi_get(names), strict=True)]
        # Of a rank's messages under one key the newest counts: it may have withdrawn the first.
        newest = {tuple(parts[:2]): at for at, (kind, parts) in enumerate(entries) if kind == "message"}
        read = []
        for at, (name, (kind, parts)) in enumerate(zip(names, entries, strict=True)):
            if kind == "filled":
                self._filled.append(self._next)
            else:
                if kind != "message" or newest[tuple(parts[:2])] == at:
                    self._hear(kind, parts)
                read.append(name)
            self._next += 1
        for name in read:  # Last, because others wait for the messages.
            store.delete_key(name)

    def _hear(self, kind: str, parts: list[bytes]) -> None:
        """On rank 0."""
        if kind == "message":
            self.core.hear(int(parts[0]), parts[1].decode(), parts[2])
        else:
            self._gone.add(int(parts[0]))
            self._readers = self._world - 1 - len(self._gone)
            self.core.leave(int(parts[0]))

    def _unpack(self, name: str, entry: bytes) -> tuple[str, list[bytes]]:
        with contextlib.suppress(ValueError, IndexError):
            kind, parts = unpack(entry)
            if (
                len(parts) == {"message": 3, "closed": 1, "filled": 1, "refused": 2, "late": 2}.get(kind)
                and parts[0].isdigit()
            ):
                return kind, parts
        raise IoError(
            f"{self._root}: torch.distributed's store: expected a message of Cairn under {name}, found other bytes"
        )

    def _leave(self, store: Any) -> None:
        self._listener.join(_BLOCKED)
        while self._listener.is_alive():
            put(store, self._awaited(), pack("filled", [b"%d" % self._readers]))
            self._listener.join(_BLOCKED)
        if self._rank == 0:
            self._append(store, "closed", [])
            while store.check([self._key("inbox", self._next)]):
                self._read_inbox(store)
            store.set(self._key("end"), " ".join(map(str, (self._written, self._next, *self._filled))))
        else:
            while store.check([self._key("log", self._next)]):
                self._read_log(store)  # So that it is removed.
            if 0 not in self._gone:
                self._append(store, "closed", [])
        if store.add(self._key("left"), 1) == self._world:
            self._remove_rest(store)

    def _remove_rest(self, store: Any) -> None:
        """Removes what was written for ranks that had already left."""
        written, unread, *filled = map(int, store.get(self._key("end")).split())
        for number in (*filled, *range(unread, store.add(self._key("inbox"), 0) + 1)):
            store.delete_key(self._key("inbox", number))
        for number in range(max(1, written - _LEFTOVERS), written + _LEFTOVERS):
            store.delete_key(self._key("log", number))
            store.delete_key(self._key("read", number))
        for name in ("inbox", "end", "left"):
            store.delete_key(self._key(name))
