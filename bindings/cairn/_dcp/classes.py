"""The classes of the optimizers in a state dict, where it has the optimizers themselves: DCP's format has none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from .._protect import inner_optimizer
from .._tree.optimizer_states import dtypes_kept, has_torchs_load, names_of

Classes = dict[str, list[type]]  # By key of the state dict.


def classes_in(state: Mapping[str, Any]) -> Classes:
    """Of each optimizer, or what holds several, as torchtitan's does."""
    found = {str(key): [*dict.fromkeys(map(type, _optimizers_in(value)))] for key, value in state.items()}
    return {key: kinds for key, kinds in found.items() if kinds}


def _optimizers_in(value: Any) -> list[Any]:
    held = getattr(value, "__dict__", {}).get("optimizers")  # A property would run code.
    each = held if isinstance(held, (list, tuple)) else [value]
    return [inner_optimizer(one) for one in each if isinstance(one, torch.optim.Optimizer)]


@contextlib.contextmanager
def state_kept(state: Mapping[str, Any], allow_loss: bool) -> Iterator[None]:
    """Keeps torch's load_state_dict of the optimizers in a state dict from changing what they are given."""
    with contextlib.ExitStack() as stack:
        for optimizer in chain(*map(_optimizers_in, state.values())):
            if has_torchs_load(optimizer):
                stack.enter_context(dtypes_kept(optimizer, allow_loss))
        yield


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
