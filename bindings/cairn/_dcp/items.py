"""The items of torch.distributed.checkpoint, as a rank's shard holds them. See cairn.dcp.

**Tensors.** A whole tensor has its fqn as its name. A chunk of a sharded tensor is a part (see docs/format.md) whose
logical name is the fqn. Its own name is the fqn too, followed by "~1", "~2" if the rank holds several chunks. The bytes
of a pickled item are a U8 tensor with its fqn as name. No tensor's fqn is empty or contains "/~v".

**Text.** The rank's typed value "dcp", one JSON object:
  version   1
  paths     fqn -> its place in the state dict: keys and positions
  values    fqn -> its node, as `_tree` writes it; an array in it is a tensor named by the fqn, "/~v" and its path
  pickled   fqns whose bytes DCP's planner pickled
  tied      [fqn, offset, fqn of the chunk with the same memory at the same offset]; tied whole tensors are aliases
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from .. import _core
from .._errors import Corrupt, InvalidArgument, Unsupported
from .._ranks.agreement import Ranks
from .._tree import Stored
from .._tree.paths import fields_of, is_stateful, is_unicode, kind_name, readable
from .._tree.reader import Reader, kinds_in, scalar
from .._tree.tensors import TensorCollector, dtype_name
from .._tree.writer import Names, Writer

Key: TypeAlias = tuple[str, tuple[int, ...]]  # fqn, offset; the offset of a whole item is ().
_VERSION = 1
_BELOW = "/~v"  # No key in a value is written like this.


@dataclass(frozen=True)
class Piece:
    """One tensor to write: all of `fqn`, or the chunk of it at `offset`."""

    fqn: str
    tensor: Any
    offset: tuple[int, ...] | None = None
    size: tuple[int, ...] = ()  # Of the whole.

    @property
    def key(self) -> Key:
        return self.fqn, self.offset or ()


@dataclass
class Items:
    """What one rank writes."""

    pieces: list[Piece] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    pickled: dict[str, bytes] = field(default_factory=dict)
    paths: Mapping[str, Sequence[str | int]] = field(default_factory=dict)
    flat: Mapping[str, Any] = field(default_factory=dict)  # The state dict that it was made of, by fqn.

    def check_storable(self) -> None:
        """Raises InvalidArgument or Unsupported, with the name, before other ranks wait for this one."""
        for piece in self.pieces:
            check_storable(piece.tensor, piece.fqn)

    def sized(self) -> list[tuple[Key, int]]:
        """Each item's key and its size in bytes. Values count as 0, and may differ between ranks."""
        sized = [(piece.key, piece.tensor.numel() * piece.tensor.element_size()) for piece in self.pieces]
        return sized + [((fqn, ()), 0) for fqn in (*self.pickled, *self.values)]

    def select(self, keys: set[Key] | None) -> Items:
        """The items with these keys; None: all."""
        if keys is None:
            return self
        fqns = {fqn for fqn, _ in keys}
        return Items(
            [piece for piece in self.pieces if piece.key in keys],
            {fqn: value for fqn, value in self.values.items() if (fqn, ()) in keys},
            {fqn: data for fqn, data in self.pickled.items() if (fqn, ()) in keys},
            {fqn: path for fqn, path in self.paths.items() if fqn in fqns},
        )

    def add_to(self, sink: TensorCollector) -> str:
        """Gives the tensors to the sink; returns the text of everything else."""
        self._refuse_names()
        writer = Writer(sink)
        whole = {piece.fqn: piece.tensor for piece in self.pieces if piece.offset is None}
        # In C++ if the names allow it: there may be 100,000 tensors.
        if sink.add_all([*whole], [*whole.values()], "", False, writer.node) is None:
            for fqn, tensor in whole.items():
                writer.node(tensor, fqn)
        tied = self._add_parts(sink, {*whole, *self.pickled})
        for fqn, data in self.pickled.items():
            import torch

            sink.add(fqn, torch.frombuffer(bytearray(data), dtype=torch.uint8))
        nodes = [f"{json.dumps(fqn)}:{writer.node(value, _below(fqn))}" for fqn, value in self.values.items()]
        rest = json.dumps({"paths": self.paths, "pickled": [*self.pickled], "tied": tied}, separators=(",", ":"))
        return f'{{"version":{_VERSION},"values":{{{",".join(nodes)}}},{rest[1:]}'

    def _refuse_names(self) -> None:
        tensors = [*(piece.fqn for piece in self.pieces), *self.pickled]
        if "" not in tensors and is_unicode(" ".join([*tensors, *self.paths])) and _BELOW not in " ".join(tensors):
            return  # The usual case, made fast: there may be 100,000 names.
        for fqn in self.paths:
            if not is_unicode(fqn) or (fqn in tensors and (not fqn or _BELOW in fqn)):
                raise InvalidArgument(
                    f'{fqn!r} cannot be the name of a tensor: expected Unicode, not empty, without "{_BELOW}"'
                )

    def _add_parts(self, sink: TensorCollector, names: set[str]) -> list[tuple[str, tuple[int, ...], str]]:
        """Returns the tied parts: the engine finds ties of whole tensors only."""
        allowed = Writer(Names())
        held: dict[tuple[Any, ...], str] = {}
        tied: list[tuple[str, tuple[int, ...], str]] = []
        for piece in self.pieces:
            if piece.offset is None:
                continue
            tensor = piece.tensor
            allowed.node(tensor, piece.fqn)  # Refuses what cannot be kept.
            memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), piece.offset, piece.size)
            if tensor.numel() and (holder := held.setdefault(memory, piece.fqn)) != piece.fqn:
                tied.append((piece.fqn, piece.offset, holder))
                continue
            name, number = piece.fqn, 0
            while name in names:
                number += 1
                name = f"{piece.fqn}~{number}"
            names.add(name)
            sink.add(name, tensor, (piece.fqn, piece.size, piece.offset))
        return tied


