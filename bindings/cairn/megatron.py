"""Megatron-core's distributed checkpoints through Cairn: its save, asynchronous save and load strategies.

    strategies = cairn.megatron.register("checkpoints/.cairn", host_memory="16GiB")
    strategies.checkpointer.protect(optimizer)  # fences before each optimizer step
    request = dist_checkpointing.save(state, "checkpoints/iter_0000010", ("cairn", 1), async_sharded_save=True)
    strategies.calls.schedule_async_request(request)
    strategies.calls.maybe_finalize_async_calls()  # once a step, on every rank
    state = dist_checkpointing.load(state, "checkpoints/iter_0000010")

A checkpoint's folder is Megatron's, and is moved or removed as a whole:

    iter_0000010/
      common.pt        what is not sharded; Megatron writes it, by pickle
      step-...10/      the sharded tensors and objects: Cairn's checkpoint, of all ranks or not there
      metadata.json    written last, by Megatron: without it the folder is no checkpoint

The folder that `register` opens holds checkpoints only until they are whole. It is on the filesystem of the others.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

try:
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
    from megatron.core.dist_checkpointing.strategies import base
    from megatron.core.dist_checkpointing.strategies import torch as stock
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
    from megatron.core.dist_checkpointing.strategies.checkpointable import (
        CheckpointableShardedTensor,
        LocalShardsContainer,
    )
except ImportError as error:
    raise ImportError(f"cairn.megatron needs megatron-core 0.16: {error}") from error

from ._arguments import without_memory
from ._checkpointer import Checkpointer
from ._dcp.items import Items, Piece
from ._dcp.plain_values import check_storable
from ._dcp.reader import StorageReader
from ._errors import InvalidArgument, Unsupported
from ._paths import step_folder
from ._save import Save
from ._tree.casts import allows_loss

if TYPE_CHECKING:
    from typing_extensions import Self

BACKEND = ("cairn", 1)  # The name and version in metadata.json.


@dataclasses.dataclass(frozen=True)
class Strategies:
    """What `register` has opened and registered."""

    checkpointer: Checkpointer
    save: SaveStrategy
    load: LoadStrategy
    calls: AsyncCalls

    def close(self) -> None:
        """Finalizes all saves, on every rank, and frees the pool. Raises the first failure when the others are done."""
        first: Exception | None = None
        try:
            while self.calls.async_calls:
                try:
                    self.calls.maybe_finalize_async_calls(blocking=True)
                except Exception as error:  # noqa: BLE001 (the saves behind it may be durable)
                    first = first or error
            if first is not None:
                raise first
        finally:
            self.checkpointer.close()


def register(root: str | os.PathLike[str], *, cast: str | None = None, **options: Any) -> Strategies:
    """Opens the folder in which checkpoints are written, and registers Megatron's strategies of the backend
    ("cairn", 1). Every rank calls it, once. Options are Checkpointer's, except keep_last: the caller removes folders.

    A load refuses to convert to a dtype that does not hold every value of the checkpoint's, unless `cast` is "allow"."""
    if "keep_last" in options or "keep_every" in options:
        raise InvalidArgument("keep_last is not an option here: each folder is kept until its caller removes it")
    without_memory(options)
    group = torch.distributed.group.WORLD if torch.distributed.get_world_size() > 1 else None
    checkpointer = Checkpointer(root, group=group, **{"keep_last": 0, "recycle": False, **options})
    if checkpointer.rank == 0:
        for step in checkpointer.steps():
            checkpointer.remove(step)  # A crash came before Megatron's last file.
    torch.distributed.barrier()
    made = Strategies(checkpointer, SaveStrategy(checkpointer), LoadStrategy(cast), AsyncCalls())
    base.register_default_strategy(base.StrategyAction.SAVE_SHARDED, *BACKEND, made.save)
    base.register_default_strategy(base.StrategyAction.LOAD_SHARDED, *BACKEND, made.load)
    return made


class SaveStrategy(base.AsyncSaveShardedStrategy):
    """Megatron's save strategy: each rank writes its main replicas, from the tensors themselves.

    Tensors may be overwritten once the Checkpointer's fence has returned. Sharded objects are kept as typed JSON; one
    that would need pickle is refused by its key.
    """

    def __init__(self, checkpointer: Checkpointer) -> None:
        super().__init__(*BACKEND)
        self._checkpointer = checkpointer

    def can_handle_sharded_objects(self) -> bool:
        return True

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: str | Path) -> Request:
        folder = os.path.abspath(checkpoint_dir)
        found = re.search(r"(\d+)$", folder)
        if found is None:
            raise InvalidArgument(f"{folder}: expected a name that ends with the iteration, such as iter_0000010")
        checkpointer, step = self._checkpointer, int(found[1])

        def fill(sink: Any) -> list[tuple[str, str]]:
            return [("dcp", _items(sharded_state_dict).add_to(sink))]

        save = checkpointer._engine.start(step, fill)

        def publish() -> None:
            save.wait()
            if checkpointer.rank == 0:
                checkpointer.publish(step, step_folder(folder, step))

        def finalize() -> None:
            checkpointer._engine.ranks.together("publish", publish)  # Else the others would wait in Megatron's barrier.

        return Request(AsyncRequest(None, (), [finalize]), save)


class Request(AsyncRequest):
    """Megatron's request, with the save that it finalizes once that is durable."""

    save: Save

    def __new__(cls, request: Any, save: Save) -> Self:
        made: Self = super().__new__(cls, *request)
        made.save = save
        return made

    def freeze(self) -> Request:
        return Request(super().freeze(), self.save)


