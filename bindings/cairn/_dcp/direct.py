"""Saves a state dict in the format of cairn.dcp without DCP's own planning, and loads it. For the frameworks' plugs.

The ranks agree once on who writes what several of them hold (see shares.py), by the Checkpointer's own connections.
So no process group is needed, no thread, and several saves may be in flight.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful

from .._checkpointer import Checkpointer
from .._errors import Corrupt
from .._save import Save
from .._tree.taken import copied, items_of
from .._tree.tensors import TensorCollector
from .classes import Classes, class_names, classes_in, state_kept
from .compare import BUFFER
from .containers import made_with_metadata, metadata_of
from .failures import own_errors
from .frozen import Frozen
from .items import Items
from .planners import LoadPlanner, SavePlanner
from .reader import StorageReader
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

    optimizers: Classes = {}

    def gather() -> tuple[dict[str, Any], dict[str, Any]]:
        check()
        keys, values = items_of(state, "")
        optimizers.update(classes_in(dict(zip(keys, values, strict=True))))
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
    optimizers: Classes | None = None,
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
        found.optimizers = class_names(optimizers or {})
        found.check_storable()
        found.keep_own(checkpointer._engine.per_rank, checkpointer.rank)
        fqns.extend(found.paths)
        return found

    def fill(sink: TensorCollector) -> list[tuple[str, str]]:
        text = shares.select(items, step).add_to(sink)
        if frozen is not None:
            frozen.add_to(sink, checkpointer, fqns)
        return [("dcp", text)]

    return checkpointer._engine.start(step, fill, replace=replace, hold=hold)


def load_into(
    source: Checkpointer | str,
    state: dict[str, Any],
    step: int | None = None,
    *,
    folder: str = "",
    strict: bool = True,
    cast: str | None = None,
) -> None:
    """Reads a checkpoint (None: the newest; or the one in `folder`) into the tensors and objects of `state`, as dcp.load
    does. Unpickles nothing. Every rank calls it if torch.distributed is initialised. `strict` and `cast` as in
    `by_path.load`. Raises what the first rank's failure is, on all."""
    reader = StorageReader(source, step, folder=folder, cast=cast, strict=strict)
    reader._optimizers = classes_in(state)
    try:
        with reader.counted(), own_errors(), state_kept(state, cast == "allow"):
            load(state, storage_reader=reader, planner=LoadPlanner(allow_partial_load=not strict))
    finally:
        reader.reset()  # Releases the checkpoint, also if the load was refused before it read.


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
    reader = StorageReader(checkpointer, step, folder=folder)
    with reader.counted():
        metadata = names_in(checkpointer, folder, step)
        paths: Mapping[str, Any] = metadata.planner_data
        flat: dict[str, Any] = {
            fqn: torch.empty(one.size, dtype=one.properties.dtype) if isinstance(one, TensorStorageMetadata) else None
            for fqn, one in metadata.state_dict_metadata.items()
            if top is None or paths[fqn][0] in top
        }
        with warnings.catch_warnings(), own_errors():
            warnings.simplefilter("ignore", UserWarning)  # That it loads in this process alone.
            load(flat, storage_reader=reader, planner=LoadPlanner(), no_dist=not together)
        try:
            made = unflatten_state_dict(flat, {fqn: paths[fqn] for fqn in flat})
            whole: dict[str, Any] = made_with_metadata(reader.modules, made)
            return whole
        except (TypeError, LookupError) as error:
            raise Corrupt(
                f"{reader.checkpoint_id}: the paths of its DCP items contradict each other: {error}"
            ) from error


def names_in(checkpointer: Checkpointer, folder: str = "", step: int | None = None) -> Metadata:
    """DCP's metadata of a checkpoint, as `load_into` chooses it: planner_data has each name's path."""
    reader = StorageReader(checkpointer, step, folder=folder)
    try:
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, True)  # Raises what read_metadata could not.
        return metadata
    finally:
        reader.reset()


def plain_value(metadata: Metadata, name: str) -> Any:
    """A value of the checkpoint of which `names_in` has told, with None for each of its tensors."""
    reader: Any = metadata.storage_data
    return reader._stored.value(name, defaultdict(type(None)))
