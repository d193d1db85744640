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
  parameters key -> orders of such an optimizer's parameters, if its state goes by number: lists of their fqns, null where
            the state dict has none. Ranks may have an order each. Readers may ignore it.
  metadata  place of a module's state dict -> its `_metadata`, without what is {"version": 1}; see containers.py
  own       fqns that other ranks may have too, with other contents: only as many ranks can read them, each its own
  rest      in shard 0, if the ranks divided what they hold without DCP's plan: what the other shards hold, and its text does
            not name. tensors: fqn -> its place, of those with elements; values: rank -> fqn -> its place; tied: fqns that
            may be in `tied` of some rank. It names nothing of `own`. The text then has the `optimizers`, `parameters`
            and `metadata` of all ranks. Readers may ignore it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.distributed.tensor import DTensor

from .._errors import InvalidArgument
from .._protect import held_tensors
from .._ranks.replicas import matches
from .._tree.paths import is_unicode, kind_name, readable, shown
from .._tree.tensors import TensorCollector, dtype_name
from .._tree.values import AS_BYTES, bytes_of_element
from .._tree.writer import Names, Writer
from .containers import ModuleMetadata
from .optimizers import Optimizers, Orders, add_orders, class_names, orders_in
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


@dataclass(frozen=True)
class Piece:
    """One tensor to write: all of `fqn`, or the chunk of it at `offset`."""

    fqn: str
    tensor: Any
    offset: tuple[int, ...] | None = None
    size: tuple[int, ...] = ()  # Of the whole.
    layout: str = ""  # See Held.
    of: Any = None  # The DTensor of which it is the local tensor.

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

    @property
    def whole(self) -> Sequence[int]:
        """The shape of the whole."""
        return self.tensor.shape if self.offset is None else self.size


Paths: TypeAlias = Mapping[str, Sequence[str | int]]


class Rest(NamedTuple):
    """What rank 0 tells of all shards, so that a load finds what it wants without their headers. See the text."""

    tensors: Paths
    values: dict[int, Paths]
    tied: list[str]
    beside: dict[str, Any]


