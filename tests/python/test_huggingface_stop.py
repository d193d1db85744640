"""enable_jit_checkpoint over Cairn: SIGTERM ends training after the step, and the resumed run is the uninterrupted one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers
from huggingface_trainer import a_trainer, assert_same_weights, losses, steps


class Signal(transformers.TrainerCallback):  # type: ignore[misc]
    """Sends SIGTERM at this hook, once so many steps are done."""

    def __init__(self, step: int, hook: str) -> None:
        self.step = step
        setattr(self, hook, self.send)

    def send(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("hook", "step", "ends", "settings"),
    [
        # In the midst of a step: dropout has drawn its numbers for one of two micro-batches.
        ("on_substep_end", 3, 4, {"gradient_accumulation_steps": 2, "save_strategy": "no"}),
        ("on_step_begin", 3, 4, {"save_steps": 4}),
        # The end of an epoch of 10 steps.
        ("on_step_end", 10, 10, {"save_strategy": "epoch", "eval_strategy": "epoch"}),
        # Step 4 is evaluated, and is not the best.
        ("on_step_end", 4, 4, {"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 2, "greater_is_better": True,
                               "metric_for_best_model": "loss"}),
        # In mid-epoch no evaluation and no save of an epoch's end.
        ("on_step_end", 4, 4, {"save_strategy": "epoch", "eval_strategy": "epoch"}),
    ],
)  # fmt: skip
def test_the_resumed_run_is_the_uninterrupted_one(
    tmp_path: Path, hook: str, step: int, ends: int, settings: dict[str, Any]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    settings |= {"max_steps": 14, "enable_jit_checkpoint": True}
    whole = a_trainer(tmp_path / "whole", **settings)
    whole.train()
    stopped = a_trainer(tmp_path / "stopped", callbacks=[Signal(step, hook)], **settings)
    assert signal.getsignal(signal.SIGTERM) == before
    stopped.train()
    assert stopped.state.global_step == ends and steps(tmp_path / "stopped")[-1] == ends
    assert not list((tmp_path / "stopped").glob("checkpoint-*"))
    assert signal.getsignal(signal.SIGTERM) == before

    resumed = a_trainer(tmp_path / "stopped", **settings)
    resumed.train(resume_from_checkpoint=True)

    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed.model, whole.model)
