"""The items of torch.distributed.checkpoint, as a rank's shard holds them. See cairn.dcp.

**Tensors.** A whole tensor has its fqn as its name. A chunk of a sharded tensor is a part (see docs/format.md) whose
logical name is the fqn. Its own name is the fqn too, followed by "~1", "~2" if the rank holds several chunks. The bytes
of a pickled item are a U8 tensor with its fqn as name. Where a fqn contains "/~v", its name has "/~v" at its end too: no
array in a value has that. No tensor's fqn is empty. What each rank keeps its own of ("own") is whole, and its name is the
fqn, "/~v~" and the number of the rank.

**Text.** The rank's typed value "dcp", one JSON object:
  version   1, or 2 if a value needs version 2 of `_tree`, or "dtypes" has an item, or 3 if "own" has one, or 4 if a value
            needs version 4 of `_tree`
  paths     fqn -> its place in the state dict: keys and positions
  values    fqn -> its node, as `_tree` writes it; an array in it is a tensor named by the fqn, "/~v" and its path, or of
            a value that is this rank's own by the fqn, "/~v~", the number of the rank and its path
  pickled   fqns whose bytes DCP's planner pickled
  dtypes    fqn -> dtype of a tensor that is kept as bytes (see _tree/values.py): version 2
  tied      [fqn, offset, fqn of the chunk with the same memory at the same offset]; tied whole tensors are aliases
  optimizers key -> names of the classes of the optimizers at the top of the state dict, if it had these themselves
  metadata  place of a module's state dict -> its `_metadata`, without what is {"version": 1}; see containers.py
  own       fqns that other ranks may have too, with other contents: only as many ranks can read them, each its own
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch

from .. import _core
from .._errors import Corrupt, InvalidArgument, Unsupported, counted
from .._ranks.replicas import matches
from .._tree import Stored, values
from .._tree.packed import VERSION as PACKED
from .._tree.packed import unpack
from .._tree.paths import is_unicode, kind_name, listed, readable, shown
from .._tree.reader import Reader, kinds_in, scalar
from .._tree.tensors import TensorCollector, dtype_name, filled
from .._tree.values import AS_BYTES, bytes_of_element
from .._tree.writer import Names, Writer
from .containers import ModuleMetadata
from .forms import dtypes_of, metadata_in, optimizers_of, own_of, path_of, tie_of, well_formed
from .plain_values import (
    BELOW,
    Checker,
    ExactWriter,
    Form,
    Held,
    Key,
    below,
    described,
    held_values,
    large_arrays,
)

T = TypeVar("T")
_VERSION = PACKED
_LISTED = 8


@dataclass(frozen=True)
class Piece:
    """One tensor to write: all of `fqn`, or the chunk of it at `offset`."""

    fqn: str
    tensor: Any
    offset: tuple[int, ...] | None = None
    size: tuple[int, ...] = ()  # Of the whole.
    layout: str = ""  # See Held.

    def as_whole(self) -> Piece:
        if self.offset is not None and (any(self.offset) or tuple(self.tensor.shape) != self.size):
            raise InvalidArgument(
                f'"{self.fqn}": per_rank names it, but it is spread over ranks, and this one has '
                f"{described(self.tensor.dtype, self.tensor.shape, self.size)}: a rank can keep its own of what it has "
                "whole. Give the ranks' tensors names of their own"
            )
        return replace(self, offset=None, size=())

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
    forms: dict[str, Form] = field(default_factory=dict)  # Of the values, by fqn.
    own: frozenset[str] = frozenset()  # What each rank keeps its own of.
    rank: int = 0
    optimizers: dict[str, list[str]] = field(default_factory=dict)  # See the text.
    metadata: ModuleMetadata = field(default_factory=dict)
    _checker: Checker = field(default_factory=Checker)

    def keep_own(self, patterns: tuple[str, ...], rank: int) -> None:
        """Takes what these patterns match for this rank's own. InvalidArgument for a tensor of which it has a part."""
        self.rank = rank
        names = {*(piece.fqn for piece in self.pieces), *self.forms} if patterns else ()
        self.own = frozenset(fqn for fqn in names if matches(patterns, fqn))
        if self.own:
            self.pieces = [piece.as_whole() if piece.fqn in self.own else piece for piece in self.pieces]

    def add_value(self, fqn: str, value: Any) -> None:
        """InvalidArgument or Unsupported, with the name, for a value that cannot be kept without pickle."""
        self.forms[fqn] = self._checker.form_of(value, fqn)
        self.values[fqn] = value

    def add_pickled(self, fqn: str, value: Any, data: bytes) -> None:
        text = f"{kind_name(value)}, pickled, {len(data)} bytes with CRC {zlib.crc32(data):08x}"
        self.forms[fqn] = Form(text, {})
        self.pickled[fqn] = data

    def check_storable(self) -> None:
        """Raises InvalidArgument or Unsupported, with the name, before other ranks wait for this one."""
        for piece in self.pieces:
            self._checker.form_of(piece.tensor, piece.fqn)

    def held(self) -> list[Held]:
        return [
            (
                piece.key,
                _size_of(piece.tensor),
                described(piece.tensor.dtype, piece.tensor.shape, piece.size),
                piece.layout,
            )
            for piece in self.pieces
            if piece.fqn not in self.own
        ] + held_values({fqn: form for fqn, form in self.forms.items() if fqn not in self.own})

    def parts(self) -> list[tuple[Key, str]]:
        return [
            (piece.key, described(piece.tensor.dtype, piece.tensor.shape, piece.size))
            for piece in self.pieces
            if piece.offset is not None
        ]

    def keys(self) -> set[Key]:
        """Of what a planner writes: an array in a value is a part of the value."""
        pieces = {piece.key for piece in self.pieces if piece.fqn not in self.own}
        return pieces | {(fqn, ()) for fqn in (*self.forms, *self.own)}

    def contents(self) -> Callable[[Key], Any]:
        """What gives the tensor, or the large array in a value, that `held` names."""
        tensors = {piece.key: piece.tensor for piece in self.pieces}
        tensors.update(large_arrays(self.forms))
        return tensors.__getitem__

    def select(self, keys: set[Key] | None) -> Items:
        """The items with these keys, and this rank's own; None: all."""
        if keys is None:
            return self
        keys = keys | {(fqn, ()) for fqn in self.own}
        fqns = {fqn for fqn, _ in keys}
        return Items(
            [piece for piece in self.pieces if piece.key in keys],
            {fqn: value for fqn, value in self.values.items() if (fqn, ()) in keys},
            {fqn: data for fqn, data in self.pickled.items() if (fqn, ()) in keys},
            {fqn: path for fqn, path in self.paths.items() if fqn in fqns},
            own=self.own,
            rank=self.rank,
            optimizers=self.optimizers,
            metadata=self.metadata,
        )

    def add_to(self, sink: TensorCollector) -> str:
        """Gives the tensors to the sink; returns the text of everything else."""
        self._refuse_names()
        writer = ExactWriter(sink)
        whole = {self._name_of(piece.fqn): piece.tensor for piece in self.pieces if piece.offset is None}
        pickled = {self._name_of(fqn): data for fqn, data in self.pickled.items()}
        # In C++ if the names allow it: there may be 100,000 tensors.
        if sink.add_all([*whole], [*whole.values()], "", ":", False, writer.node) is None:
            for name, tensor in whole.items():
                writer.node(tensor, name)
        tied = _add_parts(sink, self.pieces, {*whole, *pickled})
        for name, data in pickled.items():
            sink.add(name, torch.frombuffer(bytearray(data), dtype=torch.uint8))
        nodes = [
            f"{json.dumps(fqn)}:{writer.node(value, below(fqn, self.rank if fqn in self.own else None))}"
            for fqn, value in self.values.items()
        ]
        rest: dict[str, Any] = {"paths": self.paths, "pickled": [*self.pickled], "tied": tied}
        if any(
            str(dtype).removeprefix("torch.") in AS_BYTES for dtype in {piece.tensor.dtype for piece in self.pieces}
        ):
            dtypes = {piece.fqn: dtype_name(piece.fqn, piece.tensor) for piece in self.pieces}
            rest["dtypes"] = {fqn: dtype for fqn, dtype in dtypes.items() if dtype in AS_BYTES}
        if self.optimizers:
            rest["optimizers"] = self.optimizers
        if self.metadata:
            rest["metadata"] = self.metadata
        version = max(writer.version, 2 if "dtypes" in rest else 1, 3 if self.own else 1)
        if self.own:
            rest["own"] = sorted(self.own)
        text = json.dumps(rest, separators=(",", ":"))
        return f'{{"version":{version},"values":{{{",".join(nodes)}}},{text[1:]}'

    def _name_of(self, fqn: str) -> str:
        return below(fqn, self.rank) if fqn in self.own else _name_of(fqn)

    def _refuse_names(self) -> None:
        tensors = [*(piece.fqn for piece in self.pieces), *self.pickled]
        if "" not in tensors and is_unicode(" ".join([*tensors, *self.paths])):
            return  # The usual case, made fast: there may be 100,000 names.
        for fqn in self.paths:
            if not is_unicode(fqn) or (fqn in tensors and not fqn):
                raise InvalidArgument(f"{fqn!r} cannot be the name of a tensor: expected Unicode, not empty")