class AsyncCalls(AsyncCallsQueue):
    """Megatron's queue, for Cairn's requests: it starts no process, and needs no GPU.

    Megatron's own queue finalizes these requests too, but its next poll waits until they are durable.
    """

    def schedule_async_request(self, async_request: Request) -> int:
        if not isinstance(async_request, Request):
            raise InvalidArgument(f"expected a request of cairn.megatron, found {type(async_request).__name__}")
        self.call_idx += 1
        self.async_calls.append((self.call_idx, async_request.freeze()))
        return int(self.call_idx)

    def maybe_finalize_async_calls(self, blocking: bool = False, no_dist: bool = False) -> list[int]:
        """Finalizes the saves that are durable; with `blocking` it waits for all. Every rank calls it, and gets the
        same numbers. Raises what a save failed with."""
        finalized = []
        while self.async_calls and (blocking or self._done(self.async_calls[0][1].save)):
            number, request = self.async_calls.popleft()
            for finalize in request.finalize_fns:
                finalize()
            finalized.append(number)
        return finalized

    @staticmethod
    def _done(save: Save) -> bool:
        """Whether it has ended on all ranks."""
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        done = torch.tensor([int(save.done())], device=device)
        torch.distributed.all_reduce(done, op=torch.distributed.ReduceOp.MIN)
        return bool(done.item())


class LoadStrategy(stock.TorchDistLoadShardedStrategy):
    """Megatron's load strategy, at any number of ranks. Every byte that is read is verified; nothing is unpickled.

    `cast` as in `register`.
    """

    def __init__(self, cast: str | None = None) -> None:
        super().__init__()
        allows_loss(cast)
        self._cast = cast

    def load(self, sharded_state_dict: Any, checkpoint_dir: str | Path) -> Any:
        by_key, flat, renamed = stock._replace_state_dict_keys_with_sharded_keys(sharded_state_dict)
        tensors = [one for one in nested_values(sharded_state_dict) if isinstance(one, ShardedTensor)]
        state = {key: _target(of) if isinstance(of[0], ShardedTensor) else None for key, of in by_key.items()}
        planner = stock.MCoreLoadPlanner(
            shapes_validation_sharded_tensors=[one for one in tensors if not one.allow_shape_mismatch],
            allow_shape_mismatch_sharded_tensors={one.key: one for one in tensors if one.allow_shape_mismatch},
        )
        with _opened(checkpoint_dir) as source:
            dcp_load(state, storage_reader=StorageReader(source, cast=self._cast), planner=planner)
        loaded = {key: [one.data for one in of] if state[key] is not None else [] for key, of in by_key.items()}
        loaded |= {key: state[key] for key, of in by_key.items() if isinstance(of[0], ShardedObject)}
        made = stock._replace_sharded_keys_with_state_dict_keys(loaded, flat, renamed)
        stock._restore_dict_types(made, sharded_state_dict)
        return made

    def load_tensors_metadata(self, checkpoint_dir: str | Path, metadata: Any = None) -> Any:
        return super().load_tensors_metadata(checkpoint_dir, metadata or _metadata(checkpoint_dir))

    def load_sharded_metadata(self, checkpoint_dir: str | Path) -> Any:
        metadata = _metadata(checkpoint_dir)
        objects = [
            ShardedObject.empty_from_unique_key(key)
            for key, of in metadata.state_dict_metadata.items()
            if not isinstance(of, stock.TensorStorageMetadata)
        ]
        return {one.unique_key: one for one in objects} | self.load_tensors_metadata(checkpoint_dir, metadata)

    def remove_sharded_tensors(self, checkpoint_dir: str, key_prefix: str) -> None:
        raise Unsupported(f"{checkpoint_dir}: a Cairn checkpoint does not change: load it, and save what is to stay")


def _opened(checkpoint_dir: str | Path) -> Checkpointer:
    """Reads the one checkpoint in Megatron's folder."""
    return Checkpointer(checkpoint_dir, read_only=True, host_memory="256MiB")


def _metadata(checkpoint_dir: str | Path) -> Any:
    with _opened(checkpoint_dir) as source:
        reader = StorageReader(source)
        metadata = reader.read_metadata()
        reader.reset()
    return metadata


def _items(sharded_state_dict: Any) -> Items:
    """What this rank writes of a sharded state dict."""
    by_key, _, _ = stock._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, keep_only_main_replica=True)
    items = Items(paths={key: (key,) for key in by_key})
    for key, shards in by_key.items():
        if isinstance(shards[0], ShardedObject):
            value = [one.data for one in shards]
            check_storable(value, key)
            items.values[key] = value
            continue
        for one in shards:
            items.pieces.append(Piece(key, _chunk(one).detach(), tuple(one.global_offset), tuple(one.global_shape)))
    return items


def _chunk(one: Any) -> Any:
    """A sharded tensor's data with the shape of its chunk: Megatron leaves out axes of length 1 at the front."""
    return one.data[(None,) * one.prepend_axis_num] if one.prepend_axis_num else one.data


def _target(shards: list[Any]) -> Any:
    """What DCP's planner fills: all shards of a key that this rank holds."""
    targets = []
    for one in shards:
        if one.data is None:
            one.init_data("cpu", init_fn=torch.zeros if one.allow_shape_mismatch else torch.empty)
        one.data = one.data.detach()
        if one.allow_shape_mismatch:
            one.data.zero_()
        chunk = _chunk(one)
        whole = dataclasses.replace(one, data=chunk, local_shape=tuple(chunk.shape), prepend_axis_num=0)
        targets.append(CheckpointableShardedTensor.from_sh_ten(whole))
    return targets[0] if len(targets) == 1 else LocalShardsContainer(targets)
