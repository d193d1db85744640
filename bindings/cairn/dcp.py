"""torch.distributed.checkpoint (DCP) through Cairn: its storage writer, storage reader and planners.

    checkpointer = cairn.Checkpointer(root, group=torch.distributed.group.WORLD)
    dcp.async_save(state, storage_writer=cairn.dcp.StorageWriter(checkpointer, step), planner=cairn.dcp.SavePlanner())
    dcp.load(state, storage_reader=cairn.dcp.StorageReader(checkpointer), planner=cairn.dcp.LoadPlanner())

Every rank writes one safetensors shard, which holds its chunks of DTensors and sharded tensors and its share of what
several ranks hold alike; all of them commit together, by the engine's own protocol, and any number of ranks loads it.

Plain values are kept as typed JSON (see `_tree`), never as pickle, whatever planner is used. What that cannot keep
`SavePlanner` refuses by name; DCP's own planner pickles it, and unpickles it on load. Such bytes are marked as DCP's in
the checkpoint, and `LoadPlanner` refuses them: a checksum says that a file is whole, not who wrote it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from . import _dcp_items, _tensors
from ._checkpointer import Checkpointer
from ._dcp_items import Items, Piece, Shares, Stock
from ._errors import Error, FailedPrecondition, InvalidArgument, Unsupported
from ._save import Save

try:
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise ImportError(f"found {torch.__version__}")
    from torch.distributed.checkpoint import state_dict_saver, storage
    from torch.distributed.checkpoint._traverse import set_element
    from torch.distributed.checkpoint.default_planner import (
        DefaultLoadPlanner,
        DefaultSavePlanner,
        create_default_local_save_plan,
    )
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import (
        LoadItemType,
        LoadPlan,
        ReadItem,
        SavePlan,
        WriteItem,
        WriteItemType,
    )
    from torch.distributed.checkpoint.staging import AsyncStager
    from torch.distributed.tensor import DTensor
except ImportError as error:
    raise ImportError(f"cairn.dcp needs torch 2.7 or newer: {error}") from error

__all__ = ["LoadPlanner", "SavePlanner", "StorageReader", "StorageWriter"]

# From torch 2.9 on `stage` may give a future, and async_save returns it beside its own.
_STAGE_GIVES_FUTURE = hasattr(state_dict_saver, "AsyncSaveResponse")

_shares: weakref.WeakKeyDictionary[Checkpointer, Shares] = weakref.WeakKeyDictionary()
_staged: weakref.WeakKeyDictionary[Checkpointer, dict[int, Save]] = weakref.WeakKeyDictionary()  # By step.


class SavePlanner(DefaultSavePlanner):
    """DCP's default planner without pickle: a value that typed JSON cannot keep is refused by name, before a byte is
    written. For `StorageWriter` alone."""

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                _dcp_items.refuse_what_is_not_kept(self.lookup_object(item.index), item.index.fqn)
        return plan

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type == WriteItemType.BYTE_IO:
            raise Unsupported(f'"{write_item.index.fqn}": cairn.dcp.SavePlanner writes through cairn.dcp.StorageWriter')
        return object


class LoadPlanner(DefaultLoadPlanner):
    """DCP's default planner, which unpickles nothing. For `StorageReader` alone."""

    def load_value(self, read_item: ReadItem, value: Any) -> None:
        """Puts a plain value in its place in the state dict."""
        fqn = read_item.dest_index.fqn
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[fqn], value)
        else:
            self.state_dict[fqn] = value

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise Unsupported(
            f'"{read_item.storage_index.fqn}" was pickled by the planner that saved it: where you trust whoever wrote '
            "the checkpoint, load it with DCP's DefaultLoadPlanner"
        )


