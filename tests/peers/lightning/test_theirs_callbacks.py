"""What Lightning's own tests of when ModelCheckpoint and other callbacks save ask of a checkpoint, written anew for
Cairn's. The name of the file that it comes from stands above each test, whose first line names theirs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.demos.boring_classes import BoringModel
from theirs import Make, Scored, found, io_of, load, same_weights

# checkpointing/test_checkpoint_callback_frequency.py


def test_nothing_is_saved_if_checkpoints_are_disabled(tmp_path: Path, make: Make) -> None:
    """test_disabled_checkpointing."""
    one = make(tmp_path / "run", enable_checkpointing=False, max_epochs=3)
    one.fit(BoringModel())
    assert not one.checkpoint_callbacks and io_of(one).saved == [] and found(tmp_path) <= {"run"}


@pytest.mark.parametrize(("epochs", "interval", "saves"), [(1, 1.0, 1), (2, 1.0, 2), (1, 0.25, 4), (2, 0.3, 6)])
def test_how_often_is_saved_by_default(tmp_path: Path, make: Make, epochs: int, interval: float, saves: int) -> None:
    """test_default_checkpoint_freq."""
    one = make(tmp_path, max_epochs=epochs, val_check_interval=interval, limit_train_batches=64)
    one.fit(BoringModel())
    assert len(io_of(one).saved) == saves and len(found(tmp_path / "checkpoints")) == 1


@pytest.mark.parametrize(
    ("top", "epochs", "interval", "saves"), [(1, 1, 1.0, 1), (2, 2, 1.0, 2), (2, 1, 0.25, 4), (2, 2, 0.3, 6)]
)
@pytest.mark.parametrize("last", [False, True, "link"])
def test_how_often_the_best_are_saved(
    tmp_path: Path, make: Make, top: int, epochs: int, interval: float, saves: int, last: Any
) -> None:
    """test_top_k: each score is better than the one before."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="train_step", save_top_k=top, save_last=last)
    one = make(tmp_path, checkpoint, max_epochs=epochs, val_check_interval=interval, limit_train_batches=64)
    one.fit(Scored(train=[1 - i / 128 for i in range(64 * epochs)]))
    assert len(io_of(one).saved) == (2 * saves if last is True else saves)
    assert len(found(tmp_path)) == min(top, saves) + bool(last)


# callbacks/test_model_checkpoint_additional_cases.py, test_model_checkpoint_edge_cases.py,
# test_model_checkpoint_step_interval_val_metric.py

EVERY: dict[str, Any] = {"every_n_epochs": 0, "save_on_train_epoch_end": False, "save_weights_only": True}


