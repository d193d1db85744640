"""The Trainer with Cairn's checkpoints, against the real one: bit by bit, killed, resumed, exported."""

from __future__ import annotations

import inspect
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cairn
import numpy
import pytest
from cairn._huggingface.contents import FrozenDigests, unpack
from cairn._huggingface.model_folder import Companions
from cairn._huggingface.run import Run
from huggingface_trainer import (
    At,
    a_gpt2,
    a_trainer,
    assert_same_weights,
    data,
    exported_by_command,
    hf,
    losses,
    steps,
    torch,
    transformers,
    versioned,
)
from jobs import ENVIRONMENT

# Against the stock Trainer


def test_saving_changes_nothing_and_writes_no_folder_of_trainers(tmp_path: Path) -> None:
    stock = a_trainer(tmp_path / "stock", transformers.Trainer, save_strategy="no")
    stock.train()
    ours = a_trainer(tmp_path / "ours", save_total_limit=2)
    ours.train()

    assert losses(ours) == losses(stock)
    assert_same_weights(ours.model, stock.model)
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["cairn"]
    assert steps(tmp_path / "ours") == [6, 8]


@pytest.mark.parametrize(
    "settings",
    [
        {"save_steps": 3, "max_steps": 14, "logging_steps": 5},  # Resumed between two logs.
        {"save_strategy": "epoch", "max_steps": 25},  # Resumed where an epoch begins.
        {"save_steps": 3, "gradient_accumulation_steps": 2, "max_steps": 8},
        {"save_steps": 3, "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2},
        {"save_steps": 3, "optim": "adafactor", "lr_scheduler_type": "cosine"},
    ],
    ids=["between-logs", "epoch", "accumulation", "plateau", "adafactor"],
)
def test_resumed_training_is_the_uninterrupted_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = a_trainer(tmp_path, **settings)
    result = whole.train()
    resume = steps(tmp_path)[-2]

    resumed = a_trainer(tmp_path, **settings)
    resumed_result = resumed.train(resume_from_checkpoint=resume)

    assert 0 < resume < whole.state.global_step == resumed.state.global_step
    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed.model, whole.model)
    assert resumed.state.total_flos == whole.state.total_flos
    assert resumed.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()
    assert resumed_result.global_step == result.global_step
    if settings.get("logging_steps") == 5:  # Its train_loss is of the steps that it took.
        stock = a_trainer(tmp_path / "stock", transformers.Trainer, **settings)
        stock.train()
        again = a_trainer(tmp_path / "stock", transformers.Trainer, **settings)
        theirs = again.train(resume_from_checkpoint=str(tmp_path / f"stock/checkpoint-{resume}"))
        assert resumed_result.training_loss == pytest.approx(theirs.training_loss, rel=1e-6)


