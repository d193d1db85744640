"""should_save: the tuner's choice in a running job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from jobs import expect_whole
from ranks import World

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

    with pytest.raises(cairn.FailedPrecondition, match="without interval=..., or slowdown=... and mtbf=..."):
        checkpointer.should_save(1)
    assert checkpointer.stats["save_interval"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slowdown": 0.01}, "expected both or neither"),
        ({"mtbf": 3600.0}, "expected both or neither"),
        ({"slowdown": 2.0, "mtbf": 3600.0}, "slowdown: expected 1e-09 to 1, found 2"),
        ({"slowdown": "x", "mtbf": 3600.0}, "slowdown: expected a number of 0 or more, found 'x'"),
        ({"slowdown": 0.01, "mtbf": "x"}, "mtbf: expected 0 to 1e9 seconds, found 'x'"),
        ({"restart_time": "x"}, "restart_time: expected 0 to 1e9 seconds, found 'x'"),
        ({"slowdown": 0.01, "mtbf": 0.0}, "mtbf"),
        ({"slowdown": 0.01, "mtbf": 3600.0, "restart_time": -1.0}, "restart_time: expected 0 to 1e9"),
        ({"slowdown": 0.01, "mtbf": float("nan")}, "mtbf: expected 0 to 1e9 seconds, found nan"),
    ],
)
def test_goals_that_cannot_be_are_named(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(cairn.InvalidArgument, match=message):
        make(**options)


def test_an_interval_of_time(make: Make) -> None:
    checkpointer = make(interval=3600)
    assert not checkpointer.should_save(1)
    checkpointer._engine.interval._last -= 3600  # As if an hour had passed.
    assert checkpointer.should_save(2)
    assert checkpointer.should_save(3), "it stays due until a save begins"

    checkpointer.save(3, {"step": 3})

    assert not checkpointer.should_save(4)
    for wrong in ({"interval": 0.0}, {"interval": -1.0}, {"interval": 5.0, "slowdown": 0.01, "mtbf": 10.0}):
        with pytest.raises(cairn.InvalidArgument, match="interval: expected seconds"):
            make(**wrong)


# Each step ends with a collective, as in training.
TRAIN = """
import time
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
def train(saves, most):
    step, saved, began = 0, [], time.monotonic()
    while len(saved) < saves and step < most:
        step += 1
        dist.all_reduce(torch.ones(1))
        if c.should_save(step):
            c.save(step, {"mine": torch.ones(3), "step": step})
            saved.append(step)
    c.drain()
    return saved, time.monotonic() - began
"""


@pytest.mark.parametrize("options", ["interval=0.3", "slowdown=0.5, mtbf=5.0"])
def test_all_ranks_save_the_same_steps(worlds: Callable[..., World], root: Path, options: str) -> None:
    world = worlds(3, f'replicated="step", keep_last=0, {options}')
    assert world.all(TRAIN) == [None] * 3

    saved = [steps for steps, _ in world.all("train(3, 10**9)")]

    assert saved[0] == saved[1] == saved[2] and len(saved[0]) == 3, saved
    expect_whole(root, *saved[0])


def test_the_ranks_talk_about_it_rarely(worlds: Callable[..., World]) -> None:
    """Rank 0 says a message about twice a second, or for 100 steps; the others say none."""
    world = worlds(2, "interval=3600.0")
    count = """
messages = []
from cairn._ranks.store_link import unpack
from cairn._ranks.stores import Connection
put = Connection.set_if_absent
def counted(self, name, entry):
    kind, parts = unpack(entry)
    if kind == "message":
        messages.append(parts[1].decode())
    return put(self, name, entry)
Connection.set_if_absent = counted
"""
    assert world.all(TRAIN + count) == [None] * 2

    seconds = world.all("train(1, 2000)")[0][1]

    said = world.all("messages")
    assert {key.partition("/")[0] for key in said[0]} == {"window"} and said[1] == []
    assert len(said[0]) <= 4 * seconds + 2 * 2000 / 100 + 20


def test_a_rank_that_never_asks_is_told(worlds: Callable[..., World]) -> None:
    world = worlds(2, "interval=3600.0", timeout=2)
    assert world[1].run("c.should_save(1)") is False

    answer = world[1].start("c.should_save(2)").answer()

    assert answer["error"] == "DeadlineExceeded"
    assert "should_save(2): rank 0 has not called it in time: every rank calls it once" in answer["message"]