def _add_parts(sink: TensorCollector, pieces: list[Piece], names: set[str]) -> list[tuple[str, tuple[int, ...], str]]:
    """Returns the tied parts: the engine finds ties of whole tensors only."""
    allowed = Writer(Names())
    added: list[Any] = []
    held: dict[tuple[Any, ...], str] = {}
    tied: list[tuple[str, tuple[int, ...], str]] = []
    for piece in pieces:
        if piece.offset is None:
            continue
        tensor = piece.tensor
        memory = (*memory_of(tensor), piece.offset, piece.size)
        if tensor.numel() and (holder := held.setdefault(memory, piece.fqn)) != piece.fqn:
            tied.append((piece.fqn, piece.offset, holder))
            continue
        logical = name = _name_of(piece.fqn)
        number = 0
        while name in names:
            number += 1
            name = f"{logical}~{number}"
        names.add(name)
        if sink.core.add_part(name, tensor, (logical, piece.size, piece.offset)):
            added.append((name, tensor))
            continue
        allowed.node(tensor, piece.fqn)  # Refuses what cannot be kept.
        last = bytes_of_element(dtype_name(piece.fqn, tensor))
        sink.add(name, tensor, (logical, (*piece.size, *last), (*piece.offset, *(0 for _ in last))))
    sink.given.append(("", [name for name, _ in added], [tensor for _, tensor in added]))
    return tied


