"""DCP's storage writer and stager. See cairn.dcp."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch._utils import _element_size
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.checkpoint import state_dict_saver, storage
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_local_save_plan
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from .._checkpointer import Checkpointer
from .._errors import Error, InvalidArgument, Unsupported, counted
from .._ranks.replicas import matches
from .._save import Save
from .._tree.taken import copied
from .._tree.tensors import TensorCollector
from .blocks import refuse_scattered
from .compare import Layouts
from .containers import metadata_of
from .frozen import Frozen
from .groups import refuse_default_group
from .items import Items, Paths, Piece, is_step, memory_of, parse_step
from .optimizers import Optimizers
from .plain_values import Form, Held, Key, check_storable, held_values, large_arrays
from .planners import SavePlanner, naming
from .shares import check_plans, described_item, key_of, size_of_item
from .uploads import Upload, Uploads

# From torch 2.9 on `stage` may return a future, which async_save returns too.
_STAGE_GIVES_FUTURE = hasattr(state_dict_saver, "AsyncSaveResponse")


class StorageWriter(storage.StorageWriter, AsyncStager):
    """Writes one checkpoint: `step` of the Checkpointer's root. It is the stager of `dcp.async_save` too.

    The Checkpointer's group has the ranks that DCP saves with; they save the same steps in the same order. `dcp.save`
    may take the step as its checkpoint_id instead. `replace` and `frozen` as for Checkpointer.save; True means the modules
    at the top of the state dict, which DCP's own calls do not show: give these patterns.

    With `dcp.async_save` the engine reads the tensors themselves, without a copy of the state: they must not be
    overwritten before `staging_completion`; Checkpointer.fence and protect wait for it. Values are kept as they are in
    the call. The save is committed once the ranks agree on DCP's plan. If they do not, it is abandoned.
    """

    # Read by DCP, as for its own stagers: whether async_save calls synchronize_staging before it returns.
    _synchronize_after_execute = not _STAGE_GIVES_FUTURE

    def __init__(
        self,
        checkpointer: Checkpointer,
        step: int | None = None,
        *,
        replace: bool = False,
        frozen: bool | str | Iterable[str] = (),
    ) -> None:
        self._staged: Items | None = None  # All that this rank holds, whichever rank writes it.
        self._save: Save | None = None
        self._upload: Upload | None = None  # Of the save that was staged last.
        self._capturing: Save | None = None
        self._failure: Exception | None = None  # An error in `stage`, which DCP reports to all ranks.
        self._checkpointer = checkpointer
        self._planner: Any = None  # The one that the save will have, where that is known.
        self._planned: Sequence[WriteItem] | None = None  # All that this rank holds, as the planner sees it.
        self._step = step if step is None else parse_step(step)
        self._replace = replace
        self._frozen = Frozen(frozen)
        self._optimizers: Optimizers = {}  # Of the state dict, where that is known.
        self._given: Mapping[str, Any] = {}  # That itself, likewise, if it is no plain dict.

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        self.close()
        raise Unsupported("cairn.dcp.StorageWriter saves from this process: process-based async_save is not supported")

    @property
    def checkpoint_id(self) -> str:
        return f"{self._checkpointer.root}, step {self._step}"

    @property
    def step(self) -> int:
        if self._step is None:
            raise InvalidArgument("cairn.dcp.StorageWriter: the step is missing: StorageWriter(checkpointer, step)")
        return self._step

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return is_step(checkpoint_id)

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is None:
            return
        try:
            step = parse_step(checkpoint_id)
        except InvalidArgument:
            self.close()  # DCP plans nothing, and other uploads wait for this one.
            raise
        if self._staged is not None and step != self._step:
            self.close()
            raise InvalidArgument(f"checkpoint_id: step {step}, but step {self._step} has been staged")
        self._step = step

    def storage_meta(self) -> StorageMeta:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.close()
            raise failure
        # DCP calls this first, before its first collective.
        Uploads.wait_before(self._upload if self._save is not None else None)
        if self._upload is not None and self._save is not None:
            self._upload.begin()
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def stage(self, state_dict: dict[str, Any]) -> Future[dict[str, Any]] | dict[str, Any]:
        """Starts the save of what this rank writes. The future is done, with what the state dict is now, once that is
        captured: DCP plans later, when its dicts and lists may have changed. Before torch 2.9 it is that itself, and
        async_save waits in `synchronize_staging`.

        In a group, what fails on this rank alone is raised when DCP plans: there the other ranks wait for this one.
        InvalidArgument, on all ranks, if DCP would upload on a group with which training could hang.
        """
        refuse_default_group()
        agreed = False
        given: dict[str, Any] = {}

        def held() -> Items:
            metadata = metadata_of(state_dict, self._given)
            given.update(copied(state_dict))
            planner = SavePlanner()
            planner.set_up_planner(given, None, self._checkpointer.rank == 0)
            self._staged = _items_of_state(planner, self._planner)
            self._staged.note_optimizers(self._optimizers, self._staged.flat)
            self._staged.metadata = metadata
            if self._checkpointer.world > 1:
                self._staged.check_storable()
            self._staged.keep_own(self._checkpointer._engine.per_rank, self._checkpointer.rank)
            return self._staged

        def gather() -> Items:
            nonlocal agreed
            assert self._step is not None
            mine = Uploads.of(self._checkpointer).shares.select(held, self._step)
            agreed = self._checkpointer.world > 1
            return mine

        self.close()
        try:
            self._save = self._capturing = self._start(gather, staged=True)
        except Exception as error:
            self.close()
            if not agreed:
                raise
            self._failure = error
        if not _STAGE_GIVES_FUTURE:
            return given

        def wait(save: Save | None = self._save) -> dict[str, Any]:
            try:
                if save is not None:
                    save.captured()
            except Error as error:
                if not agreed:
                    self.close()  # DCP plans nothing.
                    raise
                self._failure = error
            return given

        executor = ThreadPoolExecutor(1, "cairn-stage")
        captured = executor.submit(wait)
        executor.shutdown(wait=False)
        return captured

    def synchronize_staging(self) -> None:
        # A failed save does not wait: the upload's future has the error.
        if self._capturing is not None:
            with contextlib.suppress(Error):
                self._capturing.captured()

    def close(self) -> None:
        """Abandons a save that was staged and not written."""
        if self._save is not None and self._upload is not None:
            self._upload.end()
        self._staged = self._save = self._failure = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        ranks = f"the Checkpointer of {self._checkpointer.root} is rank {self._checkpointer.rank}"
        if self._checkpointer.world > 1 and not kwargs.get("use_collectives", True):
            raise Unsupported(f"use_collectives=False: {ranks} of {self._checkpointer.world}, which commit together")
        if kwargs.get("rank", self._checkpointer.rank) != self._checkpointer.rank:
            raise InvalidArgument(f"DCP saves as rank {kwargs['rank']}, {ranks}: give both the same group")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        try:
            _refuse_unsized(plan)
        except Unsupported:
            self.close()
            raise
        self._planned = plan.items if getattr(plan, "usable", True) else None
        # The coordinator compares what is in storage_data. DCP's planner has dropped all but one of what is identical by
        # then. It hears nothing of what each rank keeps its own of.
        shared = [item for item in plan.items if not self._is_own(item)]
        plan = dataclasses.replace(plan, items=shared, storage_data=shared)
        if self._staged is None or self._planned is None:
            return plan
        staged = self._staged.keys()
        planned = {self._key_of(item) for item in self._planned}
        if staged != planned:
            self.close()
            raise InvalidArgument(
                f"step {self._step}: async_save staged what DCP's default planner writes, but this planner writes in "
                f"addition {_listed(planned - staged)} and leaves out {_listed(staged - planned)}: use dcp.save"
            )
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if len(plans) != self._checkpointer.world:
            raise InvalidArgument(
                f"DCP saves with {counted(len(plans), 'rank')}, the Checkpointer of {self._checkpointer.root} has "
                f"{self._checkpointer.world}: give both the same group"
            )
        check_plans([plan.storage_data or [] for plan in plans])
        return [dataclasses.replace(plan, storage_data=None) for plan in plans]

    def write_data(self, plan: SavePlan, planner: Any) -> torch.futures.Future[list[storage.WriteResult]]:
        """Lets the staged save commit, or makes one now, and waits until it is durable, or kept in memory, on every rank."""
        if self._save is None:
            save = self._start(lambda: self._compared(plan, planner))
        else:
            save = self._save
            try:
                self._check_staged(plan, planner)
            except BaseException:
                self.close()
                raise
            self._staged = self._save = None
            save._release()
        try:
            save.kept()
        finally:
            self._checkpointer._engine.release_captured()
        written: torch.futures.Future[list[storage.WriteResult]] = torch.futures.Future()
        written.set_result(
            [storage.WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items]
        )
        return written

    def finish(self, metadata: Metadata, results: list[list[storage.WriteResult]]) -> None:
        """Does nothing: each rank's shard holds its part of the metadata, and all shards are committed."""

    def _start(self, gather: Callable[[], Items], *, staged: bool = False) -> Save:
        checkpointer, step = self._checkpointer, self.step
        uploads = Uploads.of(checkpointer)
        uploads.wait_for_step(step)

        def fill(sink: TensorCollector) -> list[tuple[str, str]]:
            items = gather()
            text = items.add_to(sink)
            self._frozen.add_to(sink, checkpointer, items.paths if self._staged is None else self._staged.paths)
            return [("dcp", text)]

        hold = checkpointer._engine.group_timeout * (1 + Uploads.in_flight()) if staged else 0.0
        save = checkpointer._engine.start(step, fill, replace=self._replace, hold=hold)
        if staged:
            self._upload = uploads.add(save)
        return save

    def _compared(self, plan: SavePlan, planner: Any) -> Items:
        """What this rank writes, once what several ranks hold is known to be equal."""
        assert self._step is not None

        def planned() -> _Planned:
            items = _items_of_plan(self._with_own(plan, planner), planner)
            flat = getattr(planner, "state_dict", None)
            items.note_optimizers(self._optimizers, flat if isinstance(flat, dict) else {})
            items.metadata = getattr(planner, "of_modules", {}) | metadata_of(self._given)
            items.keep_own(self._checkpointer._engine.per_rank, self._checkpointer.rank)
            return _Planned([item for item in self._held(planner) if not self._is_own(item)], planner, items)

        return Uploads.of(self._checkpointer).shares.check(planned, self._step).mine

    def _held(self, planner: Any) -> Sequence[WriteItem]:
        """All that this rank holds, as the planner sees it."""
        if self._planned is None:  # DCP has cached its plan, and does not make it again.
            return list(type(planner)._cached_save_plan[planner._cached_plans_key].items)
        return self._planned

    def _with_own(self, plan: SavePlan, planner: Any) -> SavePlan:
        own = [item for item in self._held(planner) if self._is_own(item)]
        return dataclasses.replace(plan, items=[*plan.items, *own]) if own else plan

    def _is_own(self, item: WriteItem) -> bool:
        patterns = self._checkpointer._engine.per_rank
        return bool(patterns) and matches(patterns, item.index.fqn)

    def _key_of(self, item: WriteItem) -> Key:
        return (item.index.fqn, ()) if self._is_own(item) else key_of(item)

    def _check_staged(self, plan: SavePlan, planner: Any) -> None:
        """Raises unless the staged save holds what this planner writes."""
        assert self._staged is not None
        tensors = {piece.key: piece.tensor for piece in self._staged.pieces}
        for item in self._with_own(plan, planner).items:
            fqn, key = item.index.fqn, self._key_of(item)
            if item.type == WriteItemType.BYTE_IO:
                if not _keeps_values(planner):
                    raise Unsupported(f'"{fqn}": {type(planner).__name__} writes bytes of its own: use dcp.save')
                value = planner.lookup_object(item.index)
                if isinstance(planner, SavePlanner):
                    check_storable(value, fqn)
                if value is not self._staged.flat.get(fqn):
                    raise InvalidArgument(
                        f'"{fqn}": async_save staged the value of the state dict, but {type(planner).__name__} writes '
                        "another: use dcp.save"
                    )
                continue
            found, staged = _waited_for(planner.resolve_data(item)), tensors.get(key)
            if staged is None or memory_of(found) != memory_of(staged):
                raise InvalidArgument(
                    f'"{fqn}": async_save staged the tensor of the state dict, but {type(planner).__name__} writes '
                    "another: use dcp.save"
                )


