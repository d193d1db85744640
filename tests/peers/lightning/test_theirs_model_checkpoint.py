"""What Lightning's own tests of ModelCheckpoint (tests/tests_pytorch/checkpointing/test_model_checkpoint.py) ask of a
checkpoint, written anew for Cairn's. Each test's first line names theirs. docs/integrations.md counts them."""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import cairn
import cairn.lightning
import pytest
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from theirs import Make, Scored, found, io_of, load, same_weights, state_of


@pytest.mark.parametrize("monitor", ["val", "train_epoch"])
@pytest.mark.parametrize("plateau", [False, True])
def test_scores_are_in_names_and_states(tmp_path: Path, make: Make, monitor: str, plateau: bool) -> None:
    """test_model_checkpoint_score_and_ckpt."""
    scores = [0.5, 0.25, 0.75]
    checkpoint = ModelCheckpoint(tmp_path, filename=f"{{{monitor}:.4f}}-{{epoch}}", monitor=monitor, save_top_k=-1)
    model = Scored([one for one in scores for _ in range(5)], scores, monitor if plateau else None)
    if monitor != "val":
        model.validation_step = None
    make(tmp_path, checkpoint, max_epochs=3, limit_train_batches=5).fit(model)

    assert found(tmp_path) == {f"{monitor}={score:.4f}-epoch={epoch}.ckpt" for epoch, score in enumerate(scores)}
    for epoch, score in enumerate(scores):
        path = tmp_path / f"{monitor}={score:.4f}-epoch={epoch}.ckpt"
        loaded, state = load(path), state_of(path, checkpoint)
        assert (loaded["epoch"], loaded["global_step"]) == (epoch, 5 * (epoch + 1))
        assert (state["dirpath"], state["monitor"], state["current_score"]) == (str(tmp_path), monitor, score)
        (scheduler,) = loaded["lr_schedulers"]
        if plateau:
            assert scheduler["best"] == min(scores[:epoch], default=float("inf"))  # Saved before the scheduler's step.
        else:  # Saved after it.
            assert scheduler["_step_count"] == epoch + 2 and scheduler["_last_lr"] == [0.1 * 2 ** (epoch + 1)]


@pytest.mark.parametrize(("interval", "plateau"), [(0.25, True), (0.25, False), (0.42, False)])
def test_scores_of_several_validations_an_epoch(tmp_path: Path, make: Make, interval: float, plateau: bool) -> None:
    """test_model_checkpoint_score_and_ckpt_val_check_interval."""
    every = int(12 * interval)
    checks = 12 // every
    scores = [1.0 / (i + 1) for i in range(3 * checks)]
    checkpoint = ModelCheckpoint(tmp_path, filename="{val:.4f}-{epoch}", monitor="val", save_top_k=-1)
    make(tmp_path, checkpoint, max_epochs=3, limit_train_batches=12, val_check_interval=interval).fit(
        Scored(val=scores, watch="val" if plateau else None)
    )

    assert len(found(tmp_path)) == len(scores)
    for i, score in enumerate(scores):
        epoch, check = divmod(i, checks)
        path = tmp_path / f"val={score:.4f}-epoch={epoch}.ckpt"
        loaded = load(path)
        assert (loaded["epoch"], loaded["global_step"]) == (epoch, 12 * epoch + every * (check + 1))
        assert state_of(path, checkpoint)["current_score"] == pytest.approx(score)
        if not plateau:
            ended = 12 % every == 0 and check == checks - 1  # Then the scheduler has made its step.
            assert loaded["lr_schedulers"][0]["_step_count"] == epoch + 1 + ended


@pytest.mark.parametrize("top", [-1, 0, 1, 2])
def test_the_default_folder(tmp_path: Path, make: Make, top: int) -> None:
    """test_model_checkpoint_with_non_string_input."""
    checkpoint = ModelCheckpoint(monitor="loss", filename="{epoch}", save_top_k=top)
    make(tmp_path, checkpoint, max_epochs=2).fit(Scored())
    assert checkpoint.dirpath == str(tmp_path / "checkpoints")
    kept = found(tmp_path / "checkpoints") if top else set()
    assert len(kept) == (2 if top == -1 else top) and kept <= {"epoch=0.ckpt", "epoch=1.ckpt"}