def _size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _name_of(fqn: str) -> str:
    """The name of a tensor in the file."""
    return fqn + BELOW if BELOW in fqn else fqn


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
    place: tuple[str, str]  # Its file, and the name of the tensor there that holds its bytes.
    last: tuple[int, ...] = ()  # The last dimension in the file, of bytes, if it has one for them.


class Inner(NamedTuple):
    """A tensor of the caller's within a value, and the stored one that fills it."""

    path: str  # For messages.
    target: Any
    name: str
    kind: str  # See `_tree.kinds`.


@dataclass
class StoredItems:
    """What a checkpoint holds, of all ranks, by fqn."""

    chunks: dict[str, list[Chunk]]
    paths: dict[str, tuple[str | int, ...]]
    values: dict[str, Any]  # Nodes.
    pickled: set[str]
    tensors: dict[str, Stored]  # Whole tensors, by name, with those of values and pickled items.
    rank: int = 0
    own: frozenset[str] = frozenset()  # What this rank has its own of.
    refused: dict[str, str] = field(
        default_factory=dict
    )  # What ranks have their own of, and why this one cannot have it.
    optimizers: dict[str, list[str]] = field(default_factory=dict)
    metadata: ModuleMetadata = field(default_factory=dict)
    places: dict[str, tuple[str, str]] = field(default_factory=dict)  # Of `tensors`; see Chunk.

    def chunks_of(self, fqn: str) -> list[Chunk]:
        if fqn not in self.chunks:
            raise Corrupt(f'"{fqn}": the checkpoint names it, but no shard holds it')
        return self.chunks[fqn]

    def is_empty(self, fqn: str) -> bool:
        """Whether it is a tensor without elements: no plan reads that."""
        return any(0 in chunk.size for chunk in self.chunks.get(fqn, ())[:1])

    def find(self, fqn: str, offset: Iterable[int] | None) -> Chunk:
        wanted = None if offset is None else tuple(offset)
        for chunk in self.chunks_of(fqn):
            if wanted is None or chunk.offset == wanted:
                return chunk
        raise Corrupt(f'"{fqn}": the checkpoint holds no chunk at {wanted}')

    def tensors_of(self, fqn: str) -> dict[str, str]:
        """The tensors that a value needs, by name, each with its kind (see `_tree.kinds`)."""
        with well_formed(f'"{fqn}"'):
            kinds = kinds_in(self.values[fqn], self._below(fqn))
        for name in kinds:
            if name not in self.tensors:
                raise Corrupt(f'"{fqn}": its value names the tensor "{name}", but no shard holds it')
        return kinds

    def value(self, fqn: str, tensors: Mapping[str, Any], like: Any = None) -> Any:
        """The value of an fqn, once its tensors are read. `like`, the value that it replaces, may give its classes. Tensors
        in it that are as the checkpoint's are filled, too, and are those of the value.

        InvalidArgument if its class is neither imported nor given.
        """

        def leaf(_kind: str, like: Any, name: str, _strict: bool) -> Any:
            return filled(like, tensors[name])

        return self._walk(fqn, leaf, like, False)[0]

    def inner(self, fqn: str, like: Any) -> tuple[list[Inner], list[str]]:
        """The tensors in `like`, which the value of an fqn is to take the place of, and what keeps these from being filled."""
        found: list[Inner] = []
        unlike: list[str] = []

        def leaf(kind: str, like: Any, name: str, _strict: bool) -> Any:
            path = self._readable(fqn, name)
            if isinstance(like, torch.Tensor):
                saved, own = self.tensors[name].of_kind(kind), kind_name(like)
                if type(like) not in (torch.Tensor, torch.nn.Parameter) or like.layout != torch.strided:
                    unlike.append(f"{path} ({own} of layout {like.layout}, which is not filled)")
                elif kind.partition(" ")[0] != "torch":
                    unlike.append(f"{path} (a numpy array in the checkpoint, {own} here)")
                elif saved.shape != tuple(like.shape):
                    unlike.append(f"{path} (saved {[*saved.shape]}, current {[*like.shape]})")
                else:
                    found.append(Inner(path, like, name, kind))
            return like

        _, reader = self._walk(fqn, leaf, like, True)
        told = [*reader.differ, *reader.one_sided()]
        return found, [*unlike, *(self._readable(fqn, text) for text in told)]

    def _readable(self, fqn: str, text: str) -> str:
        below = self._below(fqn)
        return text.replace(readable(below), fqn).replace(below, fqn)

    def _walk(self, fqn: str, leaf: Callable[..., Any], like: Any, strict: bool) -> tuple[Any, Reader]:
        def find(path: str, _name: str) -> type:
            if (found := values.find_class(path)) is not None:
                return found
            raise InvalidArgument(
                f'"{fqn}": its class {path.replace(":", ".")} is not imported here, and loading a checkpoint imports '
                "nothing: import it first, or put an instance in its place in the state to load into"
            )

        with well_formed(f'"{fqn}"'):
            reader = Reader(leaf, scalar, None, find=find)
            return reader.node(self.values[fqn], like, self._below(fqn), strict), reader

    def _below(self, fqn: str) -> str:
        return below(fqn, self.rank if fqn in self.own else None)


