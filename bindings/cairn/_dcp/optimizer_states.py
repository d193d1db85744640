"""An optimizer's state by the names of parameters, as torch's state_dict API gives and takes it, without what that loses."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from .._tree.paths import listed, uncompiled

_log = logging.getLogger("cairn")
_told: weakref.WeakSet[Any] = weakref.WeakSet()  # The optimizers of which the log has said what is left out.


def get_optimizer_state(module: Any, optimizer: Any) -> dict[str, Any]:
    """As get_optimizer_state_dict, but the log names what else the optimizer keeps, once."""
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict and optimizer not in _told:
        _told.add(optimizer)
        more = sorted(map(str, optimizer.state_dict().keys() - {"state", "param_groups"}))
        if more:
            _log.warning(
                "%s: sharded checkpoints do not keep what its state_dict() has beside groups and the state of parameters: %s",
                type(optimizer).__name__,
                listed(more),
            )
    state: dict[str, Any] = get_optimizer_state_dict(module, optimizer)
    return state


def set_optimizer_state(module: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """As set_optimizer_state_dict, but state of frozen parameters, which an optimizer may have made at its construction, is
    kept."""
    loaded = state["state"]
    set_optimizer_state_dict(module, optimizer, state)
    given = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for name, parameter in module.named_parameters():
        entries = loaded.get(uncompiled(name)) if id(parameter) in given and not parameter.requires_grad else None
        if entries and not optimizer.state.get(parameter):
            optimizer.state[parameter] = dict(entries)
