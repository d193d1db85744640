"""Optimizer steps around saves: no save is lost, held up or failed because of a step that is protected."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cairn
import pytest
import torch

Make = Callable[..., cairn.Checkpointer]
ELEMENTS = 4_000_000  # 16 MB, twice the pool: captured only while it is written.


def a_parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
    parameter.grad = torch.ones_like(parameter)
    return parameter


@pytest.mark.parametrize("when_full", ["wait", "skip", "replace"])
@pytest.mark.parametrize("best", [{}, {"keep_best": 1, "best_metric": "loss"}], ids=["", "keep_best"])
def test_a_save_after_a_protected_step_becomes_durable(make: Make, when_full: str, best: dict[str, Any]) -> None:
    parameter = a_parameter()
    optimizer = torch.optim.AdamW([parameter])
    checkpointer = make(when_full=when_full, max_in_flight=3, close_timeout=60, **best)
    checkpointer.protect(optimizer)
    checkpointer.save(1, {"w": parameter}, metrics={"loss": 1.0})
    optimizer.step()
    second = checkpointer.save(2, {"w": parameter}, metrics={"loss": 0.5})

    ended = threading.Event()  # No call that waits for a save, as in a long validation.
    second.add_done_callback(lambda _: ended.set())
    assert ended.wait(60)
    checkpointer.close()
    assert make(read_only=True).steps() == [1, 2]


def test_a_step_that_raises_does_not_hold_close_up(make: Make) -> None:
    parameter = a_parameter()
    optimizer = torch.optim.SGD([parameter])
    checkpointer = make(keep_best=1, best_metric="loss", close_timeout=20)
    checkpointer.save(1, {"w": parameter}, metrics={"loss": 1.0})

    def closure() -> float:
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(closure)

    checkpointer.close()
    assert make(read_only=True).steps() == [1]


@pytest.mark.parametrize("fused", [False, True])
def test_a_save_from_an_optimizers_own_hook_is_no_mistake(make: Make, fused: bool) -> None:
    parameter = a_parameter()
    optimizer = torch.optim.AdamW([parameter], fused=fused)
    checkpointer = make()
    checkpointer.protect(optimizer)
    saves: list[cairn.Save] = []
    optimizer.register_step_post_hook(lambda *_: saves.append(checkpointer.save(len(saves) + 1, {"w": parameter})))

    optimizer.step()
    optimizer.step()

    assert [save.result() for save in saves] == [1, 2]


def test_a_fused_step_over_a_part_that_is_being_saved_fails_the_save(make: Make) -> None:
    parameter = a_parameter()
    optimizer = torch.optim.AdamW([parameter], fused=True)
    checkpointer = make()

    save = checkpointer.save(1, {"shard": parameter.detach()[ELEMENTS // 8 :]})
    optimizer.step()

    with pytest.raises(cairn.FailedPrecondition, match='"shard" was overwritten'):
        save.wait()


def test_captured_raises_what_it_finds(make: Make) -> None:
    tensor = torch.zeros(ELEMENTS)
    checkpointer = make()
    save = checkpointer.save(1, {"w": tensor})
    tensor[:1].add_(1)

    with pytest.raises(cairn.FailedPrecondition, match='"w" was overwritten'):
        save.captured()


def test_a_pin_of_the_users_outlives_keep_best_of_other_runs(make: Make) -> None:
    options = {"keep_last": 1, "keep_best": 1, "best_metric": "loss"}
    checkpointer = make(**options)
    checkpointer.save(1, {"w": 1}, metrics={"loss": 1.0}).wait()
    make(keep_last=1).pin(1)  # Without keep_best.

    checkpointer = make(**options)
    for step in (2, 3, 4):
        checkpointer.save(step, {"w": step}, metrics={"loss": 1.0 / step}).wait()
    checkpointer.close()

    assert 1 in make(read_only=True).steps()


def test_an_optimizer_whose_state_is_no_dict_steps_as_before(make: Make) -> None:
    parameter = a_parameter()

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.state[parameter] = [torch.zeros(1)]

    optimizer = Own([parameter])
    checkpointer = make()
    checkpointer.save(1, {"w": torch.zeros(ELEMENTS)})
    optimizer.step()

    checkpointer.drain()
    assert checkpointer.steps() == [1]


def test_keep_best_refuses_held_saves_and_says_what_they_are(make: Make) -> None:
    checkpointer = make(keep_best=1, best_metric="loss")

    with pytest.raises(cairn.Unsupported, match="keep_best: held saves, as cairn.dcp"):
        checkpointer._engine.start(1, lambda _: [], hold=60.0)