class _Text(NamedTuple):
    """What one rank's text says."""

    paths: dict[str, tuple[str | int, ...]]
    values: dict[str, Any]
    pickled: set[str]
    ties: list[tuple[str, tuple[int, ...], str]]
    dtypes: dict[str, str]
    own: frozenset[str]
    optimizers: dict[str, list[str]]
    metadata: ModuleMetadata


def _text_of(details: Mapping[str, Any], given: Mapping[str, str]) -> _Text:
    if "dcp" not in given:
        raise InvalidArgument(
            f"{details['path']} was not saved through cairn.dcp: read it with Checkpointer.restore or load"
        )
    with well_formed(f"{details['path']}: its DCP items"):
        match items := json.loads(given["dcp"]):
            case {"version": int(version)} if version > _VERSION:
                raise Unsupported(f"{details['path']}: DCP items of version {version}, this Cairn reads {_VERSION}")
            case {
                "version": int(version),
                "paths": dict(paths),
                "values": dict(nodes),
                "pickled": list(pickled),
                "tied": ties,
            }:
                if version == PACKED:
                    unpack(nodes)
                return _Text(
                    {fqn: path_of(path) for fqn, path in paths.items()},
                    nodes,
                    set(pickled),
                    [tie_of(*tie) for tie in ties],
                    dtypes_of(items.get("dtypes", {})),
                    own_of(items.get("own", []), paths),
                    optimizers_of(items.get("optimizers", {})),
                    metadata_in(items.get("metadata", {})),
                )
            case _:
                raise ValueError("expected version, paths, values, pickled and tied")