def merged(beside: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What ranks hold beside their items, of all of them."""
    optimizers: dict[str, list[str]] = {}
    parameters: Orders = {}
    metadata: ModuleMetadata = {}
    for one in beside:
        for key, kinds in one.get("optimizers", {}).items():
            optimizers[key] = sorted({*optimizers.get(key, ()), *kinds})
        add_orders(parameters, one.get("parameters", {}))
        for place, of in one.get("metadata", {}).items():
            metadata.setdefault(place, {}).update(of)
    return {"optimizers": optimizers, "parameters": parameters, "metadata": metadata}


@dataclass
class Items:
    """What one rank writes."""

    pieces: list[Piece] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    pickled: dict[str, bytes] = field(default_factory=dict)
    paths: Paths = field(default_factory=dict)
    flat: Mapping[str, Any] = field(default_factory=dict)  # The state dict that it was made of, by fqn.
    forms: dict[str, Form] = field(default_factory=dict)  # Of the values, by fqn.
    own: frozenset[str] = frozenset()  # What each rank keeps its own of.
    rank: int = 0
    optimizers: dict[str, list[str]] = field(default_factory=dict)  # See the text.
    parameters: Orders = field(default_factory=dict)
    metadata: ModuleMetadata = field(default_factory=dict)
    rest: Rest | None = None
    _checker: Checker = field(default_factory=Checker)

    def note_optimizers(self, optimizers: Optimizers, flat: Mapping[str, Any]) -> None:
        """Those of the state dict, of which `flat` has the state."""
        self.optimizers, self.parameters = class_names(optimizers), orders_in(optimizers, flat)

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
            if not self._checker.takes(piece.tensor):
                self._checker.form_of(piece.tensor, piece.fqn)

    def held(self) -> list[Held]:
        kinds: dict[Any, tuple[int, str]] = {}  # There may be 100,000 tensors, of a few kinds.

        def kind_of(tensor: Any, size: tuple[int, ...]) -> tuple[int, str]:
            key = tensor.dtype, tensor.shape, size
            if (kind := kinds.get(key)) is None:
                kinds[key] = kind = _size_of(tensor), described(*key)
            return kind

        return [
            (piece.key, *kind_of(piece.tensor, piece.size), piece.layout)
            for piece in self.pieces
            if piece.fqn not in self.own
        ] + held_values({fqn: form for fqn, form in self.forms.items() if fqn not in self.own})

    def parts(self) -> list[tuple[Key, str]]:
        return [
            (piece.key, described(piece.tensor.dtype, piece.tensor.shape, piece.size))
            for piece in self.pieces
            if piece.offset is not None
        ]

    def beside(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers, "parameters": self.parameters, "metadata": self.metadata}

    def tied(self) -> list[str]:
        """The parts of tensors that lie in one memory."""
        held: dict[Any, str] = {}
        tied: set[str] = set()
        for piece in self.pieces:
            at = piece.tensor.data_ptr() if piece.offset is not None else 0
            if at and (holder := held.setdefault((at, piece.offset), piece.fqn)) != piece.fqn:
                tied |= {holder, piece.fqn}
        return sorted(tied)

    def places(self) -> tuple[Paths, Paths]:
        sized = {piece.fqn: None for piece in self.pieces if 0 not in piece.whole}
        tensors, values = (
            {fqn: self.paths.get(fqn, (fqn,)) for fqn in names if fqn not in self.own} for names in (sized, self.forms)
        )
        return tensors, values

    def keys(self) -> set[Key]:
        """Of what a planner writes: an array in a value is a part of the value."""
        pieces = {piece.key for piece in self.pieces if piece.fqn not in self.own}
        return pieces | {(fqn, ()) for fqn in (*self.forms, *self.own)}

    def contents(self) -> Callable[[Key], Any]:
        """What gives the tensor, or the large array in a value, that `held` names."""
        tensors = {piece.key: piece.tensor for piece in self.pieces}
        tensors.update(large_arrays(self.forms))
        return tensors.__getitem__

    def select(self, keys: set[Key] | None, rest: Rest | None = None) -> Items:
        """The items with these keys, and this rank's own; None: all. `rest` is rank 0's."""
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
            rest=rest,
            **(self.beside() if rest is None else rest.beside),
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
        sink.core.count_by(_counters_of(self.pieces))
        nodes = [
            f"{json.dumps(fqn)}:{writer.node(value, below(fqn, self.rank if fqn in self.own else None))}"
            for fqn, value in self.values.items()
        ]
        writer.check_length(*nodes, shown=_shown)
        more: dict[str, Any] = {"paths": self.paths, "pickled": [*self.pickled], "tied": tied}
        if any(
            str(dtype).removeprefix("torch.") in AS_BYTES for dtype in {piece.tensor.dtype for piece in self.pieces}
        ):
            dtypes = {piece.fqn: dtype_name(piece.fqn, piece.tensor) for piece in self.pieces}
            more["dtypes"] = {fqn: dtype for fqn, dtype in dtypes.items() if dtype in AS_BYTES}
        if self.optimizers:
            more["optimizers"] = self.optimizers
        if self.parameters:
            more["parameters"] = self.parameters
        if self.metadata:
            more["metadata"] = self.metadata
        version = max(writer.version, 2 if "dtypes" in more else 1, 3 if self.own else 1)
        if self.own:
            more["own"] = sorted(self.own)
        if self.rest is not None:
            tensors = {fqn: path for fqn, path in self.rest.tensors.items() if fqn not in self.paths}
            more["rest"] = {"tensors": tensors, "values": self.rest.values, "tied": self.rest.tied}
        text = json.dumps(more, separators=(",", ":"))
        return f'{{"version":{version},"values":{{{",".join(nodes)}}},{text[1:]}'

    def _name_of(self, fqn: str) -> str:
        return below(fqn, self.rank) if fqn in self.own else name_of(fqn)

    def _refuse_names(self) -> None:
        tensors = [*(piece.fqn for piece in self.pieces), *self.pickled]
        if "" not in tensors and is_unicode(" ".join([*tensors, *self.paths])):
            return  # The usual case, made fast: there may be 100,000 names.
        for fqn in self.paths:
            if not is_unicode(fqn) or (fqn in tensors and not fqn):
                raise InvalidArgument(f"{fqn!r} cannot be the name of a tensor: expected Unicode, not empty")


def _counters_of(pieces: list[Piece]) -> dict[int, tuple[Any, ...]]:
    """By the id of a DTensor's local tensor, what else counts writes into its memory. torch counts each where it is made: at
    a DTensor, or at a local tensor. A state dict has DTensors of its own, which count with the module's; their local tensors
    do not."""
    counters: dict[int, list[Any]] = {}  # By address.
    shards = [(piece.tensor, piece.tensor.data_ptr(), piece.of) for piece in pieces if piece.of is not None]
    for tensor, address, of in shards:
        if (known := counters.get(address)) is None:
            counters[address] = [of]
        else:
            known += of, tensor
    for held in held_tensors() if counters else ():
        if isinstance(held, DTensor) and (known := counters.get(held._local_tensor.data_ptr())) is not None:
            known.append(held._local_tensor)
    return {id(tensor): tuple(counters[address]) for tensor, address, _ in shards}


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
        logical = name = name_of(piece.fqn)
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


def _shown(name: str) -> str:
    """The path, for messages, of what is in a value."""
    fqn, _, within = name.partition(BELOW)
    return readable("/".join([fqn, *within.split("/")[1:]]))


def name_of(fqn: str) -> str:
    """The name of a tensor in the file."""
    return fqn + BELOW if BELOW in fqn else fqn


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
