"""BatchNorm's running statistics under DDP differ between ranks. Rank 0's are the run's, whatever form the tree has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import World

Worlds = Callable[..., World]

TRAIN = """
dist.init_process_group("gloo")
def a_run():
    torch.manual_seed(1)
    ddp = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)))
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
def train(ddp, optimizer, *steps):
    for step in steps:
        torch.manual_seed(100 * step + rank)  # Each rank has batches of its own.
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
def bits(ddp, optimizer):
    state = {**ddp.state_dict(), **{f"momentum{i}": s["momentum_buffer"] for i, s in optimizer.state_dict()["state"].items()}}
    return [[k, v.flatten().tolist()] for k, v in state.items()]
"""
FORMS = {
    "ddp": '{"model": ddp, "optimizer": optimizer}',
    "the module within": '{"model": ddp.module, "optimizer": optimizer}',
    "its state dict": '{"model": ddp.module.state_dict(), "optimizer": optimizer}',
}


@pytest.fixture
def world(worlds: Worlds) -> World:
    made = worlds(2, 'replicated=["model/*", "optimizer/*"]', fresh=True)
    assert made.all(TRAIN) == [None] * 2
    return made


def test_a_run_that_is_resumed_goes_on_like_one_that_never_stopped(world: World, root: Path) -> None:
    def run(code: str) -> list[Any]:
        return world.all(code)

    run("ddp, optimizer = a_run(); train(ddp, optimizer, 1, 2)")
    statistics = run('ddp.state_dict()["module.1.running_mean"].tolist()')
    assert statistics[0] != statistics[1]
    for step, form in enumerate(FORMS.values(), 1):
        assert run(f"c.save({step}, {form}).result()") == [step] * 2
    run("train(ddp, optimizer, 3, 4)")
    expected = run("bits(ddp, optimizer)")

    for step, (name, form) in enumerate(FORMS.items(), 1):
        run("ddp, optimizer = a_run()")
        assert run(f"tree = c.restore({form}, {step})\ntype(tree).__name__") == ["dict"] * 2
        assert run('ddp.state_dict()["module.1.running_mean"].tolist()') == [statistics[0]] * 2, name
        run("train(ddp, optimizer, 3, 4)")
        assert run("bits(ddp, optimizer)") == expected, name
    run("c.close()")
