"""A load of cairn.dcp without DCP's plan.

Each rank knows from its DTensors which parts it wants, and finds them in the checkpoint (see found.py). The ranks agree as
in any restore (src/api/shared_restore.h): rank 0 chooses the checkpoint, and nothing is written before all have planned.
Then they tell each other which names they load: what no rank loads is told, or refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial as partially
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.utils import find_state_dict_object
from torch.distributed.tensor import DTensor

from .. import _core
from .._checkpointer import Checkpointer
from .._errors import Error, FailedPrecondition, InvalidArgument, NotFound
from .._tree.casts import allows_loss
from .._tree.tensors import current_streams
from .containers import give_metadata
from .found import Found, find_all, find_some
from .items import memory_of
from .left_out import tell_left_out
from .optimizers import optimizers_in, state_kept
from .plain_values import VALUE
from .planners import LoadPlanner, naming, refuse_pickled
from .reader import of_dcp
from .reads import Reads
from .stored import StoredItems
from .targets import Goal, goal_of, refuse_copied_parts

_DIGEST = 16  # Bytes.


def load_state(
    checkpointer: Checkpointer,
    state: Any,
    step: int | None = None,
    *,
    folder: str = "",
    strict: bool,
    partial: bool,
    cast: str | None,
    alone: bool,
    parts: bool = False,
) -> None:
    """See direct.load_into. The ranks of the Checkpointer call it together, unless `alone`. What is refused on one rank is
    refused on all."""
    reading = checkpointer._engine.reading
    try:
        allow_loss = allows_loss(cast)
        keys = sorted(state, key=str)  # The same order on all ranks: an object may use collectives.
        taken = {key: state[key].state_dict() if isinstance(state[key], Stateful) else state[key] for key in keys}
        load = _Load(checkpointer, state, taken, folder, allow_loss, strict, partial, alone, parts)
    except BaseException as error:
        if not alone:
            reading.refuse(error, step, folder)
        raise
    with state_kept(state, allow_loss):
        with _no_start(checkpointer, folder, step):
            reading.restore_planned(step, folder, load.plan, alone)
        load.end()
        for key in keys:
            if key not in state:
                continue
            if isinstance(state[key], Stateful):
                state[key].load_state_dict(taken[key])
            else:
                state[key] = taken[key]


def items_in(checkpointer: Checkpointer, folder: str, step: int | None, wanted: Collection[str] | None) -> StoredItems:
    """The items of a checkpoint, as load_state chooses it: the paths of all, and what is `wanted` (None: all)."""
    reading, place = checkpointer._engine.reading, (checkpointer.rank, checkpointer.world)
    with reading.counted(whole=False), _no_start(checkpointer, folder, step):
        chosen = reading.choose(step, folder)
        with chosen["hold"]:
            inspect = partially(reading.inspect_part, chosen)
            found = None if wanted is None else find_some(chosen, inspect, wanted, *place)
            return (found or find_all(reading.inspect_chosen(chosen), *place)).items


@contextlib.contextmanager
def _no_start(checkpointer: Checkpointer, folder: str, step: int | None) -> Iterator[None]:
    """A checkpoint of DCP's own in its place is not the first start."""
    try:
        yield
    except NotFound as error:
        raise (None if folder else of_dcp(checkpointer.root, step)) or error from None


