"""The ranks of a job, spoken to through torch.distributed's c10d Store. torch is not imported here.

Two daemon threads serve one `_core.StoreGroup`, each with a client connection of its own, so that nobody else's wait
stalls them and they stall nobody: the sender puts this rank's words into the store, the listener waits for answers. The
engine's threads never enter Python; deadlines are kept in C++ as well, should the store say nothing at all.

**Keys**, under `cairn/<digest of the root>/`. To open, rank r gives `hello/<r>` = a nonce; rank 0 takes it away and
answers `welcome/<nonce>` = the session, a fresh id: a Checkpointer opened again never meets words of an earlier one.
Under `<session>/`:
  word/<key>/<r>   what rank r gave; count/<key>, how many have. Whoever is last gathers the words into the log, and
                   removes these keys.
  log, log/<i>     how many entries, and entry i: a gather with all its words, or that a rank has closed. Each rank reads
                   every entry in order: one blocked wait, on the next entry, serves all gathers.
  read/<i>         how many ranks have read it; the last removes both.
Before torch 2.8, `cairn/prefix` stays in a PrefixStore: see `reconnect`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from . import _core
from ._errors import CODES, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, IoError

_log = logging.getLogger("cairn")
_LONGEST_WAIT = 3600.0  # Seconds of one wait in the store, where nothing is due earlier.
_JOIN = 5.0  # Seconds that closing waits for the last words to be sent.


def resolve(group: Any) -> tuple[Any, int, int]:
    """(store, rank, world) of what the caller gave: a torch.distributed ProcessGroup, or just these three."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is not None:
        if isinstance(group, distributed.ProcessGroup):
            return distributed._get_process_group_store(group), group.rank(), group.size()
        if isinstance(group, tuple) and len(group) == 3 and isinstance(group[0], distributed.Store):
            store, rank, world = group
            if type(rank) is int and type(world) is int and 0 <= rank < world:
                return store, rank, world
    raise InvalidArgument(
        f"group: expected None, a torch.distributed ProcessGroup or a tuple (Store, rank, world), found {group!r}"
    )


def own_connection(store: Any) -> Any:
    """The same store through another client; what has no connection comes back itself."""
    return store.clone() if hasattr(store, "clone") else reconnect(store)


def reconnect(store: Any) -> Any:
    """own_connection where torch cannot clone stores, before 2.8."""
    distributed = sys.modules["torch.distributed"]
    if isinstance(store, distributed.TCPStore):
        return distributed.TCPStore(store.host, store.port, None, False, store.timeout, wait_for_workers=False)
    inner = store
    while isinstance(inner, distributed.PrefixStore):
        inner = inner.underlying_store
    own = inner if inner is store else reconnect(inner)
    if own is inner:
        return store
    # A PrefixStore does not tell its prefix. One that all who have this store agree on, and nobody else, does as well.
    prefix = store.compare_set("cairn/prefix", "", uuid.uuid4().hex).decode()
    return distributed.PrefixStore(f"cairn/{prefix}", own)


def pack(key: str, words: Sequence[bytes]) -> bytes:
    """One entry of the log: each part with its length in front."""
    return b"".join(b"%d:%b" % (len(part), part) for part in (key.encode(), *words))


def unpack(entry: bytes) -> tuple[str, list[bytes]]:
    parts: list[bytes] = []
    while entry:
        length, _, rest = entry.partition(b":")
        parts.append(rest[: int(length)])
        entry = rest[int(length) :]
    return parts[0].decode(), parts[1:]


