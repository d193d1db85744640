"""DCP's planners without pickle. See cairn.dcp."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem, WriteItemType

from .._errors import InvalidArgument, Unsupported
from .._tree.paths import listed
from .places import Places
from .plain_values import Checker
from .shares import check_plans

_log = logging.getLogger("cairn")


class SavePlanner(DefaultSavePlanner):
    """DCP's default planner without pickle: a value that typed JSON cannot keep is refused by name, before a byte is
    written. Works only with `StorageWriter`."""

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        if self.flatten_sharded_tensors and not self.flatten_state_dict:
            _refuse_other_keys(state_dict, "")

    def create_local_plan(self) -> SavePlan:
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
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._places = Places(self.original_state_dict)

    def create_local_plan(self) -> LoadPlan:
        # DCP's takes a checkpoint for one of torch 2.3 if this rank lacks a key: of a ShardedTensor without a part here.
        assert self.metadata is not None
        self._check_fits(self.metadata)
        plan = create_default_local_load_plan(self.state_dict, self.metadata, not self.allow_partial_load)
        if self.metadata.storage_data is not None:  # The StorageReader.
            self.metadata.storage_data.targets(plan, self)
        return plan

    def _check_fits(self, metadata: Metadata) -> None:
        """InvalidArgument that names what this rank's state has and the checkpoint lacks or has in another shape. DCP's
        own checks name one of them."""
        missing: list[str] = []
        unlike: list[str] = []
        for fqn, value in self.state_dict.items():
            saved = metadata.state_dict_metadata.get(fqn)
            found = getattr(value, "size", None)
            if saved is None:
                missing.append(fqn)
            elif isinstance(saved, TensorStorageMetadata) and found is not None and saved.size != found():
                unlike.append(f"{fqn} (saved {list(saved.size)}, current {list(found())})")
        told = []
        if missing and self.allow_partial_load and len(missing) < len(self.state_dict):
            _log.warning("kept as they are, because the checkpoint lacks them: %s", listed(missing, 5))
        elif missing:
            told.append(f"Missing key in checkpoint state_dict: {listed(missing, 5)}")
        if unlike:
            told.append(f"Size mismatch: {listed(unlike, 5)}")
        if told:
            raise InvalidArgument("; ".join(told))

    def load_value(self, read_item: ReadItem, value: Any) -> None:
        """Puts a plain value in its place in the state dict."""
        fqn = read_item.dest_index.fqn
        if self.flatten_state_dict:
            self._places.put(self.mappings[fqn], value)
        else:
            self.state_dict[fqn] = value

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise Unsupported(
            f'"{read_item.storage_index.fqn}" was pickled by the planner that saved it: if you trust whoever wrote '
            "the checkpoint, load it with DCP's DefaultLoadPlanner"
        )


def _refuse_other_keys(value: Any, path: str) -> None:
    """InvalidArgument for a key that is no text: DCP has made it text."""
    for key, child in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(key, str):
            raise InvalidArgument(
                f'"{path}": the key {key!r} would come back as text, because DCP looks for sharded tensors in a state that '
                "it does not flatten: give the planner flatten_state_dict=True, or flatten_sharded_tensors=False"
            )
        _refuse_other_keys(child, f"{path}.{key}" if path else key)