class StorageWriter(storage.StorageWriter, AsyncStager):
    """Writes one checkpoint: `step` of the Checkpointer's root. It is the stager of `dcp.async_save` too.

    The Checkpointer's group has the ranks that DCP saves with; they save the same steps in the same order. `dcp.save`
    may give the step as its checkpoint_id instead. `replace` as for Checkpointer.save.

    With `dcp.async_save` the engine reads the tensors themselves, without a copy of the state in between: they must not
    be overwritten before `staging_completion`, or Checkpointer.fence or protect sees to it. Values are kept as they are
    in the call. What is captured is committed once DCP's plan is agreed on. Where that fails it is given up.
    """

    # DCP, as its own stagers have it: whether async_save calls synchronize_staging before it returns.
    _synchronize_after_execute = not _STAGE_GIVES_FUTURE

    def __init__(self, checkpointer: Checkpointer, step: int | None = None, *, replace: bool = False) -> None:
        self._staged: Items | None = None  # All that this rank holds, whoever writes it.
        self._save: Save | None = None
        self._capturing: Save | None = None
        self._checkpointer = checkpointer
        self._step = step if step is None else _parse_step(step)
        self._replace = replace

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        self.close()
        raise Unsupported("cairn.dcp.StorageWriter saves from this process: process-based async_save is not supported")

    @property
    def checkpoint_id(self) -> str:
        return f"{self._checkpointer.root}, step {self._step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        try:
            _parse_step(checkpoint_id)
        except InvalidArgument:
            return False
        return True

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is None:
            return
        step = _parse_step(checkpoint_id)
        if self._staged is not None and step != self._step:
            self.close()
            raise InvalidArgument(f"checkpoint_id: step {step}, but step {self._step} has been staged")
        self._step = step

    def storage_meta(self) -> StorageMeta:
        if self._save is not None:
            # DCP's first question, on the thread that it made for this save: a plan that fails is that thread's end.
            threading.Thread(target=_give_up_after, args=(threading.current_thread(), self._save), daemon=True).start()
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def stage(self, state_dict: dict[str, Any]) -> Future[dict[str, Any]] | dict[str, Any]:
        """Starts the save of what this rank writes. The future is done, with the state dict, once that is captured.

        Before torch 2.9 it is the state dict itself, and async_save waits in `synchronize_staging`.
        """

        def gather() -> Items:
            planner = DefaultSavePlanner()
            planner.set_up_planner(state_dict, None, self._checkpointer.rank == 0)
            self._staged = _held_by(planner)
            if self._checkpointer.world > 1:
                self._staged.refuse_what_is_not_kept()
            return self._staged

        self.close()
        self._save = self._capturing = self._start(gather, staged=True)
        _staged.setdefault(self._checkpointer, {})[self._save.step] = self._save
        if not _STAGE_GIVES_FUTURE:
            return state_dict

        def wait(save: Save = self._save) -> dict[str, Any]:
            save.captured()
            return state_dict

        executor = ThreadPoolExecutor(1, "cairn-stage")
        captured = executor.submit(wait)
        executor.shutdown(wait=False)
        return captured

    def synchronize_staging(self) -> None:
        # A save that failed holds nobody up: the upload's future tells why.
        if self._capturing is not None:
            with contextlib.suppress(Error):
                self._capturing.captured()

    def close(self) -> None:
        """Gives up what has been staged and was not written, if anything."""
        if self._save is not None:
            self._save.cancel()
        self._staged = self._save = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        ranks = f"the Checkpointer of {self._checkpointer.root} is rank {self._checkpointer.rank}"
        if self._checkpointer.world > 1 and not kwargs.get("use_collectives", True):
            raise Unsupported(f"use_collectives=False: {ranks} of {self._checkpointer.world}, which commit together")
        if kwargs.get("rank", self._checkpointer.rank) != self._checkpointer.rank:
            raise InvalidArgument(f"DCP saves as rank {kwargs['rank']}, {ranks}: give both the same group")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._staged is None or not getattr(plan, "usable", True):
            return plan
        staged, planned = {key for key, _ in self._staged.sized()}, {_key(item) for item in plan.items}
        if staged != planned:
            self.close()
            raise InvalidArgument(
                f"step {self._step}: async_save staged what DCP's default planner writes, but this planner has "
                f"{_listed(planned - staged)} more and {_listed(staged - planned)} less: use dcp.save"
            )
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if len(plans) != self._checkpointer.world:
            raise InvalidArgument(
                f"DCP saves with {len(plans)} ranks, the Checkpointer of {self._checkpointer.root} has "
                f"{self._checkpointer.world}: give both the same group"
            )
        return plans

    def write_data(self, plan: SavePlan, planner: Any) -> torch.futures.Future[list[storage.WriteResult]]:
        """Lets the staged save commit, or makes one now, and waits until it is durable on every rank."""
        if self._save is None:
            save = self._start(lambda: _planned(plan, planner), staged=False)
        else:
            save = self._save
            try:
                self._check_staged(plan, planner)
            except BaseException:
                self.close()
                raise
            self._staged = self._save = None
            save.release()
        save.wait()
        written: torch.futures.Future[list[storage.WriteResult]] = torch.futures.Future()
        written.set_result(
            [storage.WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items]
        )
        return written

    def finish(self, metadata: Metadata, results: list[list[storage.WriteResult]]) -> None:
        """Nothing is left to do: each rank's shard holds its part of the metadata, and all of them have committed."""

    def _start(self, gather: Callable[[], Items], *, staged: bool) -> Save:
        if self._step is None:
            raise InvalidArgument("cairn.dcp.StorageWriter: the step is missing: StorageWriter(checkpointer, step)")
        checkpointer = self._checkpointer
        shares = _shares.setdefault(checkpointer, Shares(checkpointer._ranks))
        staged_before = _staged.setdefault(checkpointer, {})
        for step, save in list(staged_before.items()):
            if step == self._step:
                # DCP tells that a plan failed before its thread has ended, and with it what was staged is given up.
                with contextlib.suppress(Error):
                    save.wait()
            if save.done():
                staged_before.pop(step, None)

        def fill(sink: _tensors.Gathered) -> list[tuple[str, str]]:
            try:
                items = gather()
            except BaseException as error:
                if staged:
                    shares.give_up(error)
                raise
            return [("dcp", (items.only(shares.mine(items)) if staged else items).give(sink))]

        return checkpointer._start(self._step, fill, replace=self._replace, hold=staged)

    def _check_staged(self, plan: SavePlan, planner: Any) -> None:
        """What is on its way is what this planner writes."""
        assert self._staged is not None
        tensors = {piece.key: piece.tensor for piece in self._staged.pieces}
        for item in plan.items:
            fqn, key = item.index.fqn, _key(item)
            if item.type == WriteItemType.BYTE_IO:
                if not _keeps_values(planner):
                    raise Unsupported(f'"{fqn}": {type(planner).__name__} writes bytes of its own: use dcp.save')
                continue
            found, staged = planner.resolve_data(item), tensors.get(key)
            if staged is None or _memory(found) != _memory(staged):
                raise InvalidArgument(
                    f'"{fqn}": async_save staged the tensor of the state dict, but {type(planner).__name__} writes '
                    "another: use dcp.save"
                )


