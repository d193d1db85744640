"""Saves a state dict in the format of cairn.dcp without DCP's own planning, and loads it. For the frameworks' plugs.

The ranks agree once on who writes what several of them hold (see shares.py), by the Checkpointer's own connections.
So no process group is needed, no thread, and several saves may be in flight.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful

from .._checkpointer import Checkpointer
from .._errors import Corrupt, NotFound
from .._protect import note_holder
from .._save import Save
from .._tree.taken import copied, items_of
from .._tree.tensors import TensorCollector, torch_dtype
from .compare import BUFFER
from .containers import made_with_metadata, metadata_of
from .failures import own_errors
from .frozen import Frozen
from .garbage import no_collections
from .items import Items
from .loading import items_in, load_state
from .optimizers import Optimizers, optimizers_in, state_kept
from .planners import LoadPlanner, SavePlanner
from .reader import StorageReader
from .stored import StoredItems
from .uploads import Uploads
from .writer import _items_of_state


def start_save(
    checkpointer: Checkpointer,
    step: int,
    state: Mapping[str, Any],
    *,
    replace: bool = False,
    check: Callable[[], None] = lambda: None,
    frozen: Frozen | None = None,
) -> Save:
    """Starts a save of what dcp.save would write; as Checkpointer.save, whose errors it raises.

    Every rank calls it, for the same steps in the same order. Objects with state_dict, at the top, are asked for it. A
    value that typed JSON cannot keep is refused by name: nothing is pickled. What `check` raises on one rank, every rank
    raises.
    """

    optimizers: Optimizers = {}

    def gather() -> tuple[dict[str, Any], dict[str, Any]]:
        check()
        keys, values = items_of(state, "")
        optimizers.update(optimizers_in(dict(zip(keys, values, strict=True))))
        for value in values:
            if isinstance(value, torch.nn.Module):
                note_holder(value)
        taken = [value.state_dict() if isinstance(value, Stateful) else value for value in values]
        return dict(zip(keys, taken, strict=True)), {}

    given = {} if type(state) is dict else state
    return start_save_of(checkpointer, step, gather, replace=replace, optimizers=optimizers, given=given, frozen=frozen)


def start_save_of(
    checkpointer: Checkpointer,
    step: int,
    gather: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]],
    *,
    replace: bool = False,
    hold: float = 0.0,
    is_buffer: Callable[[str], bool] | None = None,
    optimizers: Optimizers | None = None,
    given: Mapping[str, Any] | None = None,
    frozen: Frozen | None = None,
) -> Save:
    """The same for what `gather` returns: a state dict, and values by name, which keep their dicts and lists and of which
    rank 0's are written. What `gather` raises on one rank, every rank raises. `is_buffer` tells
    the names of a module's buffers, which may differ, as BatchNorm's do: they are never compared, and one rank's are written.
    With `hold` the save waits for its release, as in `Checkpointer._start`. `given` is the caller's state dict if it is no
    plain dict: what it has beside its items is kept, or refused.
    """
    shares = Uploads.of(checkpointer).shares
    fqns: list[str] = []

    def items() -> Items:
        state, values = gather()
        with no_collections():
            return items_from(state, values)

    def items_from(state: Mapping[str, Any], values: Mapping[str, Any]) -> Items:
        metadata = metadata_of(state, given or {})
        planner = SavePlanner()
        planner.set_up_planner(copied(state), None, checkpointer.rank == 0)
        found = _items_of_state(planner, planner)
        found.metadata = metadata
        if checkpointer.rank == 0:
            for name, value in values.items():
                found.add_value(name, value)
            found.paths = {**found.paths, **{name: (name,) for name in values}}
        if is_buffer is not None:
            found.pieces = [
                dataclasses.replace(one, layout=BUFFER) if is_buffer(one.fqn) else one for one in found.pieces
            ]
        found.note_optimizers(optimizers or {}, found.flat)
        found.check_storable()
        found.keep_own(checkpointer._engine.per_rank, checkpointer.rank)
        fqns.extend(found.paths)
        return found

    def fill(sink: TensorCollector) -> list[tuple[str, str]]:
        mine = shares.select(items, step)
        with no_collections():
            text = mine.add_to(sink)
            if frozen is not None:
                frozen.add_to(sink, checkpointer, fqns)
        return [("dcp", text)]

    return checkpointer._engine.start(step, fill, replace=replace, hold=hold)


def load_into(
    source: Checkpointer | str,
    state: Any,
    step: int | None = None,
    *,
    folder: str = "",
    strict: bool = True,
    partial: bool | None = None,
    cast: str | None = None,
    group: Any = None,
    no_dist: bool = False,
    parts: bool = False,
) -> None:
    """Reads a checkpoint (None: the newest; or the one in `folder`) into the tensors and objects of `state`, as dcp.load
    does. Unpickles nothing. Every rank of `group` calls it if torch.distributed is initialised, unless `no_dist`. `strict`
    and `cast` as in `by_path.load`; `partial`, by default where not `strict`: what the checkpoint lacks stays as it is.
    `parts`: see tell_left_out. Raises what the first rank's failure is, on all."""
    how: dict[str, Any] = {"folder": folder, "strict": strict, "cast": cast, "parts": parts}
    how["partial"] = not strict if partial is None else partial
    if not isinstance(source, Checkpointer):
        with opened_to_read(source, group, no_dist) as checkpointer:
            load_into(checkpointer, state, step, group=group, no_dist=no_dist, **how)
        return
    with source._engine.reading.counted():
        place = place_in(group, no_dist)
        if place is None or place == (source.rank, source.world):
            load_state(source, state, step, alone=place is None and source.world > 1, **how)
            return
        # The ranks that load cannot agree through the Checkpointer.
        reader = StorageReader(source, step, folder=folder, cast=cast, strict=strict)
        load_planned(reader, state, LoadPlanner(allow_partial_load=how["partial"]), group=group)


