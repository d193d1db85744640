"""torch.distributed's c10d Store, as the ranks use it. torch is not imported here."""

from __future__ import annotations

import sys
import uuid
from datetime import timedelta
from typing import Any

from .._errors import InvalidArgument, text_of
from .._tree.paths import shown

LONGEST_WAIT = 3600.0  # Seconds of one wait in the store: c10d prints a warning after each.
_ABSENT = b"-"  # No value is this.


def resolve(group: Any) -> tuple[Any, int, int]:
    """(store, rank, world) of the group: a torch.distributed ProcessGroup, or a tuple of these three."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is not None:
        if isinstance(group, distributed.ProcessGroup):
            return distributed._get_process_group_store(group), group.rank(), group.size()
        if isinstance(group, tuple) and len(group) == 3 and isinstance(group[0], distributed.Store):
            store, rank, world = group
            if type(rank) is int and type(world) is int and 0 <= rank < world:
                return store, rank, world
    raise InvalidArgument(
        f"group: expected None, a torch.distributed ProcessGroup or a tuple (Store, rank, world), found {shown(group)}"
    )


def own_connection(store: Any) -> Any:
    """The same store through another client connection. A store without connections is returned itself."""
    return store.clone() if hasattr(store, "clone") else reconnect(store)


def reconnect(store: Any) -> Any:
    """own_connection for torch before 2.8, which cannot clone stores."""
    distributed = sys.modules["torch.distributed"]
    if isinstance(store, distributed.TCPStore):
        return distributed.TCPStore(store.host, store.port, None, False, store.timeout, wait_for_workers=False)
    inner = store
    while isinstance(inner, distributed.PrefixStore):
        inner = inner.underlying_store
    own = inner if inner is store else reconnect(inner)
    if own is inner:
        return store
    # A PrefixStore does not expose its prefix. So the clients of this store agree on a new one.
    prefix = store.compare_set("cairn/prefix", "", uuid.uuid4().hex).decode()
    return distributed.PrefixStore(f"cairn/{prefix}", own)


def wait(store: Any, key: str, seconds: float) -> bool:
    """Whether the key is there within that time. Raises the store's exceptions if it is lost."""
    if seconds > 0:
        try:
            store.wait([key], timedelta(seconds=max(seconds, 0.002)))  # 0 ms is for ever.
            return True
        except RuntimeError as error:
            # A FileStore raises no exception of its own, and counts whole seconds.
            in_time = isinstance(error, sys.modules["torch.distributed"].DistStoreError) or "Wait timeout" in text_of(
                error
            )
            if not in_time:
                raise
    return bool(store.check([key]))


def first_line(error: Exception) -> str:
    return text_of(error).partition("\n")[0] or type(error).__name__


class Connection:
    """A connection of its own to the store, as C++ calls it: KeyValueStore in include/cairn/group.h."""

    def __init__(self, store: Any) -> None:
        self._store = own_connection(store)

    def set(self, key: str, value: bytes) -> bool:
        self._store.set(key, value)
        return True

    def set_if_absent(self, key: str, value: bytes) -> bool:
        return bool(self._store.compare_set(key, b"", value) == value)

    def get(self, key: str) -> bytes | None:
        """The store's own `get` would wait for a key that is absent."""
        value = bytes(self._store.compare_set(key, _ABSENT, _ABSENT))
        return None if value == _ABSENT else value

    def check(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def wait(self, key: str, seconds: float) -> bool:
        return wait(self._store, key, seconds)

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def erase(self, key: str) -> bool:
        return bool(self._store.delete_key(key))
