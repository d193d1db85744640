"""DCP's storage reader. See cairn.dcp."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import io
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from .. import _core
from .._checkpointer import Checkpointer
from .._errors import Error, FailedPrecondition, InvalidArgument, NotFound
from .._tree.casts import allows_loss
from .._tree.tensors import torch_dtype
from .containers import give_metadata
from .items import is_step, parse_step
from .left_out import tell_left_out
from .optimizers import Optimizers
from .places import Places
from .planners import LoadPlanner
from .reads import Reads
from .stored import StoredItems, read_items
from .targets import goal_of, refuse_copied_parts
from .uploads import Uploads

_COMPARED = 64  # The largest regions of each rank, which rank 0 compares: few enough for thousands of ranks.


class _About(NamedTuple):
    """What a plan says of its rank."""

    step: int
    attempt: str
    host: str
    largest: dict[tuple[Any, ...], int]  # See _largest.
    page_cache: bool | None = None  # Another rank of the host reads much of the same. None: nobody has compared.


class _FailedMetadata(Metadata):
    """Metadata that could not be read: its use raises the error. Some DCP releases drop what read_metadata raises."""

    def __init__(self, error: Error) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error if name == "state_dict_metadata" else AttributeError(name)


class _Names(dict[str, TensorStorageMetadata | BytesStorageMetadata]):
    """DCP's metadata by name. Whoever asks for a name that this rank cannot have gets the reason as InvalidArgument."""

    def __init__(self, found: dict[str, Any], refused: dict[str, str]) -> None:
        super().__init__(found)
        self._refused = refused

    def __contains__(self, name: object) -> bool:
        self._refuse(name)
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._refuse(name)
        return super().get(name, default)

    def _refuse(self, name: object) -> None:
        if name in self._refused:
            raise InvalidArgument(self._refused[str(name)])