class StoreLink:
    """Serves `core` through `store` until `close`. Seconds throughout."""

    def __init__(self, store: Any, rank: int, world: int, root: str, timeout: float) -> None:
        self.core = _core.StoreGroup(rank, world)
        self._store = store
        self._rank, self._world, self._timeout = rank, world, timeout
        self._root = os.path.abspath(root)
        self._base = f"cairn/{hashlib.sha256(self._root.encode()).hexdigest()[:16]}"
        self._session = ""
        self._next = 1  # The log's entry that the listener waits for.
        self._gone: set[int] = set()  # Ranks that have closed.
        self._failed: set[str] = set()  # Gathers that ended without an entry: this rank's word may be there still.
        self._calls: dict[str, int] = {}
        self._sender = threading.Thread(target=self._serve, args=(self._send,), name="cairn-send", daemon=True)
        self._listener = threading.Thread(target=self._serve, args=(self._listen,), name="cairn-listen", daemon=True)
        self._sender.start()

    def gather(self, what: str, word: bytes, timeout: float | None = None) -> list[bytes]:
        """What every rank says under `what`; the n-th call here meets the n-th call there. Blocks, within `timeout`."""
        self._calls[what] = number = self._calls.get(what, 0) + 1
        return self.core.all_gather(f"{what}/{number}", word, self._timeout if timeout is None else timeout)

    def close(self) -> None:
        """Sends what is still to be sent, and lets go; waits a few seconds at most."""
        self.core.stop()
        self._sender.join(_JOIN)

    # The threads.

    def _serve(self, work: Callable[[Any], None]) -> None:
        try:
            work(own_connection(self._store))
        except Error as error:
            self.core.fail(CODES[type(error).__name__], str(error))
        except Exception as error:  # noqa: BLE001
            # Whatever a store of torch's raises: it is gone, and a connection that has failed is not used again.
            code = CODES[IoError.__name__]
            self.core.fail(code, f"{self._root}: torch.distributed's store failed: {_first_line(error)}")

    def _send(self, store: Any) -> None:
        self._enter(store)
        self._listener.start()
        while (word := self.core.take_word()) is not None:
            self._give(store, *word)
        self._leave(store)

    def _enter(self, store: Any) -> None:
        """Agrees with the other ranks on a session."""
        end = time.monotonic() + self._timeout
        if self._rank != 0:
            nonce = uuid.uuid4().hex
            hello, welcome = f"{self._base}/hello/{self._rank}", f"{self._base}/welcome/{nonce}"
            store.set(hello, nonce)
            if not _wait(store, welcome, end - time.monotonic()):
                store.delete_key(hello)
                raise DeadlineExceeded(f"{self._root}: rank 0 did not open it within {self._timeout:g} s")
            self._session = f"{self._base}/{store.get(welcome).decode()}"
            store.delete_key(welcome)
            return
        session = uuid.uuid4().hex
        self._session = f"{self._base}/{session}"
        hellos = {rank: f"{self._base}/hello/{rank}" for rank in range(1, self._world)}
        for rank, hello in hellos.items():
            if not _wait(store, hello, end - time.monotonic()):
                late = [str(other) for other in range(rank, self._world) if not store.check([hellos[other]])]
                raise DeadlineExceeded(f"{self._root}: not opened by rank {', '.join(late)} within {self._timeout:g} s")
            nonce = store.get(hello).decode()
            store.delete_key(hello)
            store.set(f"{self._base}/welcome/{nonce}", session)

    def _key(self, *parts: object) -> str:
        return "/".join((self._session, *map(str, parts)))

    def _give(self, store: Any, key: str, word: bytes) -> None:
        mine = [self._key("word", key, rank) for rank in range(self._world)]
        store.set(mine[self._rank], word)
        if store.add(self._key("count", key), 1) < self._world:
            if self._gone:
                self._give_up_waiting(store, [key])
            return
        self._append(store, pack("gather", [key.encode(), *store.multi_get(mine)]))
        for name in (*mine, self._key("count", key)):
            store.delete_key(name)

    def _append(self, store: Any, entry: bytes) -> None:
        store.set(self._key("log", store.add(self._key("log"), 1)), entry)

    def _leave(self, store: Any) -> None:
        for key in self._failed:
            name = self._key("word", key, self._rank)
            if store.check([name]):
                store.delete_key(name)
                if store.add(self._key("count", key), -1) == 0:
                    store.delete_key(self._key("count", key))
        # Wakes the listeners, this rank's own among them.
        self._append(store, pack("closed", [b"%d" % self._rank]))
        self._listener.join()
        self._read_on(store)  # So that it is removed.
        if store.add(self._key("left"), 1) == self._world:
            self._remove_rest(store)

    def _listen(self, store: Any) -> None:
        while (left := self.core.wait_for_gather()) is not None:
            if _wait(store, self._key("log", self._next), min(left, _LONGEST_WAIT)):
                self._read(store)
            elif late := self.core.wanted(True):
                self._look_once_more(store, late)

    def _read(self, store: Any) -> None:
        kind, parts = unpack(store.get(self._key("log", self._next)))
        number, self._next = self._next, self._next + 1
        if kind == "gather":
            self.core.answer(parts[0].decode(), parts[1:])
        else:
            self._gone.add(int(parts[0]))
            self._give_up_waiting(store, self.core.wanted(False))
        if store.add(self._key("read", number), 1) == self._world:
            store.delete_key(self._key("log", number))
            store.delete_key(self._key("read", number))

    def _read_on(self, store: Any) -> None:
        while store.check([self._key("log", self._next)]):
            self._read(store)

    def _look_once_more(self, store: Any, late: list[str]) -> None:
        """Ends gathers whose deadline has passed, telling who is missing."""
        found = {key: self._missing(store, key) for key in late}
        self._read_on(store)  # Whoever was last may have moved the words into the log meanwhile.
        for key in set(late).intersection(self.core.wanted(True)):
            self._failed.add(key)
            who = f"nothing from rank {', '.join(map(str, found[key]))}" if found[key] else "the last rank fell silent"
            message = f'gathering "{key}" from {self._world} ranks: {who}'
            self.core.answer_error(key, CODES[DeadlineExceeded.__name__], message)

    def _give_up_waiting(self, store: Any, keys: list[str]) -> None:
        """Ends gathers that wait for ranks that have closed."""
        for key in keys:
            if missing := sorted(self._gone.intersection(self._missing(store, key))):
                self._failed.add(key)
                message = f'gathering "{key}": rank {", ".join(map(str, missing))} has closed its Checkpointer'
                self.core.answer_error(key, CODES[FailedPrecondition.__name__], message)

    def _missing(self, store: Any, key: str) -> list[int]:
        """Ranks that have not given their word; none where the gather is complete."""
        missing = [rank for rank in range(self._world) if not store.check([self._key("word", key, rank)])]
        # Complete: its words may be on their way into the log, and are removed before the count.
        count = store.add(self._key("count", key), 0)
        if count == 0:
            store.delete_key(self._key("count", key))
        return missing if 0 < count < self._world else []

    def _remove_rest(self, store: Any) -> None:
        """The last rank to leave removes what those that left earlier did not read."""
        count = store.add(self._key("log"), 0)
        for number in range(max(1, count - 2 * self._world), count + 1):
            for name in (self._key("log", number), self._key("read", number)):
                store.delete_key(name)
        store.delete_key(self._key("log"))
        store.delete_key(self._key("left"))


def _wait(store: Any, key: str, seconds: float) -> bool:
    """Whether the key is there within that time. The store's exceptions go through where it is lost."""
    if seconds > 0:
        with contextlib.suppress(sys.modules["torch.distributed"].DistStoreError):
            store.wait([key], timedelta(seconds=max(seconds, 0.002)))  # 0 ms is for ever.
            return True
    return bool(store.check([key]))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