def read_items(details: Mapping[str, Any], rank: int = 0, world: int = 1) -> StoredItems:
    """Reads them from the engine's details of a checkpoint, for rank `rank` of `world`. InvalidArgument if it was not
    saved through cairn.dcp."""
    texts = [_text_of(details, given) for given in details["values"]]
    own = texts[rank].own if world == len(texts) else frozenset()
    refused = _refused(details["path"], texts, own, rank, world)
    stored = StoredItems({}, {}, {}, set(), {}, rank, own, refused)
    dtypes: dict[str, str] = {}
    for number, text in enumerate(texts):
        hidden = refused.keys() | (own if number != rank else ())
        stored.paths.update(_without(text.paths, hidden))
        stored.values.update(_without(text.values, hidden))
        stored.pickled.update(text.pickled - hidden)
        dtypes.update(_without(text.dtypes, hidden))
        for key, kinds in text.optimizers.items():
            stored.optimizers[key] = sorted({*stored.optimizers.get(key, ()), *kinds})
        for place, of in text.metadata.items():
            stored.metadata.setdefault(place, {}).update(of)
    own_names = {below(fqn, rank): fqn for fqn in own}
    for name, dtype, shape, _, file, holder, part in details["tensors"]:
        logical, size, offset = part or (None, shape, (0,) * len(shape))
        chunk = Chunk(dtype, tuple(shape), tuple(offset), logical, tuple(size), name, (file, holder or name))
        named = logical or name
        fqn = named.removesuffix(BELOW) if BELOW in named[:-1] else named
        if part is None and name in own_names:
            fqn = own_names[name]
        elif _name_of(fqn) != named or fqn in own:  # An array in a value, or not this rank's.
            fqn = ""
        if fqn:
            chunk = _as_dtype(chunk, dtypes[fqn]) if fqn in dtypes else chunk
            stored.chunks.setdefault(fqn, []).append(chunk)
        if part is None:
            stored.tensors[name] = Stored(dtype, tuple(shape))
            stored.places[name] = (file, holder or name)
    _add_ties(stored, [tie for text in texts for tie in text.ties])
    return stored