class _Unread(Metadata):
    """Metadata that could not be read: using it raises why. Some releases of DCP drop what read_metadata itself raises."""

    def __init__(self, error: Error) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error if name == "state_dict_metadata" else AttributeError(name)


class StorageReader(storage.StorageReader):
    """Reads a checkpoint that StorageWriter wrote, at any number of ranks: `step`, or the newest.

    `source` is a Checkpointer (then its next saves go on from what was loaded), or a root to look at. Every byte that
    is read is verified; tensors are filled in place. Raises NotFound, Corrupt, InvalidArgument.
    """

    def __init__(self, source: Checkpointer | str | os.PathLike[str], step: int | None = None) -> None:
        self._resume = isinstance(source, Checkpointer)
        self._checkpointer = source if isinstance(source, Checkpointer) else Checkpointer(source, read_only=True)
        self._step = step if step is None else _parse_step(step)
        self._details: dict[str, Any] = {}
        self._stock: Stock | None = None

    @property
    def checkpoint_id(self) -> str:
        return f"{self._checkpointer.root}, step {'latest' if self._step is None else self._step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return StorageWriter.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._step = _parse_step(checkpoint_id)

    def read_metadata(self) -> Metadata:
        try:
            self._details = self._checkpointer._core.inspect(self._step, "")
            self._stock = stock = _dcp_items.take_stock(self._details)
        except Error as error:
            return _Unread(error)
        metadata = {fqn: _metadata_of(stock, fqn) for fqn in stock.paths}
        return Metadata(metadata, planner_data=stock.paths, storage_meta=StorageMeta(checkpoint_id=self.checkpoint_id))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if isinstance(metadata, _Unread):
            raise metadata.error

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=(self._details["step"], self._details["attempt"]))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        for rank, plan in enumerate(plans):
            if plan.storage_data != plans[0].storage_data:
                found = [f"rank {of} step {one.storage_data[0]}" for of, one in ((0, plans[0]), (rank, plan))]
                raise FailedPrecondition(
                    f"{self._checkpointer.root}: ranks found different checkpoints, {' and '.join(found)} (another "
                    "attempt, where the steps are the same): load a given step"
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: Any) -> torch.futures.Future[None]:
        assert self._stock is not None
        reads = _Reads(self._stock)
        landed = [
            (item, *reads.region(item, planner.resolve_tensor(item).detach()))
            for item in plan.items
            if item.type == LoadItemType.TENSOR
        ]
        fqns = [item.storage_index.fqn for item in plan.items if item.type == LoadItemType.BYTE_IO]
        for fqn in fqns:
            reads.value(fqn)
        self._checkpointer._restore_views(self._details, reads.views, self._resume)
        for item, target, temporary in landed:
            if temporary is not None:
                target.copy_(temporary)
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_value(item, reads, planner)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _load_value(self, item: ReadItem, reads: _Reads, planner: Any) -> None:
        assert self._stock is not None
        fqn = item.storage_index.fqn
        if fqn in self._stock.pickled:
            planner.load_bytes(item, io.BytesIO(reads.arrays[fqn].numpy().tobytes()))
            return
        value = self._stock.value(fqn, reads.arrays)
        if isinstance(planner, LoadPlanner):
            planner.load_value(item, value)
            return
        # DCP's planners unpickle; what they are given here was never on disk.
        data = io.BytesIO()
        torch.save(value, data)
        data.seek(0)
        planner.load_bytes(item, data)