def test_modules_keep_the_version_of_their_state(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    transformers.set_seed(1)
    whole = a_trainer(tmp_path, model=versioned(a_gpt2()), **best)
    whole.train()
    assert whole.state.best_global_step == 4
    resumed = a_trainer(tmp_path, model=versioned(a_gpt2()), max_steps=4)
    resumed.train(resume_from_checkpoint=2)
    assert_same_weights(resumed.model, whole.model)


class Beside(torch.nn.Module):  # type: ignore[misc]
    """Of buffers, and a state of its own that is no tensor."""

    def __init__(self, mark: str, shape: tuple[int, ...] = (3,), dtype: Any = None, tied: bool = False) -> None:
        super().__init__()
        self.mark = mark
        self.register_buffer("one", torch.full(shape, 2.0, dtype=dtype))
        self.register_buffer("two", self.one if tied else torch.full(shape, 3.0, dtype=dtype))

    def get_extra_state(self) -> str:
        return self.mark

    def set_extra_state(self, mark: str) -> None:
        self.mark = mark


def with_beside(mark: str, **given: Any) -> Any:
    transformers.set_seed(1)
    model = a_gpt2()
    model.transformer.wpe.requires_grad_(False)
    model.beside = Beside(mark, **given)
    return model


def test_what_is_loaded_without_the_frozen_parameters_is_loaded_by_its_modules(tmp_path: Path) -> None:
    partly = {"save_only_trainable": True}
    whole = a_trainer(tmp_path, model=versioned(with_beside("saved")), max_steps=2, **partly)
    whole.train()
    model = versioned(with_beside("new"))
    a_trainer(tmp_path, model=model, max_steps=2, **partly).train(resume_from_checkpoint=True)
    saved = whole.model.state_dict()
    assert saved.pop("beside._extra_state") == model.beside.mark == "saved"
    for name, tensor in saved.items():
        assert torch.equal(model.state_dict()[name], tensor), name

    class Older(type(whole.model.transformer.ln_f)):  # type: ignore[misc]
        _version = 1

    model = with_beside("saved")
    model.transformer.ln_f = Older(16)
    a_trainer(tmp_path / "older", model=model, max_steps=2, **partly).train()
    migrated = versioned(with_beside("new"))
    a_trainer(tmp_path / "older", model=migrated, max_steps=2, **partly).train(resume_from_checkpoint=True)
    assert torch.equal(migrated.transformer.ln_f.weight, model.transformer.ln_f.weight * 10)


@pytest.mark.parametrize("partly", [False, True])
def test_buffers_are_not_converted_without_a_word(
    tmp_path: Path, partly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def run(folder: str, resume: Any = None, **given: Any) -> Any:
        model = with_beside("x", **given)
        a_trainer(tmp_path / folder, model=model, max_steps=2, save_only_trainable=partly).train(resume)
        return model

    run("vector")
    for shape in ((), (2, 3)):  # Which a copy would fill, or could be filled from.
        with pytest.raises(RuntimeError, match="size mismatch for beside.one"):
            run("vector", True, shape=shape)
    with pytest.raises(cairn.InvalidArgument, match='"beside.one" and "beside.two" share memory in the module'):
        run("vector", True, tied=True)
    run("tied", tied=True)
    run("tied", True, tied=True)
    caplog.set_level(logging.INFO, "cairn")
    wide = run("vector", True, dtype=torch.float64)
    assert wide.beside.one.tolist() == [2.0] * 3 and wide.beside.one.dtype == torch.float64
    assert "converted 2 tensors to another dtype, none with a loss: beside.one (F32 in the checkpoint" in caplog.text


def test_other_rows_and_rates_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a_trainer(tmp_path, max_steps=2).train()
    for settings, said in (
        ({}, ""),
        ({"seed": 7}, "other rows follow than in the run that saved: seed 7 (saved with 42)"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps 2 (saved with 1)"),
        ({"gradient_accumulation_steps": 2, "ignore_data_skip": True}, ""),
        (
            {"lr_scheduler_type": "cosine"},
            'other learning rates follow than in the run that saved: lr_scheduler_type "cos',
        ),
    ):
        caplog.clear()
        a_trainer(tmp_path, max_steps=2, **settings).train(resume_from_checkpoint=True)
        warned = "\n".join(one.getMessage() for one in caplog.records if one.name == "cairn")
        assert said in warned and bool(said) == bool(warned), settings


def test_an_order_that_nothing_keeps_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for settings in ({}, {"train_sampling_strategy": "sequential"}, {"ignore_data_skip": True}):
        unseeded = {"accelerator_config": {"use_seedable_sampler": False}, **settings}
        output = tmp_path / str(len(settings)) / next(iter(settings), "random")
        a_trainer(output, max_steps=2, **unseeded).train()
        caplog.clear()
        a_trainer(output, max_steps=4, **unseeded).train(resume_from_checkpoint=True)
        warned = [one.getMessage() for one in caplog.records if one.name == "cairn"]
        named = "nothing keeps their order with use_seedable_sampler=False" in "".join(warned)
        assert named != bool(settings), warned


def test_training_goes_on_from_a_stock_checkpoint(tmp_path: Path) -> None:
    stock = a_trainer(tmp_path, transformers.Trainer, save_steps=3)
    stock.train()
    ours = a_trainer(tmp_path, save_steps=3)
    ours.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))

    assert losses(ours) == losses(stock)
    assert_same_weights(ours.model, stock.model)
    assert steps(tmp_path) == [6, 8]


# What to resume from


def test_resume_takes_the_newest_a_step_or_a_folder(tmp_path: Path) -> None:
    whole = a_trainer(tmp_path / "run", save_total_limit=None)
    whole.train()
    newest = hf.last_checkpoint(tmp_path / "run")
    with cairn.Checkpointer(tmp_path / "run/cairn", read_only=True) as checkpointer:
        assert newest == checkpointer.checkpoints()[-1].path
    (tmp_path / "run/cairn/step-00000000000000000006").rename(tmp_path / "moved")

    for given, first in ((True, 9), (4, 5), (str(tmp_path / "run/cairn/step-00000000000000000002"), 3)):
        began: list[int] = []
        trainer = a_trainer(tmp_path / "run", max_steps=10)
        trainer.add_callback(Began(began))
        trainer.train(resume_from_checkpoint=given)
        assert began == [first - 1]
        with cairn.Checkpointer(tmp_path / "run/cairn", read_only=True) as checkpointer:
            assert checkpointer.latest() == 10
    elsewhere = a_trainer(tmp_path / "other")
    elsewhere.train(resume_from_checkpoint=tmp_path / "moved")
    assert_same_weights(elsewhere.model, whole.model)
    assert steps(tmp_path / "other") == [8]


class Began(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, began: list[int]) -> None:
        self.began = began

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began.append(state.global_step)


def test_nothing_to_resume_from_is_an_error(tmp_path: Path) -> None:
    assert hf.last_checkpoint(tmp_path / "run") is None
    for wanted in (True, 3, str(tmp_path / "checkpoint-3")):
        with pytest.raises(cairn.NotFound):
            a_trainer(tmp_path / "run").train(resume_from_checkpoint=wanted)


def test_a_used_folder_is_continued_or_refused(tmp_path: Path) -> None:
    a_trainer(tmp_path, max_steps=4).train()
    a_trainer(tmp_path / "elsewhere", max_steps=2).train()
    stock = a_trainer(tmp_path, transformers.Trainer, max_steps=6)
    stock.train()
    copy = tmp_path / "copy"
    (tmp_path / "elsewhere/cairn/step-00000000000000000002").rename(copy)

    # From the beginning, from an earlier step, and from another run's checkpoint.
    for wanted in (None, str(tmp_path / "checkpoint-2"), copy):
        with pytest.raises(cairn.FailedPrecondition, match="up to step 4, .* resume from them .* another output_dir"):
            a_trainer(tmp_path).train(resume_from_checkpoint=wanted)
    assert steps(tmp_path)[-1] == 4

    # A later step follows.
    ours = a_trainer(tmp_path, save_total_limit=None)
    ours.train(resume_from_checkpoint=hf.last_checkpoint(tmp_path))
    assert steps(tmp_path) == [2, 4, 8]
    assert losses(ours) == losses(stock) | {7: losses(ours)[7], 8: losses(ours)[8]}


def test_the_last_checkpoint_may_be_the_stock_trainers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cairn")
    a_trainer(tmp_path, transformers.Trainer, max_steps=4).train()
    (tmp_path / "checkpoint-6").mkdir()  # A crash left it without trainer_state.json.
    (tmp_path / "checkpoint-last").mkdir()

    assert hf.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    assert "no checkpoint of Cairn, the stock Trainer's up to step 4: resume from" in caplog.text
    assert f"{tmp_path / 'checkpoint-6'} is passed over: it has no trainer_state.json" in caplog.text

    ours = a_trainer(tmp_path, max_steps=6)
    ours.train(resume_from_checkpoint=True)
    assert steps(tmp_path) == [6]
    assert hf.last_checkpoint(tmp_path) == str(tmp_path / "cairn/step-00000000000000000006")
    assert "Cairn's checkpoints up to step 6" in caplog.text


def test_what_another_program_saved_is_refused_by_name(tmp_path: Path) -> None:
    with cairn.Checkpointer(tmp_path / "theirs/cairn", host_memory="64MiB") as checkpointer:
        checkpointer.save(2, {"model": a_gpt2(), "optimizer": {"state": {}}})
    with cairn.Checkpointer(tmp_path / "old/cairn", host_memory="64MiB") as checkpointer:
        checkpointer.save(2, {"format": "cairn.huggingface/1", "model": a_gpt2()})
    with pytest.raises(cairn.InvalidArgument, match="not written by cairn.huggingface"):
        a_trainer(tmp_path / "theirs").train(resume_from_checkpoint=True)
    with pytest.raises(cairn.Unsupported, match="export the model with the version"):
        a_trainer(tmp_path / "old").train(resume_from_checkpoint=True)


def test_a_gradient_scaler_on_one_side_only_and_another_optimizer_are_refused(tmp_path: Path) -> None:
    a_trainer(tmp_path).train()
    trainer = a_trainer(tmp_path)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(cairn.InvalidArgument, match="no gradient scaler, this run has one"):
        trainer.train(resume_from_checkpoint=True)
    for optim, name in (("adagrad", "Adagrad"), ("adafactor", "Adafactor")):
        trainer = a_trainer(tmp_path, optim=optim)
        before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        with pytest.raises(
            cairn.InvalidArgument,
            match=rf"step-0+8: .*the tree has {name}, the checkpoint has the state of AdamW.*; or b",
        ):
            trainer.train(resume_from_checkpoint=True)
        assert_same_weights(trainer.model, before)


class Counts(transformers.GPT2LMHeadModel):  # type: ignore[misc]
    def __init__(self, dtype: Any) -> None:
        super().__init__(a_gpt2().config)
        self.register_buffer("count", torch.tensor([2**30 + 1]).to(dtype))


def test_a_cast_that_loses_values_is_refused_unless_allowed(tmp_path: Path) -> None:
    a_trainer(tmp_path / "buffer", model=Counts(torch.int64), max_steps=2).train()
    a_trainer(tmp_path / "wide", max_steps=2).train()
    for folder, model, name in (
        ("buffer", Counts(torch.int16), "count"),
        ("wide", a_gpt2().bfloat16(), "optimizer/state/0/exp_avg"),
    ):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(cairn.InvalidArgument, match=rf'(?s){name}.*cast="allow"'):
            a_trainer(tmp_path / folder, model=model, max_steps=3).train(resume_from_checkpoint=True)
        assert_same_weights(model, before)
        a_trainer(tmp_path / folder, model=model, max_steps=3, cast="allow").train(resume_from_checkpoint=True)


def test_a_cast_that_keeps_every_value_and_another_scheduler_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_trainer(tmp_path, model=a_gpt2().bfloat16(), max_steps=2).train()
    caplog.set_level(logging.INFO, "cairn")
    other = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2}
    a_trainer(tmp_path, max_steps=3, **other).train(resume_from_checkpoint=True)
    assert "the tree has ReduceLROnPlateau, the checkpoint has the state of LambdaLR" in caplog.text
    assert "to another dtype, none with a loss: transformer.wte.weight (BF16" in caplog.text
    assert "of its state to the parameters' dtype, none with a loss" in caplog.text


