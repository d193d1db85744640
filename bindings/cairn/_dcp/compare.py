"""Whether what several ranks hold under one name is one thing. See shares.py."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, TypeAlias

from torch.distributed.tensor import DTensor

from .._errors import InvalidArgument
from .._ranks.digests import crc_of, spelled
from .plain_values import BELOW, VALUE, Held, Key
from .tiles import Offset, untiled

Holders: TypeAlias = tuple[int, ...]  # The ranks that hold a thing.
Unproved: TypeAlias = dict[Key, tuple[str, Holders]]  # Tensors of several ranks that may differ: what, and whose.
BUFFER = "buffer"  # A layout that is the same on all ranks, as one that proves equal contents.
_PART = re.compile(r"\S+ \[([0-9, ]*)\] of \[([0-9, ]*)\]")  # What `described` says of a chunk.
_LISTED = 8
_LONGEST = 120  # Characters of a value in a message.
_CRC = 4  # Bytes.


class Layouts:
    """The layouts of tensors; see Held. A DTensor's is its mesh and its placements: DTensor keeps the bytes of a chunk
    equal on all ranks of the mesh that have it. (DCP refuses those with partial sums.) One that is replicated over a
    dimension before those that shard it has none: fully_shard with such a mesh (HSDP) takes each rank's own parameters."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Any], str] = {}  # By the mesh's id: the caller's tensors keep it alive.

    def of(self, held: Any) -> str:
        if not isinstance(held, DTensor):
            return ""
        key = id(held.device_mesh), held.placements
        if key not in self._known and any(one.is_replicate() for one in held.placements[: _last_shard(held)]):
            self._known[key] = ""
        elif key not in self._known:
            text = f"{held.device_mesh.mesh.tolist()} {held.placements}"
            self._known[key] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._known[key]


def _last_shard(held: DTensor) -> int:
    return max((i for i, one in enumerate(held.placements) if not one.is_replicate()), default=0)


def holders_of(lists: Sequence[Iterable[Sequence[Any]]]) -> dict[Key, Holders]:
    found: dict[Key, list[int]] = {}
    for rank, held in enumerate(lists):
        for key, *_ in held:
            found.setdefault(key, []).append(rank)
    return {key: tuple(ranks) for key, ranks in found.items()}


def unproved(lists: Sequence[Iterable[Held]], holders: Mapping[Key, Holders], trusts_meshes: bool) -> Unproved:
    """Tensors that several ranks hold and no layout proves to be equal. A buffer's counts in any case."""
    layouts: dict[Key, set[str]] = {}
    kinds: dict[Key, str] = {}
    for held in lists:
        for key, _, what, layout in held:
            if what != VALUE and len(holders[key]) > 1:
                kinds[key] = what
                layouts.setdefault(key, set()).add(layout if trusts_meshes or layout == BUFFER else "")
    return {key: (what, holders[key]) for key, what in kinds.items() if "" in layouts[key] or len(layouts[key]) > 1}


def shortened(values: Mapping[str, str]) -> dict[str, str]:
    return {
        fqn: text if len(text) <= _LONGEST else f"{len(text)} characters with CRC {zlib.crc32(text.encode()):08x}"
        for fqn, text in values.items()
    }


def unlike_values(lists: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """How values of one name differ, by name. What `shortened` returns, for each rank."""
    seen: dict[str, tuple[int, str]] = {}
    unlike: dict[str, str] = {}
    for rank, values in enumerate(lists):
        for fqn, text in values.items():
            first, expected = seen.setdefault(fqn, (rank, text))
            if text != expected:
                unlike.setdefault(fqn, f"rank {first} has {expected}, rank {rank} has {text}")
    return unlike


def pack(compared: Unproved, get: Callable[[Key], Any], rank: int) -> bytes:
    """The digests of what this rank holds of these."""
    held = [key for key in sorted(compared) if rank in compared[key][1]]
    return b"".join(crc_of(get(key)).to_bytes(_CRC, "big") for key in held)


def unlike_contents(compared: Unproved, messages: Sequence[bytes]) -> dict[str, str]:
    """How tensors of one name differ, by name. What `pack` returns, for each rank."""
    left = [BytesIO(message) for message in messages]
    unlike: dict[str, str] = {}
    for key in sorted(compared):
        what, ranks = compared[key]
        crcs = {rank: int.from_bytes(left[rank].read(_CRC), "big") for rank in ranks}
        for rank in ranks[1:]:
            if crcs[rank] != crcs[ranks[0]]:
                a, b = spelled(crcs[ranks[0]]), spelled(crcs[rank])
                unlike.setdefault(key[0], f"{what}: rank {ranks[0]} has {a}, rank {rank} has {b}")
    return unlike


def refuse(unlike: Mapping[str, str], where: str) -> None:
    """Raises InvalidArgument if there is anything."""
    if not unlike:
        return
    listed = "; ".join(f'"{fqn}": {what}' for fqn, what in [*unlike.items()][:_LISTED])
    more = f"; and {len(unlike) - _LISTED} more" if len(unlike) > _LISTED else ""
    names = [fqn.partition(BELOW)[0] for fqn in unlike][:_LISTED]
    raise InvalidArgument(
        f"{where}: ranks hold different contents under one name, and one of them would be kept: {listed}{more}. Give them "
        f"a name for each rank, or let each rank keep its own under this name: Checkpointer(..., per_rank={names}), or "
        f"checkpointer_for(path, per_rank={names}) of cairn.dcp"
    )


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


def check_tiled(lists: Sequence[Iterable[tuple[Key, str]]]) -> None:
    """Raises InvalidArgument unless the parts of each tensor, on all ranks, make the whole: a hole would be filled with
    whatever is there at the load."""
    parts: dict[str, dict[Offset, tuple[int, ...]]] = {}
    wholes: dict[str, tuple[int, ...]] = {}
    for items in lists:
        for (fqn, offset), what in items:
            if found := _PART.fullmatch(what):
                wholes[fqn] = _numbers(found[2])
                parts.setdefault(fqn, {})[offset] = _numbers(found[1])
    for fqn, found_parts in parts.items():
        if (unlike := untiled(wholes[fqn], found_parts.items())) is not None:
            raise InvalidArgument(f'"{fqn}": {unlike}')


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


def _whole_of(what: str) -> str:
    """Of what `described` says."""
    chunk, _, size = what.partition(" of ")
    return f"a part of {chunk.partition(' ')[0]} {size}" if size else what
