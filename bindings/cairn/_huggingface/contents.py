"""What a checkpoint of the Trainer holds: the model's weights under their own names, and the rest below two keys.

    {"transformer.wte.weight": ..., "lm_head.weight": ...,        the weights, as transformers names them
     "trainer": {"state": ..., "parts": ..., "tensors": {...}},   alike on every rank: optimizer, scheduler, ...
     "trainer_rank": {...}}                                       of each rank: random generators, the loss of now

The tensors below "trainer" are kept in one flat dict, under names such as `optimizer.state.0.exp_avg`. transformers
lists what it does not know in a shard; with such names that is one line for each kind, not one for each tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .._errors import Corrupt, InvalidArgument

FORMAT = "cairn.huggingface/2"
TRAINER = "trainer"
RANK = "trainer_rank"
_MARK = "~tensor"


def weights_of(model: Any) -> dict[str, Any]:
    """The model's state dict. Buffers are copied, because forward changes them (batch norm's) without a fence before
    it. Of tied weights the one that transformers expects in a file comes first, and so holds the bytes.

    Raises InvalidArgument if a name is one of the two keys.
    """
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    later = getattr(model, "all_tied_weights_keys", None) or {}
    weights: dict[str, Any] = {}
    for name, tensor in sorted(model.state_dict().items(), key=lambda item: item[0] in later):
        weights[name] = tensor
        if isinstance(tensor, torch.Tensor) and tensor.data_ptr() not in parameters:
            weights[name] = tensor.clone()
    if taken := {TRAINER, RANK} & weights.keys():
        raise InvalidArgument(f"the model's {taken.pop()!r} has a name that checkpoints of a Trainer need: rename it")
    return weights


def tied_names(weights: Mapping[str, Any]) -> set[str]:
    """The names of tensors that an earlier one holds the bytes of."""
    seen: set[Any] = set()
    tied: set[str] = set()
    for name, tensor in weights.items():
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if key in seen:
                tied.add(name)
            seen.add(key)
    return tied


def pack(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts, lists and tuples as "parts", with a mark in place of each tensor, and the "tensors" by their paths."""
    tensors: dict[str, Any] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[path] = value
            return (_MARK, path)
        if type(value) is dict:
            return {key: walk(child, f"{path}.{key}" if path else str(key)) for key, child in value.items()}
        if type(value) in (list, tuple):
            return type(value)(walk(child, f"{path}.{i}") for i, child in enumerate(value))
        return value

    skeleton = walk(dict(parts), "")
    return {"parts": skeleton, "tensors": tensors}


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that `pack` was given. Raises Corrupt if a tensor is missing."""
    tensors = packed["tensors"]

    def walk(value: Any) -> Any:
        if type(value) is tuple and len(value) == 2 and value[0] == _MARK:
            if value[1] not in tensors:
                raise Corrupt(f"the checkpoint lacks the tensor {TRAINER}/tensors/{value[1]}")
            return tensors[value[1]]
        if type(value) is dict:
            return {key: walk(child) for key, child in value.items()}
        if type(value) in (list, tuple):
            return type(value)(walk(child) for child in value)
        return value

    parts = walk(packed["parts"])
    assert isinstance(parts, dict)
    return parts
