"""Which values of a Lightning checkpoint are kept, and where its tensors are put."""

from __future__ import annotations

import copy
from collections import deque
from enum import Enum
from typing import Any

import torch

from .._errors import InvalidArgument
from .._tree.paths import is_stateful, versions_along
from .._tree.values import dataclass_fields

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, complex, str, bytes})


def check_kept(value: Any, name: str, depth: int = 0) -> None:
    """Refuses values that would come back as another type: nothing says at load what they were."""
    if depth > 64:
        return  # `flatten` refuses such a depth.
    if type(value).__module__.partition(".")[0] == "omegaconf":
        raise InvalidArgument(
            f"{name}: a {type(value).__name__} of OmegaConf cannot be kept; keep a plain copy: "
            "self.save_hyperparameters(OmegaConf.to_container(config, resolve=True))"
        )
    if is_stateful(value) or isinstance(value, Enum):
        hint = "keep its name or its value" if isinstance(value, Enum) else "keep its state_dict()"
        raise InvalidArgument(f"{name}: a value of type {type(value).__qualname__} cannot be kept; {hint}")
    children = value if isinstance(value, dict) else dataclass_fields(value)
    if children is not None or isinstance(value, (list, tuple, set, frozenset, deque)):
        for key, child in enumerate(value) if children is None else children.items():
            if type(child) not in _PLAIN:
                check_kept(child, f"{name}/{key}" if name else str(key), depth + 1)


def device_of(where: Any) -> torch.device | None:
    """The device of a map_location: a device, its name, or a dict with the key "cpu"."""
    if isinstance(where, dict):
        where = where.get("cpu")
    if where is None:
        return None
    if not isinstance(where, (str, int, torch.device)):
        raise InvalidArgument(f"map_location: expected a device, its name or a dict, found {type(where).__name__}")
    return torch.device(where)


def to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        moved = copy.copy(value)  # With an OrderedDict's _metadata.
        moved.update({key: to_device(child, device) for key, child in value.items()})
        return moved
    if type(value) in (list, tuple):
        return type(value)(to_device(child, device) for child in value)
    return value


def fit_versions(module: Any, loaded: Any) -> bool:
    """Gives a checkpoint's state dict of a module the versions by this module's names, which may be wrapped otherwise.
    Whether that changes them."""
    saved = getattr(loaded, "_metadata", None)
    found = versions_along(saved, getattr(module.state_dict(), "_metadata", None))
    if found == saved:
        return False
    loaded._metadata = found
    return True
