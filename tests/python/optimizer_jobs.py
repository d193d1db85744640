"""Optimizers for tests, and how they are saved and restored without files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import cairn
import pytest
import torch
from cairn._tree import plan_restore
from torch import nn
from trees import describe, empty, in_file

optim = torch.optim
ALL: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "AdamW amsgrad": lambda p: optim.AdamW(p, amsgrad=True),
    "Adamax": optim.Adamax,
    "ASGD": optim.ASGD,
    "LBFGS": optim.LBFGS,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": lambda p: optim.RMSprop(p),
    "RMSprop centered": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": optim.Rprop,
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SparseAdam": lambda p: optim.SparseAdam([*p]),
    **({"Muon": lambda p: optim.Muon([one for one in p if one.ndim == 2])} if hasattr(optim, "Muon") else {}),
}


class Master(optim.Optimizer):
    """bf16 parameters with moments and a copy in fp32, a quantised one, and what is flat."""

    def __init__(self, parameters: Any, flat: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.flat = flat

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if (grad := parameter.grad) is not None:
                state = self.state[parameter]
                if not state:
                    state |= {
                        "master": parameter.detach().float().clone(),
                        "m": torch.zeros_like(parameter, dtype=torch.float32),
                    }
                    state["q"] = torch.zeros(parameter.shape, dtype=torch.uint8)
                    state["history"] = [torch.ones(3), {"flat": grad.float().flatten()}]
                    if self.flat:
                        state["m"] = state["m"].flatten()
                state["m"] += grad.float().reshape(state["m"].shape) / 3
                state["q"] += 3
                parameter.copy_(state["master"].sub_(0.1 * state["m"].view_as(parameter)))


class Stateless(optim.AdamW):
    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)


def network(size: int = 3, layers: str = "ab", dtype: Any = None) -> nn.Module:
    torch.manual_seed(size)
    return nn.ModuleDict({name: nn.Linear(size, size, dtype=dtype) for name in layers})


def step(model: nn.Module, optimizer: optim.Optimizer, times: int = 1) -> None:
    def closure() -> torch.Tensor:
        total = torch.zeros(())
        for i, parameter in enumerate(model.parameters(), 1):
            if parameter.requires_grad:
                grad = torch.full_like(parameter, 0.1 * i)
                parameter.grad = grad.to_sparse() if isinstance(optimizer, optim.SparseAdam) else grad
                total = total + parameter.detach().float().sum()
        return total

    for _ in range(times):
        closure()
        optimizer.step(*[closure] * isinstance(optimizer, optim.LBFGS))


def trained(make: Callable[[Any], Any], size: int = 3, named: bool = False, layers: str = "ab") -> tuple[Any, Any]:
    model = network(size, layers)
    optimizer = make(model.named_parameters() if named else model.parameters())
    step(model, optimizer, 2)
    return model, optimizer


def older(saved: Any, *lacks: str) -> Any:
    """As an older Cairn, which did not keep these beside the tree, has saved it."""
    text = json.loads(saved[0])
    return json.dumps({key: value for key, value in text.items() if key not in lacks}), saved[1]


def nameless(saved: Any) -> Any:
    """Without the class too."""
    return older(saved, "optimizers", "parameters")


def refused(saved: Any, tree: Any, partial: bool = False) -> str:
    text, tensors = saved
    stored = {name: in_file(tensor) for name, tensor in tensors.items()}
    with pytest.raises(cairn.InvalidArgument) as caught:
        plan_restore(text, stored, tree, describe, empty, partial=partial)
    return str(caught.value)


def in_part(saved: Any, tree: Any) -> list[str]:
    """Restores with strict=False, and returns what is said of it."""
    text, tensors = saved
    stored = {name: in_file(tensor) for name, tensor in tensors.items()}
    plan = plan_restore(text, stored, tree, describe, empty, partial=True)
    with torch.no_grad():
        for name, target in plan.tensors.items():
            target.copy_(tensors[name])
    plan.finish()
    return plan.remarks