def _below(fqn: str) -> str:
    return fqn + _BELOW


class _DTypeCheck(Names):
    """A sink that refuses dtypes that files cannot hold."""

    def add(self, name: str, tensor: Any) -> None:
        dtype_name(name, tensor)


class _ExactWriter(Writer):
    """Refuses values that would come back as another type: DCP loads without a tree that gives the classes."""

    def _other(self, value: Any, name: str) -> str:
        if is_stateful(value):
            hint = "DCP takes apart only what is in the state dict itself: put its state_dict() there"
        elif isinstance(value, Enum):
            hint = "keep its name or its value"
        elif fields_of(type(value)):
            hint = "convert it with tuple(...)"
        else:
            return super()._other(value, name)
        raise InvalidArgument(f"{readable(name)}: {kind_name(value)} cannot be kept; {hint}")


def check_storable(value: Any, fqn: str) -> None:
    """Raises InvalidArgument or Unsupported, with the name, for a value that cannot be kept without pickle."""
    _ExactWriter(_DTypeCheck()).node(value, fqn)


def is_storable(value: Any, fqn: str) -> bool:
    try:
        check_storable(value, fqn)
    except (InvalidArgument, Unsupported):
        return False
    return True


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
            text = json.dumps(items.sized()).encode()
            said = self._ranks.exchange("dcp", step.to_bytes(8, "big") + hashlib.sha256(text).digest() + self._of)
            for rank, word in enumerate(said):
                if (theirs := int.from_bytes(word[:8], "big")) != step:
                    raise InvalidArgument(
                        f"rank {rank} saves step {theirs}, rank {self._ranks.rank} step {step}: all ranks save the same "
                        "steps in the same order"
                    )
            words = [word[8:] for word in said]
            digests = hashlib.sha256(b"".join(word[:32] for word in words)).digest()
            if any(word[32:] != digests for word in words):
                lists = self._ranks.exchange("dcp items", zlib.compress(text, 1))
                self._mine = _assign([json.loads(zlib.decompress(one)) for one in lists], self._ranks.rank)
                self._of = digests
            return self._mine

    def give_up(self, error: BaseException) -> None:
        """Called instead of `mine` by a rank that has failed: the others wait for it."""
        self._ranks.give_up("dcp", error)


def _assign(lists: list[list[list[Any]]], rank: int) -> set[Key]:
    """Gives each item, largest first, to the one of its holders with the least to write. The same on every rank."""
    holders: dict[Key, list[int]] = {}
    sizes: dict[Key, int] = {}
    for holder, items in enumerate(lists):
        for (fqn, offset), size in items:
            key = fqn, tuple(offset)
            holders.setdefault(key, []).append(holder)
            if sizes.setdefault(key, size) != size:
                raise InvalidArgument(
                    f'"{fqn}" has {sizes[key]} bytes on rank {holders[key][0]} and {size} on rank {holder}: what ranks '
                    "hold under one name, at one offset, is written once and must be equal"
                )
    loads = [0] * len(lists)
    for key in sorted(holders, key=lambda key: (len(holders[key]) > 1, -sizes[key], key)):
        least = min(holders[key], key=lambda holder: (loads[holder], holder))
        loads[least] += sizes[key]
        holders[key] = [least]
    return {key for key, of in holders.items() if of == [rank]}


# Reading


