"""should_save: the tuner's choice in a running job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cairn
import pytest
import torch

Make = Callable[..., cairn.Checkpointer]


def train(parameter: torch.Tensor) -> None:
    """An iteration of some milliseconds, which reads the state and then writes it."""
    for _ in range(4):
        gradient = parameter @ parameter
    parameter.sub_(gradient.clamp(-1, 1), alpha=1e-3)


def test_it_times_then_measures_then_keeps_its_interval(make: Make) -> None:
    checkpointer = make(slowdown=0.5, mtbf=5.0)
    parameter = torch.rand(256, 256)
    assert "timing" in checkpointer.stats["save_interval_reason"]
    saved: list[int] = []
    step = 0

    while len(saved) < 4:
        step += 1
        checkpointer.fence()
        train(parameter)
        if checkpointer.should_save(step):
            checkpointer.save(step, {"parameter": parameter, "step": step})
            saved.append(step)

    checkpointer.drain()
    assert saved[0] >= 7
    stats = checkpointer.stats
    assert stats["save_interval"] >= 1
    assert "a save " in stats["save_interval_reason"]
    assert checkpointer.latest() == saved[-1]


def test_without_a_goal_it_is_refused(make: Make) -> None:
    checkpointer = make()

    with pytest.raises(cairn.FailedPrecondition, match="steering is not set"):
        checkpointer.should_save(1)
    assert checkpointer.stats["save_interval"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slowdown": 0.01}, "expected both or neither"),
        ({"mtbf": 3600.0}, "expected both or neither"),
        ({"slowdown": 2.0, "mtbf": 3600.0}, "slowdown: expected 1e-09 to 1, found 2"),
        ({"slowdown": 0.01, "mtbf": 0.0}, "mtbf"),
        ({"slowdown": 0.01, "mtbf": 3600.0, "restart_time": -1.0}, "restart_time: expected 0 to 1e9"),
        ({"slowdown": 0.01, "mtbf": float("nan")}, "mtbf: expected 0 to 1e9 seconds, found nan"),
    ],
)
def test_goals_that_cannot_be_are_named(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(cairn.InvalidArgument, match=message):
        make(**options)


def test_several_ranks_are_refused(make: Make) -> None:
    store = torch.distributed.HashStore()

    with pytest.raises(cairn.InvalidArgument, match="single rank, found 2"):
        make(slowdown=0.01, mtbf=3600.0, group=(store, 0, 2), group_timeout=1.0)