def test_a_scheduler_of_groups_in_another_order_is_refused(tmp_path: Path) -> None:
    def job(turned: bool, **options: Any) -> Any:
        model = a_gpt2()
        halves = [*model.transformer.h.parameters()], [*model.transformer.ln_f.parameters()]
        groups = [{"params": half, "lr": 0.1 * i} for i, half in enumerate(halves, 1)]
        optimizer = torch.optim.AdamW(groups[::-1] if turned else groups)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return a_trainer(tmp_path, model=model, optimizers=(optimizer, scheduler), **options)

    job(False, max_steps=2).train()
    turned = job(True, max_steps=3)
    before = {name: tensor.clone() for name, tensor in turned.model.state_dict().items()}
    with pytest.raises(
        cairn.InvalidArgument, match="scheduler: its base_lrs are of the optimizer's groups in the order"
    ):
        turned.train(resume_from_checkpoint=True)
    assert_same_weights(turned.model, before)
    job(False, max_steps=3).train(resume_from_checkpoint=True)


def test_a_gradient_scaler_is_kept(tmp_path: Path) -> None:
    first = a_trainer(tmp_path, max_steps=2)
    first.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    first.train()
    second = a_trainer(tmp_path, max_steps=3)
    second.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    second.train(resume_from_checkpoint=True)
    assert second.accelerator.scaler.get_scale() == 64.0


