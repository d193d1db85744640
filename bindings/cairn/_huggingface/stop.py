"""enable_jit_checkpoint: a SIGTERM ends training after the step, with one more checkpoint."""

from __future__ import annotations

import signal
from typing import Any

import transformers
from transformers.trainer_jit_checkpoint import JITCheckpointCallback


def use_own_stop(trainer: Any) -> None:
    """With enable_jit_checkpoint, puts `StopCallback` in the place of transformers' callback.

    That one may save before an optimizer step, when dropout has drawn its random numbers already, and waits 3 seconds
    first; a run that resumes from there does not continue bit by bit.
    """
    stock = trainer.pop_callback(JITCheckpointCallback)
    if stock is None:
        return
    if stock.jit_manager is not None:
        signal.signal(signal.SIGTERM, stock.jit_manager._original_sigterm_handler or signal.SIG_DFL)
    trainer.add_callback(StopCallback(trainer))


class StopCallback(transformers.TrainerCallback):
    """Saves and stops at the end of a step: all that Trainer does at that step, such as an evaluation, comes first."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._stopping = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stopping = False
        self._trainer.checkpointer.stop_on(["SIGTERM"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stopping = self._trainer.checkpointer.stop_requested()
        if self._stopping:
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Trainer calls this in mid-epoch too if training stops there.
        if self._stopping and state.epoch != int(state.epoch):
            control.should_evaluate = False
            # save_strategy="best" may have left out the save of an evaluated step.
            control.should_save = state.global_step not in self._trainer._run().order
