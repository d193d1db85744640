"""Ctrl-C in the midst of a call, and what a forked child may ask."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import cairn
import pytest
import torch

Make = Callable[..., cairn.Checkpointer]


class InterruptedCore:
    """The engine's module, as if a signal's handler raised between the return of its save and the next line."""

    def __init__(self, core: Any) -> None:
        self._core, self._armed = core, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def save(self, *arguments: Any) -> Any:
        save = self._core.save(*arguments)
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt
        return save


def interrupt_next_save(checkpointer: cairn.Checkpointer) -> None:
    checkpointer._engine.core = InterruptedCore(checkpointer._engine.core)  # type: ignore[assignment]


@pytest.fixture(params=[{}, {"keep_best": 1, "best_metric": "loss"}], ids=["", "keep_best"])
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    yield request.param


def test_a_save_that_is_interrupted_is_cancelled(make: Make, options: dict[str, Any]) -> None:
    checkpointer = make(max_in_flight=1, full_timeout=20, close_timeout=20, **options)
    checkpointer.save(1, {"w": torch.ones(8)}, metrics={"loss": 1.0}).wait()
    interrupt_next_save(checkpointer)

    with pytest.raises(KeyboardInterrupt):
        checkpointer.save(2, {"w": torch.ones(8_000_000)}, metrics={"loss": 0.5})

    checkpointer.save(3, {"w": torch.ones(8)}, metrics={"loss": 0.5}).wait(60)
    checkpointer.close(60)
    assert make(read_only=True).latest() == 3


def test_a_protected_step_after_an_interrupted_save_loses_nothing(make: Make) -> None:
    parameter = torch.nn.Parameter(torch.ones(8_000_000))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    checkpointer = make()
    checkpointer.protect(optimizer)
    interrupt_next_save(checkpointer)

    with pytest.raises(KeyboardInterrupt):
        checkpointer.save(1, {"w": parameter})
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    checkpointer.check()
    checkpointer.close()


def test_a_callback_in_a_forked_child_is_called(make: Make) -> None:
    save = make().save(1, {"w": torch.ones(8_000_000)})
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # Instead of a hang.
        save.add_done_callback(lambda one: os._exit(3 if one.done() else 4))
        signal.pause()
    os.close(writes)
    os.close(reads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    save.wait()


MOMENTS = {
    "the engine is open": ("cairn._engine", "Reading"),
    "it finds the current GPU": ("cairn._opening", "sys"),
    "its thread starts": ("cairn._exit", "start_watching"),
    "it settles the best": ("cairn._engine", "KeepBest"),
    "it is counted": ("cairn._exit", "opened"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError("can't start new thread")], ids=["interrupted", "no thread"]
)
def test_an_opening_that_fails_gives_the_root_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, moment: str, error: BaseException
) -> None:
    module, name = MOMENTS[moment]
    best = {"keep_best": 1, "best_metric": "loss"}
    make(**best).close()

    class Failing:
        def __call__(self, *_: Any, **__: Any) -> Any:
            raise error

        def __getattr__(self, _: str) -> Any:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(importlib.import_module(module), name, Failing())
        with pytest.raises(type(error)) as raised:
            make(**best)

    checkpointer = make(**best)  # While the traceback still holds what failed.
    checkpointer.save(1, {"w": torch.ones(8)}, metrics={"loss": 1.0}).wait()
    assert raised.value is error