class StorageReader(storage.StorageReader):
    """Reads a checkpoint that StorageWriter wrote, at any number of ranks: `step`, or the newest.

    `source` is a Checkpointer (its next saves then continue from what was loaded), or a root. With `folder` it reads
    the checkpoint that has that path, wherever that is. Every byte that is read is verified; tensors are filled in
    place. It waits, up to close_timeout, until DCP is done with async_saves in flight and what it would read is durable.
    Raises NotFound, Corrupt, InvalidArgument, DeadlineExceeded.

    A tensor of another dtype than the checkpoint's is converted if it holds every value of that, which is logged. Else
    it is refused, unless `cast` is "allow".

    The log names what only the checkpoint has. If that is state of an optimizer of which the state to load into has
    something, the load is refused, unless `strict` is False. What all ranks of the load ask for counts.
    """

    def __init__(
        self,
        source: Checkpointer | str | os.PathLike[str],
        step: int | None = None,
        *,
        folder: str = "",
        cast: str | None = None,
        strict: bool = True,
    ) -> None:
        self._resume = isinstance(source, Checkpointer)
        self._checkpointer = source if isinstance(source, Checkpointer) else Checkpointer(source, read_only=True)
        self._step = step if step is None else parse_step(step)
        self._folder = folder
        self._cast, self._strict = allows_loss(cast), strict
        self._group: Any = None  # DCP's, where it is known; False: this process loads alone.
        self._details: dict[str, Any] = {}
        self._stored: StoredItems | None = None
        self._optimizers: Optimizers = {}  # Of the state to load into, where that is known.
        self._given: Any = {}  # That itself, likewise, if it is no plain dict.

    @property
    def checkpoint_id(self) -> str:
        # DCP asks for it before its first collective, and an upload in flight uses the same process group.
        Uploads.wait_before(timeout=self._checkpointer._engine.close_timeout)
        return self._folder or f"{self._checkpointer.root}, step {'latest' if self._step is None else self._step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return is_step(checkpoint_id)

    def reset(self, checkpoint_id: Any = None) -> None:
        self._release_hold()
        if checkpoint_id is not None:
            self._step = parse_step(checkpoint_id)

    def counted(self, whole: bool = True) -> contextlib.AbstractContextManager[None]:
        """See Reading.counted. DCP's own load is seen here in parts only: where this rank is refused, or reads."""
        return self._checkpointer._engine.reading.counted(whole)

    def read_metadata(self) -> Metadata:
        try:
            self._release_hold()
            with self.counted(whole=False):
                # The hold keeps retention from removing it before its data is read.
                self._details = self._checkpointer._engine.reading.inspect_all(self._step, self._folder)
                self._stored = stored = read_items(self._details, *self._place())
                metadata = _Names({fqn: _metadata_of(stored, fqn) for fqn in stored.paths}, stored.refused)
        except Error as error:
            self._release_hold()
            if isinstance(error, NotFound) and not self._folder:
                error = of_dcp(self._checkpointer.root, self._step) or error
            return _FailedMetadata(error)
        return Metadata(
            metadata,
            planner_data=stored.paths,
            storage_data=self,  # LoadPlanner asks it for what is `checked`.
            storage_meta=StorageMeta(checkpoint_id=self.checkpoint_id),
        )

    def _place(self) -> tuple[int, int]:
        """Which rank loads, of how many."""
        checkpointer = self._checkpointer
        if checkpointer.world > 1 or checkpointer._engine.writes or self._group is False:
            return checkpointer.rank, checkpointer.world  # It saves, and so its ranks are those of the checkpoints.
        if not (dist.is_available() and dist.is_initialized()):
            return 0, 1
        return dist.get_rank(self._group), dist.get_world_size(self._group)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if isinstance(metadata, _FailedMetadata):
            raise metadata.error

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        about = _About(self._details["step"], self._details["attempt"], _core.node_name(), _largest(plan))
        return dataclasses.replace(plan, storage_data=about)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        assert self._stored is not None
        with self.counted(whole=False):
            tell_left_out(
                self._details["path"],
                self._stored.paths,
                self._stored.chunks,
                {item.storage_index.fqn for plan in plans for item in plan.items},
                [fqn for fqn in self._stored.paths if not self._stored.is_empty(fqn)],
                self._strict,
            )
            said = self._said(plans)
        if len(plans) == 1:
            return plans  # Perhaps each rank loads alone.
        readers = Counter((about.host, region) for about in said.values() for region in about.largest)

        def tell(about: _About) -> _About:
            shared = sum(size for region, size in about.largest.items() if readers[about.host, region] > 1)
            return about._replace(largest={}, page_cache=0 < sum(about.largest.values()) <= 3 * shared)

        return [
            dataclasses.replace(plan, storage_data=tell(said[rank])) if rank in said else plan
            for rank, plan in enumerate(plans)
        ]

    def _said(self, plans: list[LoadPlan]) -> dict[int, _About]:
        """What the ranks' plans say, by rank, of one checkpoint. A planner may have made plans anew, without it."""
        said = {rank: plan.storage_data for rank, plan in enumerate(plans) if isinstance(plan.storage_data, _About)}
        first = min(said, default=0)
        for rank, about in said.items():
            if about[:2] != said[first][:2]:
                found = [f"rank {of} step {said[of].step}" for of in (first, rank)]
                raise FailedPrecondition(
                    f"{self._checkpointer.root}: ranks found different checkpoints, {' and '.join(found)} (different "
                    "attempts if the steps are the same): load a given step"
                )
        return said

    def checked(self, plan: LoadPlan, planner: Any) -> Reads:
        """What a plan reads. InvalidArgument if it must not. Changes nothing."""
        with self.counted(whole=False):
            return self._checked(plan, planner)

    def _checked(self, plan: LoadPlan, planner: Any) -> Reads:
        stored = self._stored
        assert stored is not None
        goals = [
            goal_of(
                of.fqn,
                planner.resolve_tensor(item).detach(),
                stored.find(of.fqn, of.offset),
                item.storage_offsets,
                item.lengths,
            )
            for item in plan.items
            for of in [item.storage_index]
            if item.type == LoadItemType.TENSOR
        ]
        for item in plan.items:
            if item.type == LoadItemType.TENSOR and hasattr(planner, "lookup_tensor"):
                refuse_copied_parts(item.storage_index.fqn, planner.lookup_tensor(item.dest_index), item.lengths)
        values = [item.storage_index.fqn for item in plan.items if item.type == LoadItemType.BYTE_IO]
        flat, where = getattr(planner, "state_dict", None) or {}, self._details["path"]
        return Reads(stored, where, goals, values, flat, self._optimizers, self._cast, self._strict, self._read_alone)

    def _read_alone(self, views: list[Any]) -> None:
        self._checkpointer._engine.reading.read_views(self._details, views, False, folder=self._folder)

    def read_data(self, plan: LoadPlan, planner: Any) -> torch.futures.Future[None]:
        try:
            with self.counted():
                return self._read_data(plan, planner)
        finally:
            self._release_hold()

    def _release_hold(self) -> None:
        if hold := self._details.get("hold"):
            hold.release()

    def _read_data(self, plan: LoadPlan, planner: Any) -> torch.futures.Future[None]:
        assert self._stored is not None
        reads = self.checked(plan, planner)
        reads.note_writes()
        page_cache = plan.storage_data.page_cache if isinstance(plan.storage_data, _About) else None
        self._checkpointer._engine.reading.read_views(
            self._details, reads.views, self._resume, folder=self._folder, page_cache=page_cache
        )
        reads.convert()
        reads.tell()
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        for item, goal in zip(tensors, reads.targets.goals, strict=True):
            planner.commit_tensor(item, goal.target)
        given = getattr(planner, "original_state_dict", {}), self._given
        give_metadata(self._stored.metadata, self._details["path"], *given)
        places = _places_of(planner)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_value(item, reads, planner, places)
                _give_back(planner, item.dest_index.fqn)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _load_value(self, item: ReadItem, reads: Reads, planner: Any, places: Places | None) -> None:
        assert self._stored is not None
        fqn = item.storage_index.fqn
        load_bytes = planner.load_bytes if places is None else partial(places.load_bytes, planner)
        if fqn in self._stored.pickled:
            load_bytes(item, io.BytesIO(reads.arrays[fqn].numpy().tobytes()))
            return
        flat = getattr(planner, "state_dict", None)  # What DCP's planners load into.
        value = self._stored.value(fqn, reads.arrays, flat.get(item.dest_index.fqn) if isinstance(flat, dict) else None)
        if isinstance(planner, LoadPlanner):
            planner.load_value(item.dest_index.fqn, value)
            return
        # DCP's planners unpickle, but these bytes were never on the disk.
        data = io.BytesIO()
        torch.save(value, data)
        data.seek(0)
        load_bytes(item, data)