class Nested(torch.optim.SGD):  # type: ignore[misc]
    """Makes once, of each parameter, state under keys that look alike once they are joined by dots."""

    first = 1.0

    def step(self, closure: Any = None) -> Any:
        for state in (self.state[parameter] for group in self.param_groups for parameter in group["params"]):
            one, two, three, four = torch.arange(self.first, self.first + 4).split(1)
            state.setdefault("pre", {0: one, "0": two, "a.b": three, "a": {"b": four}})
        return super().step(closure)


def test_tensors_of_an_optimizers_state_whose_keys_look_alike_are_kept_apart(tmp_path: Path) -> None:
    def a_nested(steps: int) -> Any:
        model = a_gpt2()
        return a_trainer(tmp_path, model=model, max_steps=steps, optimizers=(Nested(model.parameters(), 0.1), None))

    a_nested(2).train()
    trainer = a_nested(3)
    trainer.optimizer.first = 11.0
    trainer.train(resume_from_checkpoint=True)

    for state in trainer.optimizer.state_dict()["state"].values():
        assert state["pre"] == {0: 1.0, "0": 2.0, "a.b": 3.0, "a": {"b": 4.0}}


def test_a_checkpoint_whose_tensors_have_older_names_is_read() -> None:
    packed = {
        "parts": {"a": {"b.c": ("~tensor", "a.b.c"), 0: [("~tensor", "a.0.0")]}},
        "tensors": {"a.b.c": 1, "a.0.0": 2},
    }
    assert unpack(packed) == {"a": {"b.c": 1, 0: [2]}}