@dataclass
class Chunk:
    """A stored tensor, or a part of one."""

    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    logical: str | None  # None: a whole tensor.
    size: tuple[int, ...]  # Of the whole.
    name: str  # Its own, in its shard.


@dataclass
class StoredItems:
    """What a checkpoint holds, of all ranks, by fqn."""

    chunks: dict[str, list[Chunk]]
    paths: dict[str, tuple[str | int, ...]]
    values: dict[str, Any]  # Nodes.
    pickled: set[str]
    tensors: dict[str, Stored]  # Whole tensors, by name, with those of values and pickled items.

    def chunks_of(self, fqn: str) -> list[Chunk]:
        if fqn not in self.chunks:
            raise Corrupt(f'"{fqn}": the checkpoint names it, but no shard holds it')
        return self.chunks[fqn]

    def find(self, fqn: str, offset: Iterable[int] | None) -> Chunk:
        wanted = None if offset is None else tuple(offset)
        for chunk in self.chunks_of(fqn):
            if wanted is None or chunk.offset == wanted:
                return chunk
        raise Corrupt(f'"{fqn}": the checkpoint holds no chunk at {wanted}')

    def tensors_of(self, fqn: str) -> dict[str, str]:
        """The tensors that a value needs, by name, each with "torch" or "numpy". Pickled bytes are one tensor."""
        return {fqn: "torch"} if fqn in self.pickled else kinds_in(self.values[fqn], _below(fqn))

    def value(self, fqn: str, tensors: Mapping[str, Any]) -> Any:
        """The value of an fqn, once its tensors are read."""

        def leaf(_kind: str, _like: Any, name: str, _strict: bool) -> Any:
            return tensors[name]

        return Reader(leaf, scalar, None).node(self.values[fqn], None, _below(fqn), False)


def read_items(details: Mapping[str, Any]) -> StoredItems:
    """Reads them from the engine's details of a checkpoint. InvalidArgument if it was not saved through cairn.dcp."""
    stored = StoredItems({}, {}, {}, set(), {})
    ties: list[tuple[str, tuple[int, ...], str]] = []
    for values in details["values"]:
        if "dcp" not in values:
            raise InvalidArgument(
                f"{details['path']} was not saved through cairn.dcp: read it with Checkpointer.restore or load"
            )
        try:
            match json.loads(values["dcp"]):
                case {"version": int(version)} if version > _VERSION:
                    raise Unsupported(f"{details['path']}: DCP items of version {version}, this Cairn reads {_VERSION}")
                case {
                    "version": int(),
                    "paths": dict(paths),
                    "values": dict(nodes),
                    "pickled": list(pickled),
                    "tied": ties_,
                }:
                    stored.paths.update({fqn: tuple(path) for fqn, path in paths.items()})
                    stored.values.update(nodes)
                    stored.pickled.update(pickled)
                    ties += [(fqn, tuple(at), holder) for fqn, at, holder in ties_]
                case _:
                    raise ValueError("expected version, paths, values, pickled and tied")
        except (ValueError, TypeError, RecursionError) as error:
            raise Corrupt(f"{details['path']}: its DCP items: {error}") from error
    for name, dtype, shape, _, _, _, part in details["tensors"]:
        logical, size, offset = part or (None, shape, (0,) * len(shape))
        chunk = Chunk(dtype, tuple(shape), tuple(offset), logical, tuple(size), name)
        stored.chunks.setdefault(logical or name, []).append(chunk)
        if part is None:
            stored.tensors[name] = Stored(dtype, tuple(shape))
    for fqn, at, holder in ties:
        stored.chunks.setdefault(fqn, []).append(stored.find(holder, at))
    return stored


def part_of(chunk: Chunk, begin: Sequence[int], lengths: Sequence[int]) -> _core.Part | None:
    """The region of a chunk that starts at `begin` and has `lengths` elements, for the engine; None: a whole tensor."""
    if chunk.logical is None and tuple(lengths) == chunk.shape:
        return None
    offset = tuple(a + b for a, b in zip(chunk.offset, begin, strict=True))
    return chunk.logical or chunk.name, chunk.size, offset


# Saving and reading


def parse_step(checkpoint_id: Any) -> int:
    if isinstance(checkpoint_id, int) and not isinstance(checkpoint_id, bool) and checkpoint_id >= 0:
        return checkpoint_id
    if isinstance(checkpoint_id, str) and checkpoint_id.isascii() and checkpoint_id.isdigit():
        return int(checkpoint_id)
    raise InvalidArgument(f"checkpoint_id: expected the step, a number of 0 or more, found {checkpoint_id!r}")


def is_step(checkpoint_id: Any) -> bool:
    try:
        parse_step(checkpoint_id)
    except InvalidArgument:
        return False
    return True


def memory_of(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