def _places_of(planner: Any) -> Places | None:
    """None for LoadPlanner, which has its own, and for planners that put values elsewhere."""
    dcps = isinstance(planner, DefaultLoadPlanner) and not isinstance(planner, LoadPlanner)
    return Places(planner.original_state_dict) if dcps and planner.flatten_state_dict else None


def _give_back(planner: Any, fqn: str) -> None:
    """DCP's planners put a value into a copy of the caller's state dict if that is not flattened, but for its sharded tensors
    (their default), and nobody looks there."""
    mine, theirs = getattr(planner, "state_dict", None), getattr(planner, "original_state_dict", None)
    flat = getattr(planner, "flatten_state_dict", True)
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine is not theirs and not flat:
        theirs[fqn] = mine[fqn]


def _largest(plan: LoadPlan) -> dict[tuple[Any, ...], int]:
    """The largest regions that a rank reads, each with its number of elements. Whole rows, because ranks that read parts of the same rows mostly read the same blocks of the file."""
    regions: Iterator[tuple[Any, ...]] = (
        (
            math.prod(item.lengths),
            of.fqn,
            tuple(of.offset or ()),
            tuple(item.storage_offsets)[:1],
            tuple(item.lengths)[:1],
        )
        for item in plan.items
        for of in [item.storage_index]
        if item.type == LoadItemType.TENSOR
    )
    return {tuple(rows): size for size, *rows in heapq.nlargest(_COMPARED, regions)}


def _metadata_of(stored: StoredItems, fqn: str) -> TensorStorageMetadata | BytesStorageMetadata:
    if fqn in stored.values or fqn in stored.pickled:
        return BytesStorageMetadata()
    chunks = stored.chunks_of(fqn)
    return TensorStorageMetadata(
        TensorProperties(dtype=torch_dtype(chunks[0].dtype)),
        torch.Size(chunks[0].size),
        [ChunkStorageMetadata(torch.Size(one.offset), torch.Size(one.shape)) for one in chunks],
    )


def of_dcp(root: str, step: int | None) -> Error | None:
    """Refuses what would be taken for the first start: the root, or the step in it, is a checkpoint of DCP's own."""
    for folder in sorted(os.scandir(root), key=lambda entry: entry.name):
        number = re.search(r"[0-9]+$", folder.name)
        asked = step is None or (number is not None and int(number[0]) == step)
        if asked and os.path.exists(os.path.join(folder.path, ".metadata")):
            return InvalidArgument(
                f"{folder.path}: expected a checkpoint of Cairn, found one in DCP's own format: load it once with "
                "torch.distributed.checkpoint.load, and save it through cairn.dcp"
            )
    return None