class _Load:
    """One rank's load."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        state: Any,
        taken: dict[str, Any],
        folder: str,
        allow_loss: bool,
        strict: bool,
        partial: bool,
        alone: bool,
        parts: bool,
    ) -> None:
        self._engine, self._folder = checkpointer._engine, folder
        self._rank, self._world = checkpointer.rank, checkpointer.world
        self._group = self._world > 1 and not alone
        self._allow_loss, self._strict, self._parts = allow_loss, strict, parts
        self._optimizers = optimizers_in(state)
        self._given = {} if type(state) is dict else state
        self._planner = LoadPlanner(allow_partial_load=partial)
        self._planner.set_up_planner(taken)
        self._values: dict[str, Any] = {}

    @property
    def _flat(self) -> dict[str, Any]:
        flat: dict[str, Any] = self._planner.state_dict
        return flat

    def plan(self, chosen: dict[str, Any]) -> _core.ReadPlan:
        """Changes nothing. InvalidArgument, with the names, for what must not be loaded."""
        self._where = chosen["path"]
        inspect = partially(self._engine.reading.inspect_part, chosen)
        try:
            found = find_some(chosen, inspect, self._flat, self._rank, self._world)
            if found is not None:
                return self._planned(chosen, found)
        except Error:
            pass  # All headers say it, and name everything.
        return self._planned(chosen, find_all(self._engine.reading.inspect_chosen(chosen), self._rank, self._world))

    def _planned(self, chosen: dict[str, Any], found: Found) -> _core.ReadPlan:
        stored, flat = found.items, self._flat
        self._planner.check_fits(partially(_shape_of, stored))
        names = [fqn for fqn in flat if fqn in stored.values or fqn in stored.pickled]
        for fqn in names:
            if fqn in stored.pickled:
                refuse_pickled(fqn)
        goals = [*goals_of(stored, {fqn: one for fqn, one in flat.items() if fqn in stored.chunks})]
        read = partially(self._engine.reading.read_views, chosen, resume=False, folder=self._folder)
        reads = Reads(stored, self._where, goals, names, flat, self._optimizers, self._allow_loss, self._strict, read)
        self._found, self._reads, self._names = found, reads, names
        targets = self._engine.reading.targets_of(reads.views)
        return (
            targets,
            current_streams(targets.cuda_devices),
            chosen["world"] == self._world,
            self._page_cache(goals),
            self._begin,
            self._finish,
        )

    def _page_cache(self, goals: list[Goal]) -> bool | None:
        """Whether other ranks of this node read much of the same: what is replicated, or other columns of the same rows."""
        if not self._group:
            return None
        if self._engine.core.stats()["ranks_of_node"] <= 1:
            return False
        sizes = [(goal.target.nbytes, _is_shared(goal, self._flat[goal.fqn])) for goal in goals]
        return bool(0 < sum(size for size, _ in sizes) <= 3 * sum(size for size, shared in sizes if shared))

    def _begin(self) -> None:
        """Every rank has planned, and none has written yet."""
        said = [self._note()]
        if self._group:
            said = self._engine.ranks.exchange("dcp load", said[0])
        self._tell_left_out(said)
        self._reads.note_writes()

    def _note(self) -> bytes:
        """Which of the checkpoint's names this rank loads: a bit for each that all know; of its own, by name, what it leaves
        and what it loads."""
        names, items = sorted(self._found.names), self._found.items
        bits = int("".join("1" if fqn in self._flat else "0" for fqn in names) or "0", 2)
        left = {fqn: items.paths[fqn] for fqn in items.own if fqn not in self._flat}
        own = json.dumps([left, [*items.own & self._flat.keys()]])
        return _digest(names) + bits.to_bytes(len(names) // 8 + 1, "big") + own.encode()

    def _tell_left_out(self, said: list[bytes]) -> None:
        names = sorted(self._found.names)
        end = _DIGEST + len(names) // 8 + 1
        bits, paths = 0, {**self._found.names}
        loaded: set[str] = set()
        for rank, one in enumerate(said):
            if one[:_DIGEST] != _digest(names):
                raise FailedPrecondition(f"{self._where}: rank {rank} finds other names in it than rank {self._rank}")
            bits |= int.from_bytes(one[_DIGEST:end], "big")
            left, taken = json.loads(one[end:])
            paths.update(left)
            loaded.update(taken)
        loaded.update(fqn for fqn, bit in zip(names, f"{bits:0{len(names)}b}", strict=False) if bit == "1")
        tensors = paths.keys() - self._found.values
        quiet = self._group and self._rank > 0
        tell_left_out(self._where, paths, tensors, loaded, paths, self._strict, quiet=quiet, parts=self._parts)

    def _finish(self) -> None:
        """All is read."""
        self._reads.convert()
        for fqn in self._names:
            self._values[fqn] = self._found.items.value(fqn, self._reads.arrays, self._flat.get(fqn))

    def end(self) -> None:
        """And on all ranks."""
        self._reads.tell()
        give_metadata(self._found.items.metadata, self._where, self._planner.original_state_dict, self._given)
        for fqn, value in self._values.items():
            self._planner.load_value(fqn, value)


def _digest(names: list[str]) -> bytes:
    return hashlib.sha256("\0".join(names).encode()).digest()[:_DIGEST]


def _shape_of(stored: StoredItems, fqn: str) -> Any:
    if fqn in stored.refused:
        raise InvalidArgument(stored.refused[fqn])
    if fqn in stored.values or fqn in stored.pickled:
        return VALUE
    return stored.chunks_of(fqn)[0].size if fqn in stored.paths else None


def goals_of(stored: StoredItems, flat: Mapping[str, Any]) -> Iterator[Goal]:
    """What fills the tensors of a flat state dict."""
    offsets: dict[Any, tuple[int, ...]] = {}  # Of DTensors, by layout: torch takes a quarter of a millisecond for each.
    for fqn, held in flat.items():
        if type(held) in (torch.Tensor, torch.nn.Parameter) and not held.is_nested:
            yield from _goals(stored, fqn, held.detach(), (0,) * held.dim())
            continue
        if isinstance(held, DTensor):
            if held.device_mesh.get_coordinate() is None:
                continue
            with torch.no_grad():  # Else each is a node of autograd's.
                local = held.to_local()
            # The caller's tensors keep the mesh alive.
            key = id(held.device_mesh), held.placements, held.shape, local.shape
            if key in offsets:
                yield from _goals(stored, fqn, local.detach(), offsets[key])
                continue
        with naming({fqn: held}, lambda state: [*map(_create_chunk_list, state.values())]):
            chunks = _create_chunk_list(held)
        for chunk in chunks:
            offset = tuple(chunk.offsets)
            target = find_state_dict_object({fqn: held}, MetadataIndex(fqn, chunk.offsets)).detach()
            if tuple(target.shape) != tuple(chunk.sizes):
                raise InvalidArgument(f'"{fqn}": planned as {[*chunk.sizes]}, found {[*target.shape]}')
            if isinstance(held, DTensor) and len(chunks) == 1 and memory_of(target) == memory_of(local.detach()):
                offsets[key] = offset
            yield from _goals(stored, fqn, target, offset)


def _goals(stored: StoredItems, fqn: str, target: Any, offset: tuple[int, ...]) -> Iterator[Goal]:
    """What fills a target, which is at this offset of the whole."""
    chunks, shape = stored.chunks_of(fqn), tuple(target.shape)
    if 0 in shape:
        return
    for chunk in chunks:
        if chunk.offset == offset and chunk.shape == shape:
            yield goal_of(fqn, target, chunk)
            return
    if fqn not in stored.tied:
        # The engine finds the chunks, also those of which this rank does not know.
        whole = replace(chunks[0], offset=(0,) * len(shape), shape=chunks[0].size)
        goal = goal_of(fqn, target, whole, offset, shape)
        yield goal if whole.logical is None else replace(goal, region=(fqn, offset, shape))
        return
    refuse_copied_parts(fqn, target, chunks[0].shape)
    left = target.numel()
    for chunk in {chunk.offset: chunk for chunk in chunks}.values():
        box = [
            (max(a, b), min(a + n, b + m)) for a, n, b, m in zip(offset, shape, chunk.offset, chunk.shape, strict=True)
        ]
        lengths = [end - begin for begin, end in box]
        if min(lengths, default=1) > 0:
            part = target
            for i, (begin, _) in enumerate(box):
                part = part.narrow(i, begin - offset[i], lengths[i])
            left -= part.numel()
            yield goal_of(fqn, part, chunk, [a - b for (a, _), b in zip(box, chunk.offset, strict=True)], lengths)
    if left:
        raise InvalidArgument(f'"{fqn}": the checkpoint lacks {left} of the {target.numel()} elements at {[*offset]}')


def _is_shared(goal: Goal, held: Any) -> bool:
    """Whether the layout says that other ranks read it too, or other columns of its rows."""
    if not isinstance(held, DTensor):
        return type(held) in (torch.Tensor, torch.nn.Parameter)
    over = [one for i, one in enumerate(held.placements) if held.device_mesh.size(i) > 1]
    as_saved = goal.region[0] != goal.fqn
    return any(one.is_replicate() for one in over) or (not as_saved and any(getattr(one, "dim", 0) for one in over))
