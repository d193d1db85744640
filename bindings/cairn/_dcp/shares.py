"""Which rank writes what several ranks hold. See cairn.dcp."""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from .._errors import InvalidArgument
from .._ranks.agreement import Ranks
from .items import VALUE, Items, Key, described

# Which version of `_assign`. Ranks with different ones would leave out what each takes for another's. The messages of the
# first had none, and began with the step, whose first byte was 0.
_RULE = b"\2"


class WriteShares:
    """Which rank writes what several ranks hold. All ranks agree on it, and keep it as long as nothing changes."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._lock = threading.Lock()
        self._of = b""  # Digest of what all ranks held when they agreed on `_mine`.
        self._mine: set[Key] = set()

    def mine(self, items: Items, step: int) -> set[Key] | None:
        """The keys that this rank writes; None: all. Every rank calls this, and waits for the others."""
        if self._ranks.world == 1:
            return None
        with self._lock:
            text = json.dumps(items.held()).encode()
            mine = step.to_bytes(8, "big") + hashlib.sha256(text).digest() + self._of
            said = self._ranks.exchange("dcp", _RULE + mine)
            if unlike := [rank for rank, message in enumerate(said) if not message.startswith(_RULE)]:
                raise InvalidArgument(
                    f"rank {unlike[0]} runs another version of Cairn than rank {self._ranks.rank}, which divides what "
                    "several ranks hold otherwise: install one version on all ranks"
                )
            messages = [message[len(_RULE) :] for message in said]
            for rank, message in enumerate(messages):
                if (theirs := int.from_bytes(message[:8], "big")) != step:
                    raise InvalidArgument(
                        f"rank {rank} saves step {theirs}, rank {self._ranks.rank} step {step}: all ranks save the same "
                        "steps in the same order"
                    )
            digests = hashlib.sha256(b"".join(message[8:40] for message in messages)).digest()
            if any(message[40:] != digests for message in messages):
                lists = self._ranks.exchange("dcp items", zlib.compress(text, 1))
                self._mine = _assign([json.loads(zlib.decompress(one)) for one in lists], self._ranks.rank)
                self._of = digests
            return self._mine

    def select(self, gather: Callable[[], Items], step: int) -> Items:
        """What this rank writes of the items that `gather` returns. Every rank calls this, and waits for the others.
        What `gather` raises on one rank, every rank raises."""
        try:
            items = gather()
        except BaseException as error:
            self._ranks.give_up("dcp", error)
            raise
        return items.select(self.mine(items, step))


# Small tensors lie side by side in a shard (src/base/store_order.h). One rank writes those that the same ranks hold, up
# to a share, so that a rank of another layout, which needs many of them, finds them in one place.
_SMALL = 64 << 10
_SHARE_OF_SMALL = 64 << 20


def _assign(lists: list[list[list[Any]]], rank: int) -> set[Key]:
    """Gives each item, largest first, to the one of its holders with the least to write; small ones with the same
    holders to one of these. The same on every rank, and what src/restore/forecast.cc assumes."""
    check_identical([[((fqn, tuple(offset)), what) for (fqn, offset), _, what in items] for items in lists])
    holders: dict[Key, list[int]] = {}
    sizes: dict[Key, int] = {}
    for holder, items in enumerate(lists):
        for (fqn, offset), size, _ in items:
            holders.setdefault((fqn, tuple(offset)), []).append(holder)
            sizes[fqn, tuple(offset)] = size
    loads = [0] * len(lists)
    small: dict[tuple[int, ...], tuple[int, int]] = {}  # Who writes them, and the bytes so far.
    for key in sorted(holders, key=lambda key: (len(holders[key]) > 1, -sizes[key], key)):
        of, size = tuple(holders[key]), sizes[key]
        writer = least = min(of, key=lambda holder: (loads[holder], holder))
        if size <= _SMALL:
            writer, taken = small.get(of, (least, 0))
            if taken + size > _SHARE_OF_SMALL:
                writer, taken = least, 0
            small[of] = writer, taken + size
        loads[writer] += size
        holders[key] = [writer]
    return {key for key, writers in holders.items() if writers == [rank]}


def check_identical(lists: Sequence[Iterable[tuple[Key, str]]]) -> None:
    """Raises InvalidArgument if ranks hold different things under one name, at one offset, or parts of different tensors
    under one name. A list for each rank."""
    seen: dict[Key, tuple[int, str]] = {}
    wholes: dict[str, tuple[int, str]] = {}
    for rank, items in enumerate(lists):
        for key, what in items:
            first, expected = seen.setdefault(key, (rank, what))
            if what != expected:
                raise InvalidArgument(
                    f'"{key[0]}" is {expected} on rank {first} and {what} on rank {rank}: what ranks hold under one name, at '
                    "one offset, is written once and must be equal"
                )
            if first != rank:
                continue  # The whole was compared, too.
            whole = _whole_of(what)
            first, expected = wholes.setdefault(key[0], (rank, whole))
            if whole != expected:
                raise InvalidArgument(
                    f'"{key[0]}" is {expected} on rank {first} and {whole} on rank {rank}: what ranks hold under one name '
                    "must be identical, or parts of one tensor"
                )


def _whole_of(what: str) -> str:
    """Of what `described` says."""
    chunk, _, size = what.partition(" of ")
    return f"a part of {chunk.partition(' ')[0]} {size}" if size else what


def check_plans(plans: Sequence[Sequence[WriteItem]]) -> None:
    """The same for the items of DCP's plans, before what is identical is dropped from all but one."""
    check_identical([[(key_of(item), _described(item)) for item in items] for items in plans])


def key_of(item: WriteItem) -> Key:
    return item.index.fqn, tuple(item.index.offset or ()) if item.type == WriteItemType.SHARD else ()


def _described(item: WriteItem) -> str:
    if item.tensor_data is None:
        return VALUE
    size = item.tensor_data.size if item.type == WriteItemType.SHARD else ()
    return described(item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes, size)
