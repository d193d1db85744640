"""torch.distributed's c10d Store, as the ranks use it. torch is not imported here."""

from __future__ import annotations

import sys
import uuid
from datetime import timedelta
from typing import Any

from .._errors import InvalidArgument

LONGEST_WAIT = 3600.0  # Seconds of one wait in the store: c10d prints a warning after each.
ABSENT = b"-"  # What `peek` says of a key that is not there.


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
        f"group: expected None, a torch.distributed ProcessGroup or a tuple (Store, rank, world), found {group!r}"
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


def put(store: Any, key: str, entry: bytes) -> bool:
    """Sets the key unless it is there."""
    return bool(store.compare_set(key, b"", entry) == entry)


def peek(store: Any, key: str) -> bytes:
    """The key's value, or ABSENT: `get` would wait until it is there."""
    return bytes(store.compare_set(key, ABSENT, ABSENT))


def wait(store: Any, key: str, seconds: float) -> bool:
    """Whether the key is there within that time. Raises the store's exceptions if it is lost."""
    if seconds > 0:
        try:
            store.wait([key], timedelta(seconds=max(seconds, 0.002)))  # 0 ms is for ever.
            return True
        except RuntimeError as error:
            # A FileStore raises no exception of its own, and counts whole seconds.
            in_time = isinstance(error, sys.modules["torch.distributed"].DistStoreError) or "Wait timeout" in str(error)
            if not in_time:
                raise
    return bool(store.check([key]))


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