def _without(named: dict[str, T], hidden: Collection[str]) -> dict[str, T]:
    return {fqn: one for fqn, one in named.items() if fqn not in hidden} if hidden else named


def _refused(path: str, texts: Sequence[_Text], own: frozenset[str], rank: int, world: int) -> dict[str, str]:
    """What ranks have their own of and this rank cannot have, by name, with the reason."""
    names = sorted(frozenset().union(*(text.own for text in texts)) - own)
    if not names:
        return {}
    if world == len(texts):
        why = f"rank {rank} has saved none of its own"
    else:
        why = f"{counted(len(texts), 'rank')} saved it and {counted(world, 'rank')} would load it"
    told = listed([f'"{name}"' for name in names], _LISTED)
    return {
        fqn: f'{path}: "{fqn}" was saved with per_rank, each rank has its own, but {why}. Leave these out of the state to '
        f"load into: {told}"
        for fqn in names
    }


def _add_ties(stored: StoredItems, ties: list[tuple[str, tuple[int, ...], str]]) -> None:
    # By its place: there may be 100,000 of them.
    held = {(fqn, chunk.offset): chunk for fqn, chunks in stored.chunks.items() for chunk in chunks} if ties else {}
    for fqn, at, holder in ties:
        if (fqn, at) in held:
            raise Corrupt(f'"{fqn}": the checkpoint holds its chunk at {at}, and names it as tied to "{holder}" too')
        if (holder, at) not in held:
            raise Corrupt(f'"{fqn}": tied to "{holder}" at {at}, but no shard holds that')
        held[fqn, at] = held[holder, at]
        stored.chunks.setdefault(fqn, []).append(held[fqn, at])


def _as_dtype(chunk: Chunk, dtype: str) -> Chunk:
    """A chunk of bytes as one of this dtype."""
    whole = Stored(chunk.dtype, chunk.shape).of_kind(f"torch {dtype}")
    last = chunk.shape[len(whole.shape) :]
    if (
        len(chunk.size) != len(chunk.shape)
        or chunk.size[len(whole.shape) :] != last
        or any(chunk.offset[len(whole.shape) :])
    ):
        raise Corrupt(f'"{chunk.logical}": expected whole elements of {dtype}, found bytes of {chunk.size}')
    kept = len(whole.shape)
    return Chunk(
        dtype, whole.shape, chunk.offset[:kept], chunk.logical, chunk.size[:kept], chunk.name, chunk.place, last
    )


def part_of(chunk: Chunk, begin: Sequence[int], lengths: Sequence[int]) -> _core.Part | None:
    """The region of a chunk that starts at `begin` and has `lengths` elements, for the engine; None: a whole tensor."""
    if chunk.logical is None and tuple(lengths) == chunk.shape:
        return None
    offset = tuple(a + b for a, b in zip(chunk.offset, begin, strict=True))
    return chunk.logical or chunk.name, (*chunk.size, *chunk.last), (*offset, *(0 for _ in chunk.last))


# Saving and reading


def parse_step(checkpoint_id: Any) -> int:
    if isinstance(checkpoint_id, int) and not isinstance(checkpoint_id, bool) and checkpoint_id >= 0:
        return checkpoint_id
    if isinstance(checkpoint_id, str) and checkpoint_id.isascii() and checkpoint_id.isdigit():
        return int(checkpoint_id)
    raise InvalidArgument(f"checkpoint_id: expected the step, a number of 0 or more, found {shown(checkpoint_id)}")


def is_step(checkpoint_id: Any) -> bool:
    try:
        parse_step(checkpoint_id)
    except InvalidArgument:
        return False
    return True


def memory_of(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