def _refuse_unsized(plan: SavePlan) -> None:
    """Unsupported, with the name, for a dtype whose size DCP cannot tell: its own error names no tensor."""
    dtypes = {item.index.fqn: item.tensor_data.properties.dtype for item in plan.items if item.tensor_data is not None}
    for dtype in {*dtypes.values()}:
        try:
            _element_size(dtype)  # type: ignore[no-untyped-call]
        except TypeError as error:
            fqn = next(fqn for fqn, of in dtypes.items() if of == dtype)
            raise Unsupported(
                f'"{fqn}": torch.distributed.checkpoint cannot plan a tensor of {dtype}: give it as view(torch.uint8), or '
                "save it with Checkpointer.save"
            ) from error


class _Planned:
    """What a rank holds, by its local plan: see shares.Contents."""

    def __init__(self, items: Sequence[WriteItem], planner: Any, mine: Items) -> None:
        self._items, self._planner = items, planner
        self.mine = mine  # What it writes.
        values = Items()
        for item in items:
            if item.type == WriteItemType.BYTE_IO:
                _add_planned_value(values, item, planner)
        self.forms: Mapping[str, Form] = values.forms
        self.own: frozenset[str] = frozenset()  # It is not among the items.

    def held(self) -> list[Held]:
        flat, layouts = getattr(self._planner, "state_dict", None), Layouts()
        whole: Mapping[str, Any] = flat if isinstance(flat, dict) else {}
        return [
            (key_of(item), size_of_item(item), described_item(item), layouts.of(whole.get(item.index.fqn)))
            for item in self._items
            if item.type != WriteItemType.BYTE_IO
        ] + held_values(self.forms)

    def parts(self) -> list[tuple[Key, str]]:
        return [(key_of(item), described_item(item)) for item in self._items if item.type == WriteItemType.SHARD]

    def beside(self) -> dict[str, Any]:
        return {}

    def tied(self) -> list[str]:
        return []

    def places(self) -> tuple[Paths, Paths]:
        paths: Paths = getattr(self._planner, "mappings", {})
        sized = [item for item in self._items if item.tensor_data is None or 0 not in item.tensor_data.size]
        names = (
            {item.index.fqn: None for item in sized if (item.tensor_data is None) is values} for values in (False, True)
        )
        tensors, plain = ({fqn: paths.get(fqn, (fqn,)) for fqn in one} for one in names)
        return tensors, plain

    def contents(self) -> Callable[[Key], Any]:
        items, arrays = {key_of(item): item for item in self._items}, large_arrays(self.forms)
        return lambda key: arrays[key] if key in arrays else _waited_for(self._planner.resolve_data(items[key]))