def test_states_of_callbacks_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {
        "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "metric_for_best_model": "loss",
        "restore_callback_states_from_checkpoint": True, "greater_is_better": True,
    }  # fmt: skip
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=50)
    first = a_trainer(tmp_path, max_steps=4, callbacks=[stopping], **settings)
    stopping.early_stopping_patience_counter = 7
    first.train()
    counted = stopping.early_stopping_patience_counter

    second = a_trainer(tmp_path, max_steps=6, callbacks=[transformers.EarlyStoppingCallback()], **settings)
    seen: list[int] = []

    def counter(trainer: Any) -> int:
        return next(
            int(one.early_stopping_patience_counter)
            for one in trainer.callback_handler.callbacks
            if isinstance(one, transformers.EarlyStoppingCallback)
        )

    second.add_callback(At(5, lambda: seen.append(counter(second))))
    second.train(resume_from_checkpoint=True)

    assert seen == [counted]
    del settings["restore_callback_states_from_checkpoint"]
    third = a_trainer(tmp_path, max_steps=6, callbacks=[transformers.EarlyStoppingCallback()], **settings)
    caplog.clear()
    third.train(resume_from_checkpoint=4)
    assert "Trainer leaves out the state of EarlyStoppingCallback: set restore_callback_states_from" in caplog.text


# Retention and the best model


def test_the_best_model_is_pinned_kept_and_loaded_at_the_end(tmp_path: Path) -> None:
    scores = {2: 0.5, 4: 0.9, 6: 0.2, 8: 0.3, 10: 0.1}
    best: dict[str, Any] = {}

    class Scored(hf.Trainer):  # type: ignore[misc]
        def _evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            step = self.state.global_step
            if step == 4:
                best.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            return {"eval_score": scores[step]}

    settings: dict[str, Any] = {
        "kind": Scored, "max_steps": 10, "eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 1,
        "load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True,
    }  # fmt: skip
    trainer = a_trainer(tmp_path, **settings)
    trainer.train()

    assert_same_weights(trainer.model, best)
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        assert [(one.step, one.pinned) for one in checkpointer.checkpoints()] == [(4, True), (10, False)]

    # Another run knows of it, and lets it go for a better one.
    scores |= {12: 0.95, 14: 0.1}
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    again = a_trainer(moved, **settings | {"max_steps": 14})
    again.train(resume_from_checkpoint=True)
    assert again.state.best_model_checkpoint == str(moved / "cairn/step-00000000000000000012")
    with cairn.Checkpointer(moved / "cairn", read_only=True) as checkpointer:
        assert [(one.step, one.pinned) for one in checkpointer.checkpoints()] == [(12, True), (14, False)]


def test_the_former_best_stays_if_it_is_the_last_finite_one(tmp_path: Path) -> None:
    with cairn.Checkpointer(tmp_path, host_memory="64MiB", keep_last=1, nonfinite="mark") as checkpointer:
        for step, weight in enumerate([1.0, math.nan, math.nan], start=1):
            checkpointer.save(step, {"w": torch.full((9,), weight)}, pin=step < 3).wait()
        run = Run(checkpointer, {"keep_last": 1}, "", Companions(tmp_path), is_sharded=False)
        run.pinned = 1

        run.pin_best(2, wait=True)
        after_the_second = checkpointer.steps()
        run.pin_best(3, wait=True)

        assert after_the_second == [1, 2, 3]
        assert checkpointer.steps() == [1, 3]


