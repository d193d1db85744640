"""Which rank writes what several ranks hold. See cairn.dcp."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from .._errors import InvalidArgument
from .._ranks.agreement import Ranks
from .compare import (
    Holders,
    Unproved,
    check_identical,
    check_tiled,
    holders_of,
    pack,
    refuse,
    shortened,
    unlike_contents,
    unlike_values,
    unproved,
)
from .garbage import no_collections
from .items import Items, Paths, Rest, merged
from .plain_values import VALUE, Form, Held, Key, described

T = TypeVar("T")
C = TypeVar("C", bound="Contents")
# Which version of these messages and of `_assign`. Ranks with different ones would leave out what each takes for
# another's. The messages of the first had none, and began with the step, whose first byte was 0.
_RULE = b"\4"
_SHA = 32  # Bytes.
_OF_VALUES = 8


class Contents(Protocol):
    """All that one rank holds, for the ranks to compare."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """Of the values, by fqn."""

    @property
    def own(self) -> frozenset[str]:
        """Names of what each rank keeps its own of: nobody compares it."""

    def held(self) -> list[Held]: ...

    def parts(self) -> list[tuple[Key, str]]:
        """What `held` says of parts of tensors."""

    def beside(self) -> dict[str, Any]:
        """What else rank 0 tells of all ranks: see Rest."""

    def tied(self) -> list[str]: ...

    def places(self) -> tuple[Paths, Paths]:
        """Of the tensors with elements, and of the values, which others may hold too, by fqn."""

    def contents(self) -> Callable[[Key], Any]:
        """Gives the tensor of a key."""


@dataclass(frozen=True)
class _Agreed:
    """What all ranks know since they last exchanged what they hold."""

    own: bytes = b""  # Digest of what this rank held.
    of: bytes = b""  # Digest of what all ranks held.
    mine: set[Key] = field(default_factory=set)
    values: list[tuple[Holders, list[str]]] = field(
        default_factory=list
    )  # Names of values, by the ranks that hold them.
    unproved: Unproved = field(default_factory=dict)
    rest: Rest | None = None  # On rank 0.


class WriteShares:
    """Which rank writes what several ranks hold, once it is known to be equal. All ranks agree on it, and keep it as long
    as nothing changes.

    Each save costs one exchange of digests: of what each rank holds, and of values that several ranks hold. If names,
    dtypes, shapes or layouts have changed, the ranks exchange lists. Then they compare the contents of tensors that
    several hold and no layout proves to be equal: of new ones if `compare` is "first", none if it is "never". If it is
    "always" each save compares all that several hold, whatever their layout.
    """

    def __init__(self, ranks: Ranks, root: str, compare: str, per_rank: tuple[str, ...]) -> None:
        self._ranks, self._root, self._compare, self._per_rank = ranks, root, compare, [*per_rank]
        self._lock = threading.Lock()
        self._agreed = _Agreed()
        self._refused: set[int] = set()  # Steps of saves that failed since other ranks came with others.

    def mine(self, items: Contents, step: int) -> set[Key] | None:
        """The keys that this rank writes; None: all. Every rank calls this, and waits for the others. If what several
        ranks hold differs, every rank raises InvalidArgument with the names."""
        if self._ranks.world == 1:
            check_tiled([items.parts()])
            return None
        with self._lock:
            where = f"{self._root}, step {step}"
            known = self._agreed
            with no_collections():
                more = {**items.beside(), "tied": items.tied()}
                text = json.dumps([_global_rank(), self._per_rank, items.held(), more]).encode()
            own = hashlib.sha256(text).digest()
            values = {fqn: form.told() for fqn, form in items.forms.items() if fqn not in items.own}
            said = self._exchange(step, own + known.of + (self._digests(values) if own == known.own else b""))
            of = hashlib.sha256(b"".join(message[:_SHA] for message in said)).digest()
            told = {message[_SHA : 2 * _SHA] for message in said}
            unlike: dict[str, str] = {}
            if told != {of}:
                known, unlike = self._agree(text, own, of, values, items.places)
                # Without what a rank alone has as compared, for which the others would wait.
                before = self._agreed.unproved if len(told) == 1 else {}
                compared = {key: what for key, what in known.unproved.items() if before.get(key) != what}
            else:
                self._check_values([message[2 * _SHA :] for message in said], values, where)
                compared = {}
            if self._compare == "always":
                compared = known.unproved
            if compared and self._compare != "never":
                unlike |= self._unlike_contents(compared, items)
            refuse(unlike, where)
            self._agreed = known
            return known.mine

    def select(self, gather: Callable[[], Items], step: int) -> Items:
        """What this rank writes of the items that `gather` returns. Every rank calls this, and waits for the others.
        What `gather` raises on one rank, every rank raises."""
        items = self._together("dcp", gather)
        mine = self.mine(items, step)
        return items.select(mine, self._agreed.rest if mine is not None else None)

    def check(self, gather: Callable[[], C], step: int) -> C:
        """The same, where DCP decides who writes what."""
        held = self._together("dcp", gather)
        self.mine(held, step)
        return held

    def _together(self, what: str, call: Callable[[], T]) -> T:
        """What the call returns, before the exchange of that name: the other ranks raise what it raises."""
        try:
            return call()
        except BaseException as error:
            self._ranks.give_up(what, error)
            raise

    def _exchange(self, step: int, message: bytes) -> list[bytes]:
        while True:
            said = self._ranks.exchange("dcp", _RULE + step.to_bytes(8, "big") + message)
            if unlike := [rank for rank, one in enumerate(said) if not one.startswith(_RULE)]:
                raise InvalidArgument(
                    f"rank {unlike[0]} runs another version of Cairn than rank {self._ranks.rank}, which divides what "
                    "several ranks hold otherwise: install one version on all ranks"
                )
            messages = [one[len(_RULE) :] for one in said]
            others = {rank: theirs for rank, one in enumerate(messages) if (theirs := _step_of(one)) != step}
            if not others:
                self._refused.clear()
                return [one[8:] for one in messages]
            # A rank that comes with a step that this one has tried is one call behind: this one waits for its next.
            if not self._refused.issuperset(others.values()):
                self._refused.add(step)
                rank, theirs = next(iter(others.items()))
                raise InvalidArgument(
                    f"rank {rank} saves step {theirs}, rank {self._ranks.rank} step {step}: all ranks save the same "
                    "steps in the same order"
                )

    def _agree(
        self,
        text: bytes,
        own: bytes,
        of: bytes,
        values: Mapping[str, str],
        places: Callable[[], tuple[Paths, Paths]],
    ) -> tuple[_Agreed, dict[str, str]]:
        """With the values that differ, by name."""
        shared = json.dumps(shortened(values)).encode()
        said = [
            [json.loads(part) for part in zlib.decompress(message).split(b"\n")]
            for message in self._ranks.exchange("dcp items", zlib.compress(text + b"\n" + shared, 1))
        ]
        for rank, ((_, theirs, *_), _) in enumerate(said):
            if theirs != self._per_rank:
                raise InvalidArgument(
                    f"{self._root}: per_rank is {self._per_rank} on rank {self._ranks.rank} and {theirs} on rank {rank}: "
                    "all ranks give the same patterns"
                )
        lists = [
            [((fqn, tuple(offset)), size, what, layout) for (fqn, offset), size, what, layout in held]
            for (_, _, held, _), _ in said
        ]
        described_lists = [[(key, what) for key, _, what, _ in held] for held in lists]
        check_identical(described_lists)
        check_tiled(described_lists)
        holders = holders_of(lists)
        shared_values: dict[Holders, list[str]] = {}
        for fqn in sorted({fqn for _, found in said for fqn in found}):
            if len(ranks := holders[fqn, ()]) > 1:
                shared_values.setdefault(ranks, []).append(fqn)
        # Ranks of several jobs may share a number, and then a mesh says nothing. "always" takes nobody's word: from_local
        # does not look whether a mesh's replicas are equal.
        trusts_meshes = len({rank for (rank, *_), _ in said}) == len(said) and self._compare != "always"
        mine = assign(lists, self._ranks.rank)
        rest = self._rest(lists, [beside for (*_, beside), _ in said], places)
        agreed = _Agreed(own, of, mine, sorted(shared_values.items()), unproved(lists, holders, trusts_meshes), rest)
        return agreed, unlike_values([found for _, found in said])

    def _rest(
        self,
        lists: Sequence[Sequence[Held]],
        beside: Sequence[dict[str, Any]],
        places: Callable[[], tuple[Paths, Paths]],
    ) -> Rest | None:
        """On rank 0. The names that it does not hold itself come from the first rank that holds each."""
        first: dict[str, int] = {}
        for rank, held in enumerate(lists):
            for (fqn, _), *_ in held:
                first.setdefault(fqn, rank)
        told = [b"[{},{}]"] * len(lists)
        if any(first.values()):
            mine = [
                {fqn: path for fqn, path in paths.items() if self._ranks.rank and first[fqn] == self._ranks.rank}
                for paths in places()
            ]
            told = [
                zlib.decompress(one)
                for one in self._ranks.exchange("dcp names", zlib.compress(json.dumps(mine).encode(), 1))
            ]
        if self._ranks.rank != 0:
            return None
        said = [json.loads(one) for one in told]
        return Rest(
            {**{fqn: path for tensors, _ in said for fqn, path in tensors.items()}, **places()[0]},
            {rank: values for rank, (_, values) in enumerate(said) if values},
            sorted({fqn for one in beside for fqn in one["tied"]}),
            merged(beside),
        )

    def _digests(self, values: Mapping[str, str]) -> bytes:
        """Of the values that this rank and others hold, one for each set of ranks."""
        return b"".join(
            hashlib.blake2b("\0".join(values[fqn] for fqn in fqns).encode(), digest_size=_OF_VALUES).digest()
            if self._ranks.rank in ranks
            else bytes(_OF_VALUES)
            for ranks, fqns in self._agreed.values
        )

    def _check_values(self, digests: Sequence[bytes], values: Mapping[str, str], where: str) -> None:
        for i, (ranks, _) in enumerate(self._agreed.values):
            at = slice(i * _OF_VALUES, (i + 1) * _OF_VALUES)
            if len({digests[rank][at] for rank in ranks}) > 1:
                lists = self._ranks.exchange("dcp values", json.dumps(shortened(values)).encode())
                refuse(unlike_values([json.loads(one) for one in lists]), where)
                raise InvalidArgument(f"{where}: the plain values that ranks {[*ranks]} hold differ")

    def _unlike_contents(self, compared: Unproved, items: Contents) -> dict[str, str]:
        packed = self._together("dcp contents", lambda: pack(compared, items.contents(), self._ranks.rank))
        return unlike_contents(compared, self._ranks.exchange("dcp contents", packed))


def _step_of(message: bytes) -> int:
    return int.from_bytes(message[:8], "big")


def _global_rank() -> int:
    """What meshes call this rank."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


