"""Checkpoints of a model that FSDP2 has sharded: each rank writes its part of every tensor, through cairn.dcp.

    {"model": ..., "optimizer": ...,                 by parameter names, as DTensors
     "trainer": {"text": ..., "tensors": {...}},     of rank 0: the state, the scheduler, the scaler
     "trainer_rank0": {...}, "trainer_rank1": ...}   of each rank: random generators, the loss of now

They can be read by any number of ranks. Such a checkpoint's folder is no model folder, because no file has a whole
tensor; `read_whole` puts them together.
"""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from .. import _tree
from .._checkpointer import Checkpointer
from .._dcp.planners import LoadPlanner, SavePlanner
from .._dcp.reader import StorageReader
from .._dcp.writer import StorageWriter
from .._tree.writer import Names
from .contents import RANK, TRAINER


class Upload:
    """A save through DCP, with what is used of a Save."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        with suppress(CancelledError):
            self._future.result()


def is_sharded(model: Any) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def start(
    checkpointer: Checkpointer,
    step: int,
    model: Any,
    optimizer: Any,
    shared: dict[str, Any],
    own: dict[str, Any],
    *,
    replace: bool,
    group: Any,
) -> Upload:
    """Starts the save; every rank calls it. `group` (gloo) is for it alone, because it talks while training goes on."""
    weights = get_model_state_dict(model)
    parameters = {name for name, _ in model.named_parameters()}
    state = {
        "model": {name: one if name in parameters else _copied(one) for name, one in weights.items()},
        "optimizer": get_optimizer_state_dict(model, getattr(optimizer, "optimizer", optimizer)),
        TRAINER: _as_state(shared),
        f"{RANK}{checkpointer.rank}": _as_state(own),
    }
    writer = StorageWriter(checkpointer, step, replace=replace)
    response: Any = state_dict_saver.async_save(
        state, storage_writer=writer, planner=SavePlanner(), process_group=group
    )
    return Upload(getattr(response, "upload_completion", response))


def load_model(checkpointer: Checkpointer, step: int, model: Any) -> None:
    """Reads the weights into the model; every rank calls it."""
    state = {"model": get_model_state_dict(model)}
    _load(checkpointer, step, state)
    set_model_state_dict(model, state["model"])


def load_optimizer(checkpointer: Checkpointer, step: int, model: Any, optimizer: Any) -> None:
    inner = getattr(optimizer, "optimizer", optimizer)
    state = {"optimizer": get_optimizer_state_dict(model, inner)}
    _load(checkpointer, step, state)
    set_optimizer_state_dict(model, inner, state["optimizer"])


def load_plain(checkpointer: Checkpointer, step: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What is below "trainer", and this rank's own: None if another number of ranks saved. Every rank calls it."""
    found = _stored(checkpointer, step)
    ranks = [name for name in found if name.startswith(RANK) and name.endswith(".text")]
    own = f"{RANK}{checkpointer.rank}"
    state = {key: _room(found, key) for key in (TRAINER, own) if key == TRAINER or len(ranks) == checkpointer.world}
    _load(checkpointer, step, state)
    return _from_state(state[TRAINER]), _from_state(state[own]) if own in state else None


def read_whole(checkpointer: Checkpointer, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is below "trainer", and the weights, whole and on the CPU: by one process alone."""
    found = _stored(checkpointer, step)
    model = {name.partition(".")[2]: _empty(about) for name, about in found.items() if name.startswith("model.")}
    state = {"model": model, TRAINER: _room(found, TRAINER)}
    _load(checkpointer, step, state, no_dist=True)
    return _from_state(state[TRAINER]), model


def _stored(checkpointer: Checkpointer, step: int) -> dict[str, Any]:
    """DCP's metadata by name. Raises InvalidArgument for a checkpoint that DCP has not saved."""
    return StorageReader(checkpointer, step).read_metadata().state_dict_metadata


def _room(found: dict[str, Any], key: str) -> dict[str, Any]:
    """What `_as_state` gave, with room for its tensors."""
    prefix = f"{key}.tensors."
    tensors = {name.removeprefix(prefix): _empty(about) for name, about in found.items() if name.startswith(prefix)}
    return {"text": "", "tensors": tensors}


def _empty(about: Any) -> torch.Tensor:
    return torch.empty(about.size, dtype=about.properties.dtype)


def _load(checkpointer: Checkpointer, step: int, state: dict[str, Any], *, no_dist: bool = False) -> None:
    reader = StorageReader(checkpointer, step)
    state_dict_loader.load(state, storage_reader=reader, planner=LoadPlanner(), no_dist=no_dist)


def _as_state(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree's text, which keeps every plain value's type, and its tensors by name."""
    sink = Names()
    text = _tree.flatten(tree, sink)
    return {"text": text, "tensors": {name: torch.as_tensor(one) for name, one in sink.tensors.items()}}


def _from_state(state: dict[str, Any]) -> dict[str, Any]:
    kinds = _tree.kinds(state["text"])
    tensors = {
        name: one if kinds[name].partition(" ")[0] == "torch" else one.numpy() for name, one in state["tensors"].items()
    }
    tree = _tree.build(state["text"], tensors)
    assert isinstance(tree, dict)
    return tree


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def new_group() -> Any:
    """A group of all ranks for saves in the background."""
    return dist.new_group(backend="gloo")