def load_by(reader: StorageReader, state: Any, *, group: Any, no_dist: bool) -> None:
    """The same by a reader. One that was given a root opens it for all ranks."""
    source: Checkpointer | str = reader._checkpointer
    if not reader._resume and place_in(group, no_dist) not in (None, (0, 1)):
        source = reader._checkpointer.root
    how: dict[str, Any] = {"strict": reader._strict, "partial": False, "cast": "allow" if reader._cast else None}
    load_into(source, state, reader._step, folder=reader._folder, group=group, no_dist=no_dist, **how)


def load_planned(
    reader: Any, state: Any, planner: Any = None, *, group: Any = None, no_dist: bool = False, **options: Any
) -> None:
    """The same by DCP's own plan, with a reader."""
    own, casts = isinstance(reader, StorageReader), getattr(reader, "_cast", False)
    if own:
        reader._optimizers = optimizers_in(state)
        reader._given = {} if type(state) is dict else state
        reader._group = False if no_dist else group
    place: dict[str, Any] = {"process_group": group, "no_dist": no_dist}
    try:
        with reader.counted() if own else contextlib.nullcontext(), own_errors(), state_kept(state, casts):
            load(state, storage_reader=reader, planner=planner or LoadPlanner(), **place, **options)
    finally:
        if own:
            reader._optimizers = {}  # Its next load is of another state.
            reader.reset()  # Releases the checkpoint, also if the load was refused before it read.


def place_in(group: Any, no_dist: bool) -> tuple[int, int] | None:
    """Which rank of the process group this is, of how many. None: it is alone."""
    if no_dist or not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.get_rank(group), dist.get_world_size(group)


def opened_to_read(root: str, group: Any = None, no_dist: bool = False) -> Checkpointer:
    """Opens a root for the ranks that load from it: each of them calls this."""
    place = place_in(group, no_dist)
    ranks = None if place is None or place[1] == 1 else group or dist.group.WORLD
    try:
        return Checkpointer(root, read_only=True, group=ranks)
    except NotFound:
        raise NotFound(f"there is no checkpoint under {root}: there is no such directory") from None


def load_all(
    checkpointer: Checkpointer,
    folder: str = "",
    step: int | None = None,
    *,
    top: Container[Any] | None = None,
    together: bool = False,
) -> dict[str, Any]:
    """All of a checkpoint, as `load_into` chooses it, or what is below the keys in `top`. Each tensor is whole, on the
    CPU. Each process on its own, or, `together`, every rank."""
    with checkpointer._engine.reading.counted():
        wanted = None
        if top is not None:
            wanted = [fqn for fqn, path in items_in(checkpointer, folder, step, ()).paths.items() if path[0] in top]
        items = items_in(checkpointer, folder, step, wanted)
        flat = {fqn: _blank(items, fqn) for fqn in (items.paths if wanted is None else wanted)}
        load_into(checkpointer, flat, step, folder=folder, no_dist=not together, parts=True)
        try:
            made = unflatten_state_dict(flat, {fqn: items.paths[fqn] for fqn in flat})
            whole: dict[str, Any] = made_with_metadata(items.metadata, made)
            return whole
        except (TypeError, LookupError) as error:
            where = folder or checkpointer.root
            raise Corrupt(f"{where}: the paths of its DCP items contradict each other: {error}") from error


def _blank(items: StoredItems, fqn: str) -> Any:
    if fqn in items.values or fqn in items.pickled:
        return None
    first = items.chunks_of(fqn)[0]
    return torch.empty(first.size, dtype=torch_dtype(first.dtype))


def plain_value(items: StoredItems, name: str) -> Any:
    """A value, with None for each of its tensors."""
    return items.value(name, defaultdict(type(None)))
