"""DCP's planners without pickle. See cairn.dcp."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._sharded_tensor_utils import _flatten_sharded_tensors
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import _init_state_dict
from torch.distributed.tensor import DTensor

from .._errors import Error, InvalidArgument, Unsupported
from .._tree.paths import kind_name, listed, type_name
from .blocks import refuse_scattered
from .containers import ModuleMetadata, containers, metadata_of, refuse_fixed
from .places import Places
from .plain_values import VALUE, Checker, check_storable
from .shares import check_plans

_log = logging.getLogger("cairn")


class SavePlanner(DefaultSavePlanner):
    """DCP's default planner without pickle: a value that typed JSON cannot keep is refused by name, before a byte is
    written. Works only with `StorageWriter`."""

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        self.of_modules: ModuleMetadata = metadata_of(state_dict)
        _set_up(self, state_dict)
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        refuse_scattered(self.state_dict)
        with naming(self.state_dict, lambda state: create_default_local_save_plan(state, True)):
            plan = super().create_local_plan()
        checker = Checker()
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                checker.form_of(self.lookup_object(item.index), item.index.fqn)
        return plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        check_plans([plan.items for plan in all_plans])  # DCP's own checks name nothing.
        return super().create_global_plan(all_plans)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type == WriteItemType.BYTE_IO:
            raise Unsupported(f'"{write_item.index.fqn}": cairn.dcp.SavePlanner writes through cairn.dcp.StorageWriter')
        return object


class LoadPlanner(DefaultLoadPlanner):
    """DCP's default planner without unpickling. Works only with `StorageReader`.

    What the state to load into may not be (see `StorageReader`) is refused on all ranks, before any of them reads."""

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        for place, held in containers(state_dict):
            refuse_fixed(place, held)
        _set_up(self, state_dict)
        self.original_state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator
        self._places = Places(state_dict)
        # DCP's, given all of the state, makes None of what it does not know, such as a deque.
        for fqn, one in [*self.state_dict.items()]:
            if isinstance(one, torch.Tensor) and one.is_meta:
                with naming(made := {fqn: one}, _init_state_dict):
                    _init_state_dict(made)
                self.state_dict[fqn] = made[fqn]
                self._places.put(self.mappings.get(fqn, (fqn,)), made[fqn])

    def create_local_plan(self) -> LoadPlan:
        # DCP's takes a checkpoint for one of torch 2.3 if this rank lacks a key: of a ShardedTensor without a part here.
        assert self.metadata is not None
        saved = self.metadata.state_dict_metadata
        self.check_fits(lambda fqn: _shape_of(saved.get(fqn)))
        plan_of = partial(create_default_local_load_plan, metadata=self.metadata, strict=not self.allow_partial_load)
        with naming(self.state_dict, plan_of):
            plan = plan_of(self.state_dict)
        if self.metadata.storage_data is not None:  # The StorageReader.
            self.metadata.storage_data.checked(plan, self)
        return plan

    def check_fits(self, shape_of: Callable[[str], Sequence[int] | str | None]) -> None:
        """InvalidArgument that names what this rank's state has and the checkpoint lacks or has in another shape. DCP's
        own checks name one of them. `shape_of` gives a name's shape in the checkpoint, VALUE, or None for what it lacks."""
        missing: list[str] = []
        unlike: list[str] = []
        others: list[str] = []
        for fqn, value in self.state_dict.items():
            saved = shape_of(fqn)
            if saved is None:
                missing.append(fqn)
            elif saved is not VALUE:
                if not isinstance(value, torch.Tensor):
                    others.append(f"{fqn} ({type_name(value)})")
                elif _is_nested(value) or (type(value) is torch.Tensor and value.layout != torch.strided):
                    others.append(f"{fqn} (a {'nested' if _is_nested(value) else value.layout} tensor)")
                elif tuple(saved) != tuple(value.size()):
                    unlike.append(f"{fqn} (saved {[*saved]}, current {[*value.size()]})")
        told = []
        if missing and self.allow_partial_load and len(missing) < len(self.state_dict):
            _log.warning("kept as they are, because the checkpoint lacks them: %s", listed(missing, 5))
        elif missing:
            told.append(f"Missing key in checkpoint state_dict: {listed(missing, 5)}")
        if unlike:
            told.append(f"Size mismatch: {listed(unlike, 5)}")
        if others:
            told.append(f"No tensor to load the checkpoint's into: {listed(others, 5)}")
        if told:
            raise InvalidArgument("; ".join(told))

    def load_value(self, fqn: str, value: Any) -> None:
        """Puts a plain value in its place in the state dict."""
        if self.flatten_state_dict:
            self._places.put(self.mappings[fqn], value)
        else:
            self.state_dict[fqn] = value

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        refuse_pickled(read_item.storage_index.fqn)


def refuse_pickled(fqn: str) -> NoReturn:
    raise Unsupported(
        f'"{fqn}" was pickled by the planner that saved it: if you trust whoever wrote the checkpoint, load it with DCP\'s '
        "DefaultLoadPlanner"
    )


def _shape_of(saved: Any) -> Sequence[int] | str | None:
    return saved.size if isinstance(saved, TensorStorageMetadata) else saved and VALUE


def _is_nested(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, ShardedTensor) and tensor.is_nested  # That raises for what it does not know.


@contextlib.contextmanager
def naming(state: dict[str, Any], plan: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
    """InvalidArgument, with the name, in place of an error of torch's, which names nothing: for the first item of the flat
    state which `plan` fails, too."""
    try:
        yield
    except Exception as failure:
        for fqn, held in state.items() if not isinstance(failure, Error) else ():
            try:
                plan({fqn: held})
            except Exception as error:  # noqa: BLE001 (of torch's own code)
                is_partial = isinstance(held, DTensor) and any(one.is_partial() for one in held.placements)
                if not isinstance(held, DTensor):
                    check_storable(held, fqn)  # It knows the way out.
                raise InvalidArgument(
                    f'"{fqn}": torch.distributed.checkpoint cannot plan {kind_name(held)}: {error}'
                    + "; redistribute it first, as to Replicate()" * is_partial
                ) from failure
        raise


def _set_up(planner: Any, state: dict[str, Any]) -> None:
    """Flattens a state for a planner, and only then the sharded tensors in it. For these DCP's planners make all dicts and
    lists anew, with text for keys and without what is empty, and so find other names at a load than at the save."""
    if planner.flatten_state_dict:
        try:
            state, planner.mappings = flatten_state_dict(state)
        except Exception as error:  # Such as of two keys that are one as text.
            raise InvalidArgument(f"torch.distributed.checkpoint cannot flatten the state: {error}") from error
    sharded = {fqn: one for fqn, one in state.items() if isinstance(one, ShardedTensor)}
    if planner.flatten_sharded_tensors and sharded:
        rest = {fqn: one for fqn, one in state.items() if fqn not in sharded}
        state = rest | _flatten_sharded_tensors(sharded)
    planner.state_dict = state
