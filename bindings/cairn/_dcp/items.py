"""torch.distributed.checkpoint's items, as a rank's shard holds them; what they are is cairn.dcp's business.

**Tensors.** A whole tensor has its fqn as its name. A chunk of a sharded one is a part (see the format) whose logical
name is the fqn; its own name is the fqn as well, with "~1", "~2" behind it where the rank holds several. The bytes of a
pickled item are a U8 tensor under its fqn. No tensor's fqn is empty or has "/~v" in it.

**Text.** The rank's typed value "dcp", one JSON object:
  version   1
  paths     fqn -> where it was in the state dict: keys and positions
  values    fqn -> its node, as `_tree` writes it; arrays within are tensors named by the fqn, "/~v" and the path below it
  pickled   fqns whose bytes DCP's planner pickled
  tied      [fqn, offset, fqn of the chunk with the same memory at the same offset]; whole ones are the format's aliases
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
from .._tree.tensors import Gathered, dtype_name
from .._tree.writer import Names, Writer

Key: TypeAlias = tuple[str, tuple[int, ...]]  # fqn, offset; no offset for what is whole.
_VERSION = 1
_BELOW = "/~v"  # No key in a value is written so.


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

    def refuse_what_is_not_kept(self) -> None:
        """InvalidArgument or Unsupported, by name: before other ranks count on this one."""
        for piece in self.pieces:
            refuse_what_is_not_kept(piece.tensor, piece.fqn)

    def sized(self) -> list[tuple[Key, int]]:
        """Each item's key, and a tensor's size in bytes; values are no load, and need not be alike."""
        sized = [(piece.key, piece.tensor.numel() * piece.tensor.element_size()) for piece in self.pieces]
        return sized + [((fqn, ()), 0) for fqn in (*self.pickled, *self.values)]

    def only(self, keys: set[Key] | None) -> Items:
        """Those of these keys; None: all."""
        if keys is None:
            return self
        fqns = {fqn for fqn, _ in keys}
        return Items(
            [piece for piece in self.pieces if piece.key in keys],
            {fqn: value for fqn, value in self.values.items() if (fqn, ()) in keys},
            {fqn: data for fqn, data in self.pickled.items() if (fqn, ()) in keys},
            {fqn: path for fqn, path in self.paths.items() if fqn in fqns},
        )

    def give(self, sink: Gathered) -> str:
        """Gives the tensors to the sink; returns the text of everything else."""
        self._refuse_names()
        writer = Writer(sink)
        whole = {piece.fqn: piece.tensor for piece in self.pieces if piece.offset is None}
        # Natively where the names allow it: there may be 100,000.
        if sink.add_all([*whole], [*whole.values()], "", False, writer.node) is None:
            for fqn, tensor in whole.items():
                writer.node(tensor, fqn)
        tied = self._give_parts(sink, {*whole, *self.pickled})
        for fqn, data in self.pickled.items():
            import torch

            sink.add(fqn, torch.frombuffer(bytearray(data), dtype=torch.uint8))
        nodes = [f"{json.dumps(fqn)}:{writer.node(value, _below(fqn))}" for fqn, value in self.values.items()]
        rest = json.dumps({"paths": self.paths, "pickled": [*self.pickled], "tied": tied}, separators=(",", ":"))
        return f'{{"version":{_VERSION},"values":{{{",".join(nodes)}}},{rest[1:]}'

    def _refuse_names(self) -> None:
        tensors = [*(piece.fqn for piece in self.pieces), *self.pickled]
        if "" not in tensors and is_unicode(" ".join([*tensors, *self.paths])) and _BELOW not in " ".join(tensors):
            return  # Nearly always, and there may be 100,000.
        for fqn in self.paths:
            if not is_unicode(fqn) or (fqn in tensors and (not fqn or _BELOW in fqn)):
                raise InvalidArgument(f'{fqn!r} is no name for a tensor: not Unicode, empty, or with "{_BELOW}"')

    def _give_parts(self, sink: Gathered, names: set[str]) -> list[tuple[str, tuple[int, ...], str]]:
        """Returns the tied ones: the engine knows ties of whole tensors, but not of parts of several."""
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


class _DTypes(Names):
    """A sink that refuses what has no place in a file."""

    def add(self, name: str, tensor: Any) -> None:
        dtype_name(name, tensor)


class _Exact(Writer):
    """Refuses what would come back as something else: no tree tells the classes when DCP loads."""

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


def refuse_what_is_not_kept(value: Any, fqn: str) -> None:
    """InvalidArgument or Unsupported, by name, for a value that cannot be kept without pickle."""
    _Exact(_DTypes()).node(value, fqn)


def can_be_kept(value: Any, fqn: str) -> bool:
    try:
        refuse_what_is_not_kept(value, fqn)
    except (InvalidArgument, Unsupported):
        return False
    return True


class Shares:
    """Who writes what several ranks hold alike: agreed on by all of them, and remembered as long as nothing changes."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._lock = threading.Lock()
        self._of = b""  # Digest of what all ranks held when `_mine` was agreed on.
        self._mine: set[Key] = set()

    def mine(self, items: Items, step: int) -> set[Key] | None:
        """The keys that this rank writes; None: all. All ranks ask together, and this waits for them."""
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
                self._mine = _share_out([json.loads(zlib.decompress(one)) for one in lists], self._ranks.rank)
                self._of = digests
            return self._mine

    def give_up(self, error: BaseException) -> None:
        """In place of `mine`, which the others wait in."""
        self._ranks.give_up("dcp", error)