class _Reads:
    """What one load reads, as the engine is told."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self.views: list[Any] = []
        self.arrays: dict[str, Any] = {}  # Tensors of values, and pickled bytes, by name.
        self._names: dict[str, int] = {}
        self._targets: set[tuple[Any, ...]] = set()

    def region(self, item: ReadItem, target: Any) -> tuple[Any, Any]:
        """Reads an item into its target: in place, or into the temporary tensor that is returned with it."""
        index = item.storage_index
        chunk = self._stock.find(index.fqn, index.offset)
        part = _dcp_items.part_of(chunk, item.storage_offsets, item.lengths)
        if tuple(target.shape) != tuple(item.lengths):
            raise InvalidArgument(
                f'"{index.fqn}": expected a target of {list(item.lengths)}, found {list(target.shape)}'
            )
        # Messages name tensors: chunks of the same one are told apart.
        number = self._names[index.fqn] = self._names.get(index.fqn, -1) + 1
        name = chunk.name if part is None else f"{index.fqn}~{number}" if number else index.fqn
        temporary = None
        try:
            memory = _memory(target)
            if _tensors.dtype_name(name, target) != chunk.dtype or memory in self._targets:
                raise Unsupported("converted by copy_, or tied to another target")
            self._targets.add(memory)
            view = _tensors.target(name, target)
        except (InvalidArgument, Unsupported):
            temporary = torch.empty(tuple(item.lengths), dtype=_tensors.torch_dtype(chunk.dtype))
            view = _tensors.target(name, temporary)
        self.views.append((*view, part))
        return target, temporary

    def value(self, fqn: str) -> None:
        for name, kind in self._stock.tensors_of(fqn).items():
            self.arrays[name] = _tensors.empty(self._stock.tensors[name], kind)
            self.views.append((*_tensors.target(name, self.arrays[name]), None))


def _metadata_of(stock: Stock, fqn: str) -> TensorStorageMetadata | BytesStorageMetadata:
    if fqn in stock.values or fqn in stock.pickled:
        return BytesStorageMetadata()
    chunks = stock.chunks_of(fqn)
    return TensorStorageMetadata(
        TensorProperties(dtype=_tensors.torch_dtype(chunks[0].dtype)),
        torch.Size(chunks[0].size),
        [ChunkStorageMetadata(torch.Size(one.offset), torch.Size(one.shape)) for one in chunks],
    )


def _give_up_after(thread: threading.Thread, save: Save) -> None:
    thread.join()
    save.cancel()


def _parse_step(checkpoint_id: Any) -> int:
    if isinstance(checkpoint_id, int) and not isinstance(checkpoint_id, bool) and checkpoint_id >= 0:
        return checkpoint_id
    if isinstance(checkpoint_id, str) and checkpoint_id.isascii() and checkpoint_id.isdigit():
        return int(checkpoint_id)
    raise InvalidArgument(f"checkpoint_id: expected the step, a number of 0 or more, found {checkpoint_id!r}")


def _held_by(planner: DefaultSavePlanner) -> Items:
    """All that a rank holds, as DCP's default planner has it."""
    items = Items(paths=planner.mappings)
    plain = (torch.Tensor, torch.nn.Parameter)
    for fqn, held in planner.state_dict.items():
        if type(held) in plain:
            items.pieces.append(Piece(fqn, held))
        elif not isinstance(held, torch.Tensor):
            _add_value(items, fqn, held, None)
        elif not isinstance(held, DTensor) or held.device_mesh.get_coordinate() is not None:
            for item in create_default_local_save_plan({fqn: held}, True).items:
                _add_tensor(items, item, planner.lookup_object(item.index))
    return items