@pytest.mark.parametrize("top", [-1, 0, 1, 2])
def test_the_best_paths_as_yaml(tmp_path: Path, make: Make, top: int) -> None:
    """test_model_checkpoint_to_yaml."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="loss", save_top_k=top)
    make(tmp_path, checkpoint, max_epochs=2).fit(Scored())
    assert {path.name for path in map(Path, checkpoint.best_k_models)} == found(tmp_path)
    checkpoint.to_yaml(tmp_path / "best.yaml")
    best = yaml.full_load((tmp_path / "best.yaml").read_text())
    assert best == dict(checkpoint.best_k_models) and all(load(path)["state_dict"] for path in best)


@pytest.mark.parametrize(("version", "name"), [(None, "version_0"), (1, "version_1"), ("mine", "mine")])
def test_the_loggers_folder(tmp_path: Path, make: Make, version: Any, name: str) -> None:
    """test_model_checkpoint_path, with CSVLogger."""
    one = make(tmp_path, logger=CSVLogger(tmp_path, version=version), max_epochs=2)
    one.fit(Scored())
    folder = Path(one.checkpoint_callback.dirpath)
    assert folder.parent.name == name and found(folder) == {"epoch=1-step=4.ckpt"}


def test_another_extension(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_file_extension."""

    class Mine(ModelCheckpoint):
        FILE_EXTENSION = ".tpkc"

    make(tmp_path, Mine(tmp_path, monitor="loss", save_last=True), max_steps=1, max_epochs=-1).fit(Scored())
    assert found(tmp_path) == {"epoch=0-step=1.tpkc", "last.tpkc"}
    assert load(tmp_path / "last.tpkc")["global_step"] == 1


class Last(ModelCheckpoint):
    CHECKPOINT_NAME_LAST = "last-{epoch}"


@pytest.mark.parametrize("how", [True, "link"])
def test_there_is_one_last_checkpoint(tmp_path: Path, make: Make, how: Any) -> None:
    """test_model_checkpoint_save_last."""
    checkpoint = Last(tmp_path, monitor="loss", save_top_k=-1, save_last=how)
    make(tmp_path, checkpoint, max_epochs=3).fit(Scored())
    last = tmp_path / "last-epoch=2.ckpt"
    assert found(tmp_path) == {f"epoch={i}-step={2 * i + 2}.ckpt" for i in range(3)} | {last.name}
    assert checkpoint.last_model_path == str(last) and last.is_symlink() == (how == "link")
    assert os.path.realpath(last) == checkpoint._last_checkpoint_saved and load(last)["global_step"] == 6


