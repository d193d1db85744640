"""Checkpoints of a model that FSDP2 has sharded: each rank writes its part of every tensor, through cairn.dcp.

    {"model": ..., "optimizer": ...,                 by parameter names, as DTensors
     "trainer": {"text": ..., "tensors": {...}},     of rank 0: the state, the scheduler, the scaler
     "trainer_rank0": {...}, "trainer_rank1": ...}   of each rank: random generators, the loss of now

They can be read by any number of ranks. Config and tokenizer are beside the shards. But such a checkpoint's folder is no
model folder, because no file has a whole tensor; `read_whole` puts them together, and so does `cairn export
--model-folder`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

from .. import _tree
from .._checkpointer import Checkpointer
from .._dcp import direct
from .._dcp.frozen import Frozen
from .._dcp.loading import items_in
from .._dcp.optimizer_states import get_optimizer_state, set_optimizer_state
from .._memory import cloned
from .._save import Save
from .._tree.writer import Names
from .contents import RANK, TRAINER


def is_sharded(model: Any) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def start(
    checkpointer: Checkpointer,
    step: int,
    model: Any,
    optimizer: Any,
    shared: dict[str, Any],
    own: dict[str, Any],
    read_files: Callable[[], None],
    *,
    links: bool,
    replace: bool,
    hold: float,
) -> Save:
    """Starts the save; every rank calls it. `read_files` runs within, so that its error reaches the ranks that would wait
    for this one. If it `links`, frozen parameters are written once."""
    frozen = Frozen(links)
    frozen.look_at({"model": model})
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    def gather() -> tuple[dict[str, Any], dict[str, Any]]:
        read_files()
        weights = get_model_state_dict(model)
        for name in weights.keys() - parameters:
            weights[name] = _copied(weights[name])
        state = {
            "model": weights,
            "optimizer": get_optimizer_state(model, getattr(optimizer, "optimizer", optimizer)),
            TRAINER: _as_state(shared),
            f"{RANK}{checkpointer.rank}": _as_state(own),
        }
        return state, {}

    def is_buffer(fqn: str) -> bool:
        return fqn.startswith("model.") and fqn.removeprefix("model.") not in parameters

    return direct.start_save_of(
        checkpointer, step, gather, replace=replace, hold=hold, is_buffer=is_buffer, frozen=frozen
    )


def load_model(
    checkpointer: Checkpointer,
    step: int | None,
    model: Any,
    folder: str = "",
    optimizer: Any = None,
    cast: str | None = None,
) -> None:
    """Reads the weights into the model, of a step, or of the checkpoint in `folder`, and the optimizer's state if there is
    one: what does not fit is refused before either is written. Every rank calls it."""
    inner = getattr(optimizer, "optimizer", optimizer)
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if inner is not None:
        state["optimizer"] = get_optimizer_state(model, inner)
    direct.load_into(checkpointer, state, step, folder=folder, cast=cast, parts=True)
    set_model_state_dict(model, state["model"])
    if inner is not None:
        set_optimizer_state(model, inner, state["optimizer"])


def load_plain(
    checkpointer: Checkpointer, step: int | None, folder: str = ""
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What is below "trainer", and this rank's own: None if another number of ranks saved. Every rank calls it."""
    paths = items_in(checkpointer, folder, step, ()).paths.values()
    ranks = {path[0] for path in paths if str(path[0]).startswith(RANK)}
    own = f"{RANK}{checkpointer.rank}"
    top = {TRAINER, own} if len(ranks) == checkpointer.world else {TRAINER}
    state = direct.load_all(checkpointer, folder, step, top=top, together=True)
    return _from_state(state[TRAINER]), _from_state(state[own]) if own in top else None


def read_whole(checkpointer: Checkpointer, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is below "trainer", and the weights, whole and on the CPU: by one process alone."""
    state = direct.load_all(checkpointer, folder, top=("model", TRAINER))
    return _from_state(state[TRAINER]), state["model"]


def _as_state(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree's text, which keeps every plain value's type, and its tensors by name."""
    sink = Names()
    text = _tree.flatten(tree, sink)
    return {"text": text, "tensors": {name: torch.as_tensor(one) for name, one in sink.tensors.items()}}


def _from_state(state: dict[str, Any]) -> dict[str, Any]:
    kinds = _tree.kinds(state["text"])
    tensors = {
        name: one if kinds[name].partition(" ")[0] == "torch" else one.numpy()
        for name, one in state.get("tensors", {}).items()
    }
    tree = _tree.build(state["text"], tensors)
    assert isinstance(tree, dict)
    return tree


def _copied(value: Any) -> Any:
    return cloned(value) if isinstance(value, torch.Tensor) else value