def _share_out(lists: list[list[list[Any]]], rank: int) -> set[Key]:
    """The same on every rank: the largest first, each to the rank among its holders that has least to write."""
    holders: dict[Key, list[int]] = {}
    sizes: dict[Key, int] = {}
    for holder, items in enumerate(lists):
        for (fqn, offset), size in items:
            key = fqn, tuple(offset)
            holders.setdefault(key, []).append(holder)
            if sizes.setdefault(key, size) != size:
                raise InvalidArgument(
                    f'"{fqn}" has {sizes[key]} bytes on rank {holders[key][0]} and {size} on rank {holder}: what ranks '
                    "hold under one name, at one offset, is written once and must be alike"
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
class Stock:
    """What a checkpoint of several ranks holds, by fqn."""

    chunks: dict[str, list[Chunk]]
    paths: dict[str, tuple[str | int, ...]]
    values: dict[str, Any]  # Nodes.
    pickled: set[str]
    tensors: dict[str, Stored]  # Whole ones, by name: those of values and pickled items too.

    def chunks_of(self, fqn: str) -> list[Chunk]:
        if fqn not in self.chunks:
            raise Corrupt(f'the checkpoint names "{fqn}", but no shard holds it')
        return self.chunks[fqn]

    def find(self, fqn: str, offset: Iterable[int] | None) -> Chunk:
        wanted = None if offset is None else tuple(offset)
        for chunk in self.chunks_of(fqn):
            if wanted is None or chunk.offset == wanted:
                return chunk
        raise Corrupt(f'the checkpoint holds no chunk of "{fqn}" at {wanted}')

    def tensors_of(self, fqn: str) -> dict[str, str]:
        """The tensors that a value needs, by name, each with "torch" or "numpy"; pickled bytes are one."""
        return {fqn: "torch"} if fqn in self.pickled else kinds_in(self.values[fqn], _below(fqn))

    def value(self, fqn: str, tensors: Mapping[str, Any]) -> Any:
        """The value of an fqn, once its tensors are read."""

        def leaf(_kind: str, _like: Any, name: str, _strict: bool) -> Any:
            return tensors[name]

        return Reader(leaf, scalar, None).node(self.values[fqn], None, _below(fqn), False)


def take_stock(details: Mapping[str, Any]) -> Stock:
    """From what the engine tells of a checkpoint. InvalidArgument where it was not saved through cairn.dcp."""
    stock = Stock({}, {}, {}, set(), {})
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
                    stock.paths.update({fqn: tuple(path) for fqn, path in paths.items()})
                    stock.values.update(nodes)
                    stock.pickled.update(pickled)
                    ties += [(fqn, tuple(at), holder) for fqn, at, holder in ties_]
                case _:
                    raise ValueError("expected version, paths, values, pickled and tied")
        except (ValueError, TypeError, RecursionError) as error:
            raise Corrupt(f"{details['path']}: its DCP items: {error}") from error
    for name, dtype, shape, _, _, _, part in details["tensors"]:
        logical, size, offset = part or (None, shape, (0,) * len(shape))
        chunk = Chunk(dtype, tuple(shape), tuple(offset), logical, tuple(size), name)
        stock.chunks.setdefault(logical or name, []).append(chunk)
        if part is None:
            stock.tensors[name] = Stored(dtype, tuple(shape))
    for fqn, at, holder in ties:
        stock.chunks.setdefault(fqn, []).append(stock.find(holder, at))
    return stock


def part_of(chunk: Chunk, begin: Sequence[int], lengths: Sequence[int]) -> _core.Part | None:
    """The region of `lengths` elements from `begin` on within a chunk, as the engine reads it; None: a whole tensor."""
    if chunk.logical is None and tuple(lengths) == chunk.shape:
        return None
    offset = tuple(a + b for a, b in zip(chunk.offset, begin, strict=True))
    return chunk.logical or chunk.name, chunk.size, offset


# Of both


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