def test_a_link_takes_the_place_of_what_is_there(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """test_model_checkpoint_link_checkpoint, test_model_checkpoint_link_checkpoint_relative_path."""
    monkeypatch.chdir(tmp_path)
    one = make(tmp_path, enable_checkpointing=False)
    one.fit(BoringModel())
    folder = tmp_path / "x/y"
    for name in ("a", "b", "last"):  # At first `last` is a checkpoint.
        one.save_checkpoint(f"x/y/{name}.ckpt")
    for target in ("a", "b"):  # Then a link.
        ModelCheckpoint._link_checkpoint(one, str(folder / f"{target}.ckpt"), str(folder / "last.ckpt"))
        assert os.readlink(folder / "last.ckpt") == f"{target}.ckpt"
        assert same_weights(one.lightning_module, load("x/y/last.ckpt")["state_dict"])
    one.save_checkpoint("x/y/last.ckpt")  # And a checkpoint takes the link's.
    assert not (folder / "last.ckpt").is_symlink() and found(folder) == {"a.ckpt", "b.ckpt", "last.ckpt"}


def test_names_do_not_alternate(tmp_path: Path, make: Make) -> None:
    """test_none_monitor_not_alternating: nor does a moment come without a checkpoint."""
    seen = []

    class Looks(BoringModel):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 1:
                io_of(self.trainer)._store.finish()
            if self.current_epoch > 0:
                seen.append(found(tmp_path))

    make(tmp_path, ModelCheckpoint(tmp_path, filename="model"), max_epochs=4).fit(Looks())
    assert seen == [{"model.ckpt"}] * 3 and load(tmp_path / "model.ckpt")["epoch"] == 3


def test_all_checkpoints_without_a_score(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_save_last_none_monitor."""
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=-1, save_last=True)
    make(tmp_path, checkpoint, max_epochs=2).fit(Scored())
    assert checkpoint.best_model_path == str(tmp_path / "epoch=1-step=4.ckpt")
    assert checkpoint.last_model_path == str(tmp_path / "last.ckpt")
    assert checkpoint.best_model_score is None and checkpoint.best_k_models == {}
    assert found(tmp_path) == {"epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt", "last.ckpt"}


@pytest.mark.parametrize("every", range(4))
def test_every_n_epochs(tmp_path: Path, make: Make, every: int) -> None:
    """test_model_checkpoint_every_n_epochs."""
    make(
        tmp_path, ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, every_n_epochs=every), max_epochs=5
    ).fit(Scored())
    assert found(tmp_path) == {f"epoch={i}.ckpt" for i in range(5) if every and (i + 1) % every == 0}


def test_every_n_steps(tmp_path: Path, make: Make) -> None:
    """test_ckpt_every_n_train_steps."""
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    make(tmp_path, checkpoint, max_epochs=2, limit_train_batches=16).fit(Scored())
    assert found(tmp_path) == {f"step={step}.ckpt" for step in range(4, 33, 4)}
    assert all(load(tmp_path / f"step={step}.ckpt")["global_step"] == step for step in range(4, 33, 4))


def test_a_time_interval(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_train_time_interval, with an interval that each batch exceeds."""
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", train_time_interval=timedelta(0), save_top_k=-1)
    make(tmp_path, checkpoint, limit_train_batches=6).fit(Scored())
    assert found(tmp_path) == {f"step={step}.ckpt" for step in range(1, 7)}


def test_nothing_but_the_last(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_topk_zero."""
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=0, save_last=True)
    make(tmp_path, checkpoint, max_epochs=2).fit(Scored())
    assert checkpoint.best_model_path == "" and checkpoint.best_k_models == {}
    assert found(tmp_path) == {"last.ckpt"} and not (tmp_path / "last.ckpt").is_symlink()


def test_all_with_a_score(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_topk_all."""
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", monitor="epoch", mode="max", save_top_k=-1)
    make(tmp_path, checkpoint, max_epochs=3).fit(Scored())
    paths = {str(tmp_path / f"epoch={i}.ckpt") for i in range(3)}
    assert checkpoint.best_model_path == str(tmp_path / "epoch=2.ckpt") and checkpoint.best_model_score == 2
    assert set(checkpoint.best_k_models) == paths and {str(tmp_path / name) for name in found(tmp_path)} == paths
    assert checkpoint.kth_best_model_path == str(tmp_path / "epoch=0.ckpt")


def test_a_metric_that_is_missing_is_in_the_name(tmp_path: Path, make: Make) -> None:
    """test_ckpt_metric_names."""
    make(tmp_path, ModelCheckpoint(tmp_path, monitor="loss", filename="{absent:.2f}"), gradient_clip_val=1.0).fit(
        Scored()
    )
    assert found(tmp_path) == {"absent=0.00.ckpt"}


def test_what_is_saved_by_default(tmp_path: Path, make: Make) -> None:
    """test_default_checkpoint_behavior."""
    one = make(tmp_path, max_epochs=3, limit_train_batches=5)
    one.fit(Scored())
    folder = tmp_path / "checkpoints"
    assert io_of(one).saved == [str(folder / f"epoch={i}-step={5 * i + 5}.ckpt") for i in range(3)]
    assert len(one.test(verbose=False)) == 1 and found(folder) == {"epoch=2-step=15.ckpt"}


def test_the_last_holds_what_the_newest_holds(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_save_last_checkpoint_contents."""
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", monitor="loss", save_top_k=3, save_last=True)
    make(tmp_path, checkpoint, max_epochs=3).fit(Scored())
    newest, last = load(tmp_path / "epoch=2.ckpt"), load(tmp_path / "last.ckpt")
    assert checkpoint.last_model_path == str(tmp_path / "last.ckpt")
    assert (newest["epoch"], newest["global_step"]) == (last["epoch"], last["global_step"]) == (2, 6)
    assert newest["callbacks"][checkpoint.state_key] == last["callbacks"][checkpoint.state_key]
    models = [cairn.lightning.load_from_checkpoint(Scored, tmp_path / f"{name}.ckpt") for name in ("epoch=2", "last")]
    assert same_weights(*models)


@pytest.mark.parametrize(("mode", "scores"), [("min", [8.0, 7.0, 5.0]), ("max", [5.0, 7.0, 8.0])])
def test_nan_comes_first(tmp_path: Path, make: Make, mode: str, scores: list[float]) -> None:
    """test_checkpointing_with_nan_as_first."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="val", mode=mode)
    one = make(tmp_path, checkpoint, max_epochs=4)
    one.fit(Scored(val=[float("nan"), *scores]))
    assert len(io_of(one).saved) == 4 and checkpoint.best_model_score == scores[-1]
    assert found(tmp_path) == {"epoch=3-step=8.ckpt"}


def test_resuming_what_has_ended_saves_nothing(tmp_path: Path, make: Make) -> None:
    """test_checkpoint_repeated_strategy."""
    folder = tmp_path / "run"
    checkpoint = ModelCheckpoint(folder, monitor="val", filename="{epoch:02d}")
    make(tmp_path, checkpoint).fit(Scored(val=[0.5]))
    for _ in range(3):
        again = make(folder, ModelCheckpoint(folder, monitor="val"))
        again.fit(Scored(), ckpt_path=checkpoint.best_model_path)
        again.test(Scored(), ckpt_path=checkpoint.best_model_path, verbose=False)
        assert found(folder) == {"epoch=00.ckpt"} and io_of(again).saved == []


def test_a_run_that_has_ended_is_continued_tested_and_fitted(tmp_path: Path, make: Make) -> None:
    """test_checkpoint_repeated_strategy_extended."""
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=-1)
    one = make(tmp_path, checkpoint, max_epochs=2)
    one.fit(Scored())
    for _ in range(2):
        assert (one.current_epoch, one.global_step, len(found(tmp_path))) == (2, 4, 2)
        one.validate(Scored(), verbose=False)
        newest = load(tmp_path / "epoch=1-step=4.ckpt")
        assert (one.current_epoch, newest["epoch"], newest["global_step"]) == (2, 1, 4)
        one = make(tmp_path, checkpoint, max_epochs=2)
        one.test(Scored(), verbose=False)
        assert (one.current_epoch, one.global_step) == (0, 0)
        one.fit(Scored(), ckpt_path=tmp_path / "epoch=1-step=4.ckpt")
        one.fit(Scored())
        assert one.fit_loop.epoch_progress.current.processed == 2


def test_names_of_several_validations_an_epoch(tmp_path: Path, make: Make) -> None:
    """test_val_check_interval_checkpoint_files."""
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=-1, monitor="val", mode="max")
    make(tmp_path, checkpoint, val_check_interval=0.2, limit_train_batches=10).fit(Scored(val=[1.0] * 5))
    assert found(tmp_path) == {f"epoch=0-step={step}.ckpt" for step in (2, 4, 6, 8, 10)}


def test_each_checkpoint_has_its_score(tmp_path: Path, make: Make) -> None:
    """test_current_score."""
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=3, monitor="train_epoch")
    make(tmp_path, checkpoint, max_epochs=3, limit_train_batches=1).fit(Scored([0.1, 0.2, 0.3]))
    scores = [float(state_of(tmp_path / name, checkpoint)["current_score"]) for name in found(tmp_path)]
    assert sorted(scores) == pytest.approx([0.1, 0.2, 0.3]) and float(checkpoint.current_score) == pytest.approx(0.3)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_is_nan(tmp_path: Path, make: Make, mode: str) -> None:
    """test_current_score_when_nan: it counts as the worst, and comes back as such."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="train_epoch", mode=mode)
    make(tmp_path, checkpoint, limit_train_batches=1).fit(Scored([float("nan")]))
    worst = float("inf" if mode == "min" else "-inf")
    assert checkpoint.best_model_score == checkpoint.current_score == worst
    assert state_of(tmp_path / "epoch=0-step=1.ckpt", checkpoint)["current_score"] == worst


def test_hyper_parameters_are_a_dict(tmp_path: Path, make: Make) -> None:
    """test_hparams_type, with a Namespace; test_omegaconf.py has the refusal of OmegaConf."""

    class Model(BoringModel):
        def __init__(self, hparams: Any) -> None:
            super().__init__()
            self.save_hyperparameters(hparams)

    make(tmp_path, ModelCheckpoint(tmp_path)).fit(Model(argparse.Namespace(a=1, b=2)))
    kept = load(tmp_path / "epoch=0-step=2.ckpt")[LightningModule.CHECKPOINT_HYPER_PARAMS_KEY]
    assert type(kept) is dict and kept == {"a": 1, "b": 2}
