"""What a checkpoint holds of the items of torch.distributed.checkpoint. See items.py for their form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch

from .. import _core
from .._errors import Corrupt, InvalidArgument, Unsupported, counted
from .._tree import Stored, values
from .._tree.paths import MAX_LEVELS, kind_name, listed, readable
from .._tree.reader import Reader, kinds_in, scalar
from .._tree.tensors import filled
from .._tree.writer import PACKED
from .containers import ModuleMetadata
from .forms import Path, dtypes_of, metadata_in, optimizers_of, orders_of, own_of, path_of, rest_of, tie_of, well_formed
from .items import merged, name_of
from .optimizers import Orders
from .plain_values import BELOW, below

T = TypeVar("T")
_VERSION = PACKED
_LISTED = 8


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
    paths: dict[str, Path]
    values: dict[str, Any]  # Nodes.
    pickled: set[str]
    tensors: dict[str, Stored]  # Whole tensors, by name, with those of values and pickled items.
    rank: int = 0
    own: frozenset[str] = frozenset()  # What this rank has its own of.
    refused: dict[str, str] = field(
        default_factory=dict
    )  # What ranks have their own of, and why this one cannot have it.
    optimizers: dict[str, list[str]] = field(default_factory=dict)
    parameters: Orders = field(default_factory=dict)
    metadata: ModuleMetadata = field(default_factory=dict)
    places: dict[str, tuple[str, str]] = field(default_factory=dict)  # Of `tensors`; see Chunk.
    tied: set[str] = field(default_factory=set)  # Tensors of which some chunks may be tied to others'.
    whole: bool = False  # By the headers of all shards; else it may lack chunks.

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

    def unlike(self, fqn: str, like: Any) -> list[str]:
        """How the value that an fqn's replaces is of another class, which cannot take it."""
        _, reader = self._walk(fqn, lambda _kind, like, _name, _strict: like, like, False)
        return [self._readable(fqn, one) for one in reader.differ]

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


class Rest(NamedTuple):
    """What rank 0's text says of the other shards."""

    tensors: dict[str, Path]
    values: dict[int, dict[str, Path]]  # By the rank whose text has them.
    tied: set[str]  # Tensors of which some chunks may be tied.


class Text(NamedTuple):
    """What one rank's text says."""

    paths: dict[str, Path]
    values: dict[str, Any]
    pickled: set[str]
    ties: list[tuple[str, tuple[int, ...], str]]
    dtypes: dict[str, str]
    own: frozenset[str]
    beside: dict[str, Any]  # See merged.
    rest: Rest | None


def text_of(details: Mapping[str, Any], given: Mapping[str, str]) -> Text:
    if "dcp" not in given:
        raise InvalidArgument(
            f"{details['path']} was not saved through cairn.dcp: read it with Checkpointer.restore or load"
        )
    with well_formed(f"{details['path']}: its DCP items"):
        match items := _core.parse_tree(given["dcp"], ["t"], MAX_LEVELS, True):
            case {"version": int(version)} if version > _VERSION:
                raise Unsupported(f"{details['path']}: DCP items of version {version}, this Cairn reads {_VERSION}")
            case {
                "version": int(version),
                "paths": dict(paths),
                "values": dict(nodes),
                "pickled": list(pickled),
                "tied": ties,
            }:
                return Text(
                    {fqn: path_of(path) for fqn, path in paths.items()},
                    nodes,
                    set(pickled),
                    [tie_of(*tie) for tie in ties],
                    dtypes_of(items.get("dtypes", {})),
                    own_of(items.get("own", []), paths),
                    {
                        "optimizers": optimizers_of(items.get("optimizers", {})),
                        "parameters": orders_of(items.get("parameters", {})),
                        "metadata": metadata_in(items.get("metadata", {})),
                    },
                    Rest(*rest_of(items["rest"])) if "rest" in items else None,
                )
            case _:
                raise ValueError("expected version, paths, values, pickled and tied")


def read_items(details: Mapping[str, Any], rank: int = 0, world: int = 1) -> StoredItems:
    """Reads them from the engine's details of a checkpoint, for rank `rank` of `world`. InvalidArgument if it was not
    saved through cairn.dcp."""
    texts = {number: text_of(details, given) for number, given in enumerate(details["values"])}
    stored = gather_items(details, texts, details["tensors"], rank, world)
    stored.whole = True
    return stored


def gather_items(
    details: Mapping[str, Any], texts: Mapping[int, Text], rows: Iterable[Any], rank: int, world: int
) -> StoredItems:
    """The same of some ranks' texts, and of the rows of some files' tensors."""
    saved = details["world"]
    own = texts[rank].own if world == saved and rank in texts else frozenset()
    refused = _refused(details["path"], texts, own, rank, world, saved)
    stored = StoredItems({}, {}, {}, set(), {}, rank, own, refused, **merged(text.beside for text in texts.values()))
    dtypes: dict[str, str] = {}
    for number, text in texts.items():
        hidden = refused.keys() | (own if number != rank else ())
        stored.paths.update(_without(text.paths, hidden))
        stored.values.update(_without(text.values, hidden))
        stored.pickled.update(text.pickled - hidden)
        dtypes.update(_without(text.dtypes, hidden))
    own_names = {below(fqn, rank): fqn for fqn in own}
    for name, dtype, shape, _, file, holder, part in rows:
        logical, size, offset = part or (None, shape, (0,) * len(shape))
        chunk = Chunk(dtype, tuple(shape), tuple(offset), logical, tuple(size), name, (file, holder or name))
        named = logical or name
        fqn = named.removesuffix(BELOW) if BELOW in named[:-1] else named
        if part is None and name in own_names:
            fqn = own_names[name]
        elif name_of(fqn) != named or fqn in own:  # An array in a value, or not this rank's.
            fqn = ""
        if fqn:
            chunk = _as_dtype(chunk, dtypes[fqn]) if fqn in dtypes else chunk
            stored.chunks.setdefault(fqn, []).append(chunk)
        if part is None:
            stored.tensors[name] = Stored(dtype, tuple(shape))
            stored.places[name] = (file, holder or name)
    _add_ties(stored, [tie for text in texts.values() for tie in text.ties])
    return stored


def _without(named: dict[str, T], hidden: Collection[str]) -> dict[str, T]:
    return {fqn: one for fqn, one in named.items() if fqn not in hidden} if hidden else named


def _refused(
    path: str, texts: Mapping[int, Text], own: frozenset[str], rank: int, world: int, saved: int
) -> dict[str, str]:
    """What ranks have their own of and this rank cannot have, by name, with the reason."""
    names = sorted(frozenset().union(*(text.own for text in texts.values())) - own)
    if not names:
        return {}
    if world == saved:
        why = f"rank {rank} has saved none of its own"
    else:
        why = f"{counted(saved, 'rank')} saved it and {counted(world, 'rank')} would load it"
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
        stored.tied.add(fqn)
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