def _items_of_state(planner: DefaultSavePlanner, strict: Any = None) -> Items:
    """All that a rank holds, as DCP's default planner sees it. If `strict` is a SavePlanner, nothing is pickled."""
    items = Items(paths=planner.mappings, flat=planner.state_dict)
    plain, chunks = (torch.Tensor, torch.nn.Parameter), _Chunks(planner)
    with torch.no_grad():  # Else each local tensor is a node of autograd's.
        for fqn, held in planner.state_dict.items():
            if type(held) in plain:
                items.pieces.append(Piece(fqn, held))
            elif not isinstance(held, torch.Tensor):
                _add_value(items, fqn, held, strict)
            elif not isinstance(held, DTensor) or held.device_mesh.get_coordinate() is not None:
                chunks.add(items, fqn, held)
    return items


class _Chunks:
    """What this rank has of sharded tensors. DCP's planner needs a quarter of a millisecond for each, so it is asked once for
    the DTensors of one layout."""

    def __init__(self, planner: DefaultSavePlanner) -> None:
        self._planner = planner
        self._plan_of = partial(create_default_local_save_plan, is_coordinator=True)
        self._layouts = Layouts()
        self._known: dict[Any, Piece] = {}
        self._grad = torch.is_grad_enabled()

    def add(self, items: Items, fqn: str, held: Any) -> None:
        if not isinstance(held, DTensor):
            self._add(items, fqn, held)
            return
        local = _waited_for(held.to_local())
        # The caller's tensors keep the mesh alive.
        key = id(held.device_mesh), held.placements, held.shape, local.shape
        known = self._known.get(key)
        if known is None or len(held.placements) > 1:
            # Two of one layout differ at most in the order in which dimensions of the mesh shard.
            refuse_scattered({fqn: held})
        if known is not None:
            items.pieces.append(Piece(fqn, local, known.offset, known.size, known.layout, held))
            return
        first = len(items.pieces)
        self._add(items, fqn, held)
        if len(items.pieces) == first + 1 and memory_of(items.pieces[first].tensor) == memory_of(local):
            self._known[key] = items.pieces[first]

    def _add(self, items: Items, fqn: str, held: Any) -> None:
        with naming({fqn: held}, self._plan_of), torch.set_grad_enabled(self._grad):  # As DCP's own call has it.
            plan = self._plan_of({fqn: held})
            found = [self._planner.lookup_object(item.index) for item in plan.items]
        for item, tensor in zip(plan.items, found, strict=True):
            _add_tensor(items, item, tensor, held, self._layouts.of(held))