def test_a_run_that_goes_back_pins_no_step_of_the_abandoned_one(tmp_path: Path) -> None:
    scores = {2: 0.5, 4: 0.1, 6: 0.1, 8: 0.1, 10: 0.1}
    pinned = []

    class Scored(hf.Trainer):  # type: ignore[misc]
        def _evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return {"eval_score": scores[self.state.global_step]}

        def _save_checkpoint(self, *arguments: Any) -> None:
            super()._save_checkpoint(*arguments)
            pinned.append((self.state.global_step, self._run().pinned))

    settings: dict[str, Any] = {
        "kind": Scored, "max_steps": 10, "eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True,
    }  # fmt: skip
    a_trainer(tmp_path, **settings).train()
    scores |= {4: 0.6, 6: 0.7, 8: 0.8, 10: 0.9}
    pinned.clear()

    again = a_trainer(tmp_path, **settings)
    again.train(resume_from_checkpoint=2)

    assert all(best is None or best < step for step, best in pinned), "the best may be this step, not saved yet"
    assert again.state.best_model_checkpoint == str(tmp_path / "cairn/step-00000000000000000010")
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        assert [(one.step, one.pinned) for one in checkpointer.checkpoints()] == [
            (2, True),  # By the abandoned run.
            (8, False),
            (10, True),
        ]


def test_what_is_read_right_after_a_save_is_what_it_saves(tmp_path: Path) -> None:
    read: list[int] = []

    class Reads(transformers.TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            step, root = state.global_step, tmp_path / "run" / "cairn"
            for weights in (cairn.load(root, step=step), cairn.load(root), cairn.load(root / f"step-{step:020}")):
                assert_same_weights(model, weights)
            hf.export(root, tmp_path / str(step))
            assert_same_weights(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / str(step)))
            read.append(step)

    a_trainer(tmp_path / "run", callbacks=[Reads()]).train()

    assert read == [2, 4, 6, 8]


@pytest.mark.parametrize("how", ["in place", "data", "swapped", "another"])
def test_frozen_parameters_that_change_are_not_taken_from_elsewhere(tmp_path: Path, how: str) -> None:
    changes = {
        "in place": lambda layer: layer.weight.mul_(2),
        "data": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
        "swapped": lambda layer: torch.utils.swap_tensors(layer.weight, torch.nn.Parameter(layer.weight * 2, False)),
        "another": lambda layer: setattr(layer, "weight", torch.nn.Parameter(layer.weight * 2, False)),
    }

    def make(*callbacks: Any) -> Any:
        transformers.set_seed(1)
        model = a_gpt2()
        model.transformer.wpe.requires_grad_(False)
        return a_trainer(tmp_path, model=model, callbacks=[*callbacks], save_only_trainable=True)

    first = make()
    change = torch.no_grad()(lambda: changes[how](first.model.transformer.wpe))
    first.add_callback(At(3, change))
    first.train()

    with pytest.raises(cairn.InvalidArgument, match=r"differs in transformer\.wpe\.weight"):
        make().train(resume_from_checkpoint=4)
    make().train(resume_from_checkpoint=2)


@pytest.mark.parametrize("how", ["other memory at its address", "an inference tensor", "a fused step"])
def test_digests_of_what_is_frozen_see_what_is_not_counted(how: str) -> None:
    layer, digests, optimizer = torch.nn.Linear(4, 4).requires_grad_(False), FrozenDigests(), None
    memory = numpy.ones((4, 4), numpy.float32)
    if how == "a fused step":
        optimizer = torch.optim.SGD([layer.weight], lr=0.1, fused=True)
        layer.weight.grad = torch.ones(4, 4)
    elif how == "an inference tensor":
        with torch.inference_mode():
            layer.weight = torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)
    else:
        layer.weight.data = torch.from_numpy(memory)
    before = digests.of(layer, optimizer)
    assert digests.of(layer, optimizer) == before

    if optimizer:
        optimizer.step()
    elif layer.weight.is_inference():
        with torch.inference_mode():
            layer.weight += 1
    else:
        memory += 1
        layer.weight.data = torch.from_numpy(memory)

    after = digests.of(layer, optimizer)
    assert after["weight"] != before["weight"] and after["bias"] == before["bias"]


def test_one_step_may_be_saved_twice(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, max_steps=2)
    trainer.add_callback(At(2, lambda: trainer._save_checkpoint(trainer.model, None)))
    trainer.train()
    assert steps(tmp_path) == [2]


# Failures


def test_a_run_that_resumes_where_the_data_end_saves_that_step_again(tmp_path: Path) -> None:
    class Rows(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(data(12))

    def a_run() -> Any:
        trainer = a_trainer(tmp_path, save_strategy="epoch")
        trainer.train_dataset = Rows()
        return trainer

    whole = a_run()
    whole.train()
    resumed = a_run()
    resumed.train(resume_from_checkpoint=3)
    assert steps(tmp_path) == [3, 6, 8]
    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed.model, whole.model)