def test_a_score_of_each_step(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_every_n_train_steps_with_train_metric_saves_at_step."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="train_step", mode="max", every_n_train_steps=1, **EVERY)
    make(tmp_path, checkpoint, max_epochs=2, limit_val_batches=0).fit(Scored(train=[1, 2, 3, 4]))
    assert checkpoint.best_model_score == 4 and found(tmp_path) == {"epoch=1-step=4.ckpt"}


@pytest.mark.parametrize(
    ("given", "when", "scores", "name"),
    [
        ({"train_time_interval": timedelta(0)}, {"max_epochs": 3}, [0.25, 0.5, 1.0], "epoch=2-step=6.ckpt"),
        (
            {"every_n_train_steps": 2},
            {"max_epochs": 4, "check_val_every_n_epoch": 2},
            [0.5, 2.0],
            "epoch=3-step=8.ckpt",
        ),
        ({"every_n_train_steps": 2}, {"max_epochs": 3}, [0.25, 0.5, 1.0], "epoch=2-step=6.ckpt"),
        (
            {"every_n_train_steps": 1},
            {"limit_train_batches": 4, "val_check_interval": 0.5},
            [0.25, 0.5],
            "epoch=0-step=4.ckpt",
        ),
        (
            {"train_time_interval": timedelta(0)},
            {"max_epochs": 2, "check_val_every_n_epoch": 2},
            [0.5],
            "epoch=1-step=4.ckpt",
        ),
    ],
    ids=["interval", "validation-every-second-epoch", "steps", "validation-in-mid-epoch", "interval-and-second-epoch"],
)
def test_a_score_of_the_validation_is_waited_for(
    tmp_path: Path, make: Make, given: dict[str, Any], when: dict[str, Any], scores: list[float], name: str
) -> None:
    """test_model_checkpoint_time_interval_with_val_metric_defers_until_validation,
    test_model_checkpoint_defer_until_next_validation_when_val_every_2_epochs,
    test_model_checkpoint_every_n_train_steps_with_val_metric_saves_after_val,
    test_checkpoint_defers_with_mid_epoch_validation, test_time_interval_defers_across_epoch_until_first_validation."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="val", mode="max", **given, **EVERY)
    model = Scored(val=scores)
    make(tmp_path, checkpoint, **when).fit(model)
    assert checkpoint.best_model_score == scores[-1] and found(tmp_path) == {name}
    assert same_weights(model, load(tmp_path / name)["state_dict"])


def test_a_link_to_the_last_never_points_to_itself(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_save_last_link_symlink_bug."""
    checkpoint = ModelCheckpoint(tmp_path, every_n_epochs=10, save_last="link", save_top_k=-1)
    make(tmp_path, checkpoint, max_epochs=2).fit(BoringModel())
    assert found(tmp_path) == {"last.ckpt"} and not (tmp_path / "last.ckpt").is_symlink()
    assert load(tmp_path / "last.ckpt")["global_step"] == 4


# callbacks/test_model_checkpoint_manual_opt.py


class Manual(Scored):
    """Keeps the weights before each step of the optimizer."""

    automatic_optimization = False

    def __init__(self, train: list[float]) -> None:
        super().__init__(train)
        self.before: list[dict[str, torch.Tensor]] = []

    def training_step(self, batch: Any, index: int) -> None:
        loss = super().training_step(batch, index)["loss"]
        self.before.append({name: tensor.clone() for name, tensor in self.state_dict().items()})
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def test_manual_optimization_saves_after_the_step_and_says_so(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_manual_opt_warning."""
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    model = Manual([])
    with pytest.warns(UserWarning, match="manual optimization"):
        make(tmp_path, checkpoint, limit_train_batches=4).fit(model)
    for step in range(1, 4):
        state = load(tmp_path / f"step={step}.ckpt")["state_dict"]
        assert all(torch.equal(state[name], tensor) for name, tensor in model.before[step].items())


def test_manual_optimization_may_offer_the_weights_before_the_step(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_manual_opt: from `saved_models`, a hand-over that Lightning defines."""
    checkpoint = ModelCheckpoint(tmp_path, every_n_train_steps=1, monitor="train_step", **EVERY)

    class Offers(Manual):
        saved_models: dict[int, Any]

        def training_step(self, batch: Any, index: int) -> None:
            super().training_step(batch, index)
            self.saved_models[index] = {name.removeprefix("layer."): one for name, one in self.before[-1].items()}

    model = Offers([1.0, 1.0, 0.0, 1.0])
    model.saved_models = {}
    make(tmp_path, checkpoint, limit_train_batches=4).fit(model)
    state = load(checkpoint.best_model_path)["state_dict"]
    assert all(torch.equal(state[f"layer.{name}"], one) for name, one in model.saved_models[2].items())


# Of the other callbacks that save, in our words: OnExceptionCheckpoint, WeightAveraging, StochasticWeightAveraging.


class Breaks(Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        raise KeyError("theirs")


@pytest.mark.parametrize("kind", [OnExceptionCheckpoint, ModelCheckpoint])
def test_an_exception_leaves_a_checkpoint(tmp_path: Path, make: Make, kind: Any) -> None:
    checkpoint = kind(
        tmp_path, filename="broken", **({} if kind is OnExceptionCheckpoint else {"save_on_exception": True})
    )
    with pytest.raises(KeyError, match="theirs"):
        make(tmp_path, Breaks(), checkpoint).fit(BoringModel())
    assert found(tmp_path) == {"broken.ckpt"}
    make(tmp_path, OnExceptionCheckpoint(tmp_path, filename="broken")).fit(
        BoringModel(), ckpt_path=tmp_path / "broken.ckpt"
    )
    assert found(tmp_path) == set()  # A fit without an exception removes it.


class Wide(BoringModel):
    """Its buffers, which forward changes, are too large to be copied within the call of a save."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(32, 40_000), torch.nn.BatchNorm1d(40_000), torch.nn.Linear(40_000, 2)
        )

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.randn(20, 32), batch_size=4)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def test_averaged_weights_and_those_in_training(tmp_path: Path, make: Make) -> None:
    seen: dict[int, dict[str, dict[str, torch.Tensor]]] = {}

    class Averaging(EMAWeightAveraging):
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            super().on_save_checkpoint(trainer, pl_module, checkpoint)
            seen[trainer.global_step] = {
                part: {name: tensor.clone() for name, tensor in checkpoint[part].items()}
                for part in ("state_dict", "current_model_state", "averaging_state")
            }

    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    make(tmp_path, Averaging(), checkpoint, limit_train_batches=5).fit(Wide())

    assert sorted(seen) == [1, 2, 3, 4, 5]
    for step, parts in seen.items():
        loaded = load(tmp_path / f"step={step}.ckpt")
        for part, state in parts.items():
            for name, tensor in state.items():
                assert torch.equal(loaded[part][name], tensor), (step, part, name)
    assert not torch.equal(loaded["state_dict"]["layer.0.weight"], loaded["current_model_state"]["layer.0.weight"])


def test_a_run_with_averaged_weights_resumes(tmp_path: Path, make: Make) -> None:
    class Fixed(BoringModel):
        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step(torch.full_like(batch, self.global_step / 8), index)

    def fit(folder: str, path: Path | None = None, **given: Any) -> Any:
        torch.manual_seed(1)
        model = Fixed()
        checkpoint = ModelCheckpoint(tmp_path / folder, filename="{epoch}", save_top_k=-1)
        make(tmp_path, EMAWeightAveraging(), checkpoint, **given).fit(model, ckpt_path=path)
        return model

    whole = fit("whole", max_epochs=2)
    resumed = fit("resumed", tmp_path / "whole/epoch=0.ckpt", max_epochs=2)
    assert same_weights(resumed, whole)
    ours, theirs = (load(tmp_path / name / "epoch=1.ckpt") for name in ("resumed", "whole"))
    for part in ("state_dict", "current_model_state"):
        assert all(torch.equal(ours[part][name], tensor) for name, tensor in theirs[part].items())


def test_stochastic_weight_averaging_resumes(tmp_path: Path, make: Make) -> None:
    def fit(path: Path | None, epochs: int) -> set[str]:
        averaging = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
        make(tmp_path, averaging, ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1), max_epochs=epochs).fit(
            BoringModel(), ckpt_path=path
        )
        return found(tmp_path)

    assert fit(None, 3) == {f"epoch={i}.ckpt" for i in range(3)}
    assert fit(tmp_path / "epoch=2.ckpt", 5) == {f"epoch={i}.ckpt" for i in range(5)}