# Small tensors lie side by side in a shard (src/base/store_order.h). One rank writes those that the same ranks hold, up
# to a share, so that a rank that needs many of them finds them in one place: what all hold, beside what rank 0 tells of
# the whole checkpoint.
_SMALL = 64 << 10
_SHARE_OF_SMALL = 64 << 20


def assign(lists: Sequence[Sequence[Sequence[Any]]], rank: int) -> set[Key]:
    """Gives each item, largest first, to the one of its holders with the least to write; small ones with the same
    holders to the first of these, up to a share, and what counts no bytes, as values, always. The same on every rank, and
    what src/advice/forecast.cc assumes."""
    holders = holders_of(lists)
    sizes = {key: size for held in lists for key, size, *_ in held}
    writers: dict[Key, int] = {}
    loads = [0] * len(lists)
    small: dict[tuple[int, ...], tuple[int, int]] = {}  # Who writes them, and the bytes so far.
    for key in sorted(holders, key=lambda key: (len(holders[key]) > 1, -sizes[key], key)):
        of, size = holders[key], sizes[key]
        writer = least = min(of, key=lambda holder: (loads[holder], holder))
        if size == 0:
            writer = of[0]
        elif size <= _SMALL:
            writer, taken = small.get(of, (of[0], 0))
            if taken + size > _SHARE_OF_SMALL:
                writer, taken = least, 0
            small[of] = writer, taken + size
        loads[writer] += size
        writers[key] = writer
    return {key for key, writer in writers.items() if writer == rank}


def check_plans(plans: Sequence[Sequence[WriteItem]]) -> None:
    """The same for the items of DCP's plans, before what is identical is dropped from all but one."""
    check_identical([[(key_of(item), described_item(item)) for item in items] for items in plans])


def key_of(item: WriteItem) -> Key:
    return item.index.fqn, tuple(item.index.offset or ()) if item.type == WriteItemType.SHARD else ()


def described_item(item: WriteItem) -> str:
    if item.tensor_data is None:
        return VALUE
    size = item.tensor_data.size if item.type == WriteItemType.SHARD else ()
    return described(item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes, size)


def size_of_item(item: WriteItem) -> int:
    tensor: Any = item.tensor_data
    return int(math.prod(tensor.chunk.sizes) * tensor.properties.dtype.itemsize)