def test_a_failure_in_the_background_is_raised_by_the_next_save(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path)
    (tmp_path / "cairn").mkdir(parents=True)

    def take_the_name() -> None:  # So that the commit's rename fails.
        (tmp_path / "cairn/step-00000000000000000004").mkdir()
        (tmp_path / "cairn/step-00000000000000000004/theirs").write_text("")

    trainer.add_callback(At(3, take_the_name))
    trainer.add_callback(At(5, lambda: trainer.checkpointer._engine.core.drain(None)))
    with pytest.raises(cairn.Error, match="step 4"):
        trainer.train()
    assert trainer.state.global_step in (5, 6)


def test_a_failure_of_the_last_save_is_raised_by_train(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, max_steps=2)

    def take_the_name() -> None:
        (tmp_path / "cairn/step-00000000000000000002").mkdir()
        (tmp_path / "cairn/step-00000000000000000002/theirs").write_text("")

    trainer.add_callback(At(1, take_the_name))
    with pytest.raises(cairn.Error, match="step 2"):
        trainer.train()


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        ({"save_only_model": True}, "save_only_model: leave it out"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size: .* set per_device_train_batch_size"),
        ({"optim": "galore_adamw_layerwise", "optim_target_modules": ["h"]}, "LOMO, .* choose another optim"),
        (
            {"cairn_options": {"when_full": "skip"}, "load_best_model_at_end": True, "eval_strategy": "steps"},
            'set cairn_options={"when_full": "wait"}',
        ),
        ({"cairn_options": {"keep_best": 1}}, "keep_best: set metric_for_best_model"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_would_lack_a_part_is_refused_at_construction(
    tmp_path: Path, settings: dict[str, Any], way_out: str
) -> None:
    with pytest.raises(cairn.Unsupported, match=way_out):
        a_trainer(tmp_path, **settings)
    assert not (tmp_path / "cairn").exists()


def test_a_hyperparameter_search_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(cairn.Unsupported, match="search with the stock Trainer"):
        a_trainer(tmp_path).train(trial={"learning_rate": 1.0})


def test_a_checkpoint_is_of_one_step_whatever_changes_meanwhile(tmp_path: Path) -> None:
    class Large(torch.nn.Module):  # type: ignore[misc, name-defined]
        """Too large for its tensors to be copied within the call of save."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2_000_000))
            self.norm = torch.nn.BatchNorm1d(8)
            self.register_buffer("sum", torch.zeros(600_000))

        def forward(self, input_ids: Any, labels: Any) -> dict[str, Any]:
            self.sum += 1
            return {"loss": self.weight.sum() + self.norm(input_ids.float()).square().mean()}

    trainer = a_trainer(tmp_path, model=Large(), save_steps=1, optim="sgd", max_grad_norm=0.0)
    trainer.train()

    names = ["weight", "sum", "norm.num_batches_tracked"]
    weights = set()
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        for step in range(1, 9):
            weight, sums, batches = (checkpointer.load(step, names=name)[name] for name in names)
            assert bool((weight == weight[0]).all()) and bool((sums == step).all()) and int(batches) == step
            weights.add(float(weight[0]))
    assert len(weights) == 8


# Exporting


def test_automodel_reads_what_is_exported(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path)
    trainer.model.generation_config.max_new_tokens = 5
    trainer.add_callback(At(6, lambda: trainer.checkpointer.drain()))
    trainer.add_callback(At(6, lambda: trainer.export(4, tmp_path / "during")))
    trainer.train()
    hf.export(tmp_path / "cairn", tmp_path / "plain")
    command = exported_by_command(tmp_path)
    trainer.model.save_pretrained(tmp_path / "theirs")

    for name in ("config.json", "generation_config.json", "model.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
        assert (command / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert_same_weights(loaded, trainer.model)
    assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()
    assert_same_weights(
        transformers.AutoModel.from_pretrained(tmp_path / "plain"), trainer.model.transformer.state_dict()
    )
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        earlier = checkpointer.load(4)
    assert_same_weights(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "during"), earlier)


def test_an_export_writes_over_nothing_and_leaves_no_half(tmp_path: Path) -> None:
    a_trainer(tmp_path / "run").train()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").write_text("")
    with pytest.raises(cairn.AlreadyExists):
        hf.export(tmp_path / "run/cairn", tmp_path / "theirs")
    with pytest.raises(cairn.NotFound):
        hf.export(tmp_path / "run/cairn", tmp_path / "new", 3)
    with pytest.raises(AttributeError):
        hf.export(tmp_path / "run/cairn", tmp_path / "new", processing_class=object())
    with cairn.Checkpointer(tmp_path / "other", host_memory="64MiB") as checkpointer:
        checkpointer.save(1, {"model": a_gpt2()})
    with pytest.raises(cairn.InvalidArgument, match=re.escape("not written by cairn.huggingface")):
        hf.export(tmp_path / "other", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run", "theirs"]


@pytest.mark.parametrize("tied", ["by the config, not in memory", "in memory, not by the config"])
def test_an_export_has_each_weight_as_it_was_trained(
    tmp_path: Path, tied: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model = a_gpt2(tie_word_embeddings=tied.startswith("by"))
    embedding = model.transformer.wte.weight
    model.lm_head.weight = torch.nn.Parameter(embedding.detach() + 1) if tied.startswith("by") else embedding
    trainer = a_trainer(tmp_path, model=model)
    trainer.train()
    hf.export(tmp_path / "cairn", tmp_path / "out")
    for folder in (tmp_path / "out", exported_by_command(tmp_path)):
        assert_same_weights(transformers.AutoModelForCausalLM.from_pretrained(folder), trainer.model)
    said = "lm_head.weight and transformer.wte.weight are tied by the model's config, but differ"
    assert (said in caplog.text) == (said in capfd.readouterr().err) == tied.startswith("by")


def test_what_a_killed_export_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    a_trainer(tmp_path / "run").train()
    code = f"""
import cairn.huggingface as hf, os, signal, sys
class Killed:
    def save_pretrained(self, folder):
        os.kill(os.getpid(), sys.argv[1] == "kill" and signal.SIGKILL or signal.SIGSTOP)
hf.export({str(tmp_path / "run/cairn")!r}, {str(tmp_path / "out")!r}, processing_class=Killed())
"""
    killed = subprocess.run([sys.executable, "-c", code, "kill"], check=False, env=ENVIRONMENT)
    assert killed.returncode == -signal.SIGKILL
    stopped = subprocess.Popen([sys.executable, "-c", code, "stop"], env=ENVIRONMENT)
    os.waitpid(stopped.pid, os.WUNTRACED)
    for left in (1, 0):
        hf.export(tmp_path / "run/cairn", tmp_path / "out")
        assert len([path for path in tmp_path.iterdir() if path.name.startswith(".out.")]) == left
        shutil.rmtree(tmp_path / "out")
        stopped.kill()
        stopped.wait()


# Drift


def test_another_transformers_is_refused_by_name() -> None:
    hf.check_transformers(transformers.__version__, transformers.Trainer)
    for version in ("4.57.6", "5.22.2", "6.0.0"):
        with pytest.raises(cairn.Unsupported, match=re.escape(version)):
            hf.check_transformers(version, transformers.Trainer)

    class Renamed(transformers.Trainer):  # type: ignore[misc]
        def _load_rng_state(self, folder: str) -> None:
            pass

    with pytest.raises(cairn.Unsupported, match="_load_rng_state"):
        hf.check_transformers(transformers.__version__, Renamed)


def test_trainer_saves_and_loads_nothing_that_is_not_known_here() -> None:
    """A new part of Trainer's checkpoints is to be kept by ours too: look at it, then name it here."""

    def called(*methods: str) -> set[str]:
        text = "".join(inspect.getsource(getattr(transformers.Trainer, name)) for name in methods)
        return set(re.findall(r"self\.((?:_save|_load|save|load)_\w+)\(", text))

    assert called("_save_checkpoint") == {
        "save_model", "_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state",
    }  # fmt: skip
    loop = ("train", "_inner_training_loop", "_init_training_state", "_prepare_for_training", "_run_epoch")
    assert called(*loop, "_finalize_training") == {
        "_load_from_checkpoint", "_load_callback_state", "_load_optimizer_and_scheduler", "_load_scaler",
        "_load_rng_state", "_load_best_model",
    }  # fmt: skip
    rest = "".join(inspect.getsource(getattr(transformers.Trainer, name)) for name in loop)
    for name in ("self._tr_loss = ", "self._total_loss_scalar = ", "self._globalstep_last_logged = "):
        assert name in rest