def _planned(plan: SavePlan, planner: Any) -> Items:
    """What a rank writes by its final plan."""
    items = Items(paths=plan.planner_data if isinstance(plan.planner_data, dict) else {})
    for item in plan.items:
        if item.type != WriteItemType.BYTE_IO:
            _add_tensor(items, item, planner.resolve_data(item))
        elif _keeps_values(planner):
            _add_value(items, item.index.fqn, planner.lookup_object(item.index), planner)
        else:
            items.pickled[item.index.fqn] = planner.resolve_data(item).getvalue()
    fqns = dict.fromkeys(item.index.fqn for item in plan.items)
    items.paths = {fqn: items.paths.get(fqn, (fqn,)) for fqn in fqns}
    return items


def _add_tensor(items: Items, item: WriteItem, tensor: Any) -> None:
    planned: Any = item.tensor_data
    chunk = planned.chunk
    if tuple(tensor.shape) != tuple(chunk.sizes):
        raise InvalidArgument(f'"{item.index.fqn}": planned as {list(chunk.sizes)}, found {list(tensor.shape)}')
    if item.type == WriteItemType.TENSOR:
        items.pieces.append(Piece(item.index.fqn, tensor.detach()))
    else:
        offset, size = tuple(chunk.offsets), tuple(planned.size)
        items.pieces.append(Piece(item.index.fqn, tensor.detach(), offset, size))


def _add_value(items: Items, fqn: str, value: Any, planner: Any) -> None:
    if isinstance(planner, SavePlanner) or _dcp_items.can_be_kept(value, fqn):
        items.values[fqn] = value
    else:
        data = io.BytesIO()
        torch.save(value, data)
        items.pickled[fqn] = data.getvalue()


def _keeps_values(planner: Any) -> bool:
    """Whether it writes values as DCP's default planner or ours does."""
    ours = isinstance(planner, SavePlanner)
    return ours or getattr(type(planner), "transform_object", None) is DefaultSavePlanner.transform_object


def _key(item: WriteItem) -> tuple[str, tuple[int, ...]]:
    return item.index.fqn, tuple(item.index.offset or ()) if item.type == WriteItemType.SHARD else ()


def _memory(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _listed(keys: set[tuple[str, tuple[int, ...]]]) -> str:
    names = sorted({fqn for fqn, _ in keys})
    return f"{len(names)} ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else "none"
