"""What a checkpoint of the Trainer holds: the model's weights under their own names, and the rest below two keys.

    {"transformer.wte.weight": ..., "lm_head.weight": ...,        the weights, as transformers names them
     "trainer": {"state": ..., "parts": ..., "tensors": {...}},   identical on every rank: optimizer, scheduler, ...
     "trainer_rank": {...}}                                       of each rank: random generators, the loss of now

The tensors below "trainer" are kept in one flat dict, under names such as `optimizer.state.0.exp_avg`. transformers
lists what it does not know in a shard; with such names that is one line for each kind, not one for each tensor.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .._dcp.containers import ModuleMetadata, give_metadata
from .._errors import Corrupt, InvalidArgument
from .._memory import cloned
from .._ranks.digests import digest
from .._tree.paths import listed, part_of
from .._tree.tensors import Placement

FORMAT = "cairn.huggingface/2"
TRAINER = "trainer"
RANK = "trainer_rank"
_MARK = "~tensor"


def is_adapter(model: Any) -> bool:
    """Whether it is PEFT's: a frozen base model with adapters."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def live_weights(model: Any, only_trainable: bool) -> dict[str, Any]:
    """What a checkpoint holds of the model's state dict, the parameters themselves. Of tied weights the one that
    transformers expects in a file comes first, and so holds the bytes.

    `only_trainable` leaves out frozen parameters. The names of an adapter's are those of PEFT's files.
    """
    later = getattr(model, "all_tied_weights_keys", None) or {}
    held = dict(sorted(model.state_dict(keep_vars=True).items(), key=lambda item: item[0] in later))
    if not only_trainable:
        return held
    adapters: dict[str, Any] = {}
    if is_adapter(model):
        names_of = sys.modules["peft"].get_peft_model_state_dict
        adapters = names_of(model, state_dict=held, save_embedding_layers=False)
    named = {id(tensor) for tensor in adapters.values()}
    frozen = {id(parameter) for parameter in model.parameters() if not parameter.requires_grad}
    return adapters | {name: one for name, one in held.items() if id(one) not in named | frozen}


def weights_of(model: Any, only_trainable: bool) -> tuple[dict[str, Any], frozenset[str]]:
    """The same, to be saved, and which of them are frozen. Buffers are copied, because forward changes them (batch norm's)
    without a fence before it.

    Raises InvalidArgument if a name is one of the two keys.
    """
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    weights = live_weights(model, only_trainable)
    frozen = {name for name, one in weights.items() if isinstance(one, torch.nn.Parameter) and not one.requires_grad}
    for name, tensor in weights.items():
        if isinstance(tensor, torch.Tensor):
            buffer = tensor.data_ptr() not in parameters
            weights[name] = cloned(tensor) if buffer else tensor.detach()
    if taken := {TRAINER, RANK} & weights.keys():
        raise InvalidArgument(f"the model's {taken.pop()!r} has a name that checkpoints of a Trainer need: rename it")
    return weights, frozenset(frozen)


def versioned(model: Any, weights: Mapping[str, Any], modules: ModuleMetadata | None) -> Mapping[str, Any]:
    """Weights for the model's load_state_dict, with the versions of its modules' state at the save: without them it takes
    that for state of the first version, and migrates it. None: the checkpoint is of before they were kept."""
    own = getattr(model.state_dict(), "_metadata", None)
    if modules is None or own is None:
        return weights
    made = OrderedDict(weights)
    vars(made)["_metadata"] = own
    give_metadata(modules, "", made)
    return made


def load_weights(
    model: Any, weights: Mapping[str, Any], only_trainable: bool, modules: ModuleMetadata | None = None
) -> None:
    """Puts into the model what `live_weights` names. `modules`: see `versioned`."""
    if not only_trainable:
        model.load_state_dict(versioned(model, weights, modules))
        return
    held = model.state_dict(keep_vars=True)
    names = {id(one): name for name, one in held.items() if isinstance(one, torch.Tensor)}
    own = {
        name: names.get(id(one), name) for name, one in live_weights(model, True).items()
    }  # PEFT's files have others.
    # What PEFT makes of parameters is beside these.
    state = {name: weights[given] for given, name in own.items() if name in held}
    model.load_state_dict(versioned(model, state, modules), strict=False)


class FrozenDigests:
    """Digests of the contents of a model's frozen parameters, which no checkpoint holds. One is read again only once it
    has other memory, another version or another dtype: then it is not what it was; or if nobody counts what is written into
    it: an inference tensor, and what an optimizer has and so may have stepped."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, str]] = {}

    def of(self, model: Any, optimizer: Any = None) -> dict[str, str]:
        """By name."""
        held = {id(tensor) for tensor in live_weights(model, True).values()}
        stepped = {id(one) for group in getattr(optimizer, "param_groups", ()) for one in group["params"]}
        found: dict[str, tuple[Any, str]] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) not in held:
                mark = None if tensor.is_inference() or id(tensor) in stepped else _mark_of(tensor)
                known = self._known.get(name)
                found[name] = known if mark and known and known[0] == mark else (mark, digest(tensor))
        self._known = found
        return {name: digest for name, (_, digest) in found.items()}


def _mark_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Another one once its contents may be others. The storage itself: another may get its memory."""
    storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    return storage, tensor.storage_offset(), tensor.stride(), tensor.shape, tensor.dtype, tensor._version


def check_frozen(found: Mapping[str, str], saved: Mapping[str, str], where: str) -> None:
    """Raises InvalidArgument, with names, if a checkpoint's frozen parameters differ from the model's."""
    wrong = sorted(name for name in {*found, *saved} if found.get(name) != saved.get(name))
    if wrong:
        first = wrong[0]
        raise InvalidArgument(
            f"{where} holds only what is trained, for a base model of which this model differs in "
            f"{listed(wrong, 3)} ({first}: expected {saved.get(first, 'none')}, found "
            f"{found.get(first, 'none')}): begin with the base model, dtype and adapter of that run"
        )


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

    def below(path: str, key: Any) -> str:
        part = part_of(key, path).replace(".", "~2")  # No two keys give one part, and so no two tensors one path.
        return f"{path}.{part}" if path else part

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[path] = value
            return (_MARK, path)
        if type(value) is dict:
            return {key: walk(child, below(path, key)) for key, child in value.items()}
        if type(value) in (list, tuple):
            return type(value)(walk(child, below(path, i)) for i, child in enumerate(value))
        return value

    skeleton = walk(dict(parts), "")
    return {"parts": skeleton, "tensors": tensors}


def state_on(device: torch.device) -> Placement:
    """Where a restore makes the optimizer's state, which torch would move there: not in the CPU's memory first. The
    numbers of steps stay where torch wants them."""
    tensors = f"{TRAINER}/tensors/optimizer.state."

    def place(name: str) -> torch.device | None:
        return device if name.startswith(tensors) and not name.endswith(".step") else None

    return Placement(place)


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