def _items_of_plan(plan: SavePlan, planner: Any) -> Items:
    """What a rank writes by its final plan."""
    items = Items(paths=plan.planner_data if isinstance(plan.planner_data, dict) else {})
    state = getattr(planner, "state_dict", {})
    refuse_scattered(state)
    for item in plan.items:
        if item.type != WriteItemType.BYTE_IO:
            _add_tensor(items, item, planner.resolve_data(item), state.get(item.index.fqn))
        else:
            _add_planned_value(items, item, planner)
    fqns = dict.fromkeys(item.index.fqn for item in plan.items)
    items.paths = {fqn: items.paths.get(fqn, (fqn,)) for fqn in fqns}
    return items


def _add_tensor(items: Items, item: WriteItem, tensor: Any, held: Any, layout: str = "") -> None:
    """`held` is what the state dict has."""
    planned: Any = item.tensor_data
    chunk, tensor, of = planned.chunk, _waited_for(tensor), held if isinstance(held, DTensor) else None
    if tuple(tensor.shape) != tuple(chunk.sizes):
        raise InvalidArgument(f'"{item.index.fqn}": planned as {list(chunk.sizes)}, found {list(tensor.shape)}')
    if item.type == WriteItemType.TENSOR:
        items.pieces.append(Piece(item.index.fqn, tensor.detach(), layout=layout, of=of))
    else:
        offset, size = tuple(chunk.offsets), tuple(planned.size)
        items.pieces.append(Piece(item.index.fqn, tensor.detach(), offset, size, layout, of))


def _waited_for(tensor: Any) -> Any:
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def _add_planned_value(items: Items, item: WriteItem, planner: Any) -> None:
    if _keeps_values(planner):
        _add_value(items, item.index.fqn, planner.lookup_object(item.index), planner)
    else:
        bytes_of = planner.resolve_data(item)
        items.add_pickled(item.index.fqn, bytes_of, bytes_of.getvalue())


def _add_value(items: Items, fqn: str, value: Any, planner: Any) -> None:
    try:
        items.add_value(fqn, value)
    except (InvalidArgument, Unsupported):
        if isinstance(planner, SavePlanner):
            raise
        data = io.BytesIO()
        torch.save(value, data)
        items.add_pickled(fqn, value, data.getvalue())


def _keeps_values(planner: Any) -> bool:
    """Whether it writes values as DCP's default planner or SavePlanner does."""
    ours = isinstance(planner, SavePlanner)
    return ours or getattr(type(planner), "transform_object", None) is DefaultSavePlanner.transform_object


def _listed(keys: set[tuple[str, tuple[int, ...]]]) -> str:
    names = sorted({fqn for fqn, _ in keys})
    return f"{len(names)} ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else "none"
