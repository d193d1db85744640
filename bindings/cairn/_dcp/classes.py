"""The classes of the optimizers in a state dict, where it has the optimizers themselves: DCP's format has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .._protect import inner_optimizer
from .._tree.optimizer_states import names_of

Classes = dict[str, list[type]]  # By key of the state dict.


def classes_in(state: Mapping[str, Any]) -> Classes:
    """Of each optimizer, or what holds several, as torchtitan's does."""
    kind = torch.optim.Optimizer
    found: Classes = {}
    for key, value in state.items():
        held = getattr(value, "__dict__", {}).get("optimizers")  # A property would run code.
        each = held if isinstance(held, (list, tuple)) else [value]
        classes = {type(inner_optimizer(one)): None for one in each if isinstance(one, kind)}
        if classes:
            found[str(key)] = [*classes]
    return found


def class_names(classes: Classes) -> dict[str, list[str]]:
    return {key: sorted(kind.__name__ for kind in kinds) for key, kinds in classes.items()}


def unlike_classes(own: Classes, saved: Mapping[str, list[str]]) -> list[str]:
    """Where a class is not among the checkpoint's. It has those of all ranks: the stages of a pipeline may have some each,
    and be others by now."""
    unlike = []
    for key in own.keys() & saved.keys():
        if not all(names_of(kind) & {*saved[key]} for kind in own[key]):
            mine = ", ".join(sorted(kind.__name__ for kind in own[key]))
            unlike.append(f'"{key}" is {mine} in the state to load into, {", ".join(saved[key])} in the checkpoint')
    return unlike
