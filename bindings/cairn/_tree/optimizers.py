"""Where the state is made that an optimizer lacks: on its parameters' devices.

torch's load_state_dict moves each tensor to its parameter's device. If it was read into the CPU's memory, a restore would
need as much of that as the whole state.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import Any

from .._protect import inner_optimizer


class Beside:
    """Stands, in an optimizer's state dict, for the state of a parameter that has none yet."""

    def __init__(self, device: Any) -> None:
        self.device = device


def device_beside(like: Any, name: str) -> Any:
    """The device of the tensor of this name, of which the tree has `like`; None for the usual one."""
    # load_state_dict leaves the number of steps where it is.
    if not isinstance(like, Beside) or name.endswith("/step"):
        return None
    return like.device


def with_missing_state(holder: Any, state: Any) -> Any:
    """An optimizer's state dict with a Beside for each parameter on a GPU that has no state; any other one as it is."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(holder, torch.optim.Optimizer):
        return state
    optimizer = inner_optimizer(holder)
    # Another load_state_dict may want the state elsewhere, such as on the CPU.
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return state
    try:
        numbers = list(chain.from_iterable(group["params"] for group in state["param_groups"]))
        parameters = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
        held = state["state"]
        missing = {
            number: Beside(parameter.device)
            for number, parameter in zip(numbers, parameters, strict=True)
            if number not in held and parameter.device.type != "cpu"
        }
        return {**state, "state": {**missing, **held}} if missing else state
    except (KeyError, TypeError, ValueError):
        return state  # A state dict of its own.
