"""What Lightning's own tests of ModelCheckpoint ask of names and folders when a run starts again, written anew for
Cairn's checkpoints. Each test's first line names theirs (of test_model_checkpoint.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from theirs import Make, Scored, found, io_of, load, same_weights, state_of


def test_versions_of_names_with_a_new_trainer(tmp_path: Path, make: Make) -> None:
    """test_ckpt_version_after_rerun_new_trainer."""
    for suffix in ("", "-v1"):
        checkpoint = ModelCheckpoint(tmp_path, save_top_k=-1, monitor="epoch", filename="{epoch}")
        make(tmp_path, checkpoint, max_epochs=2).fit(BoringModel())
        assert {Path(path).name for path in checkpoint.best_k_models} == {f"epoch={i}{suffix}.ckpt" for i in (0, 1)}
    assert found(tmp_path) == {f"epoch={i}{suffix}.ckpt" for i in (0, 1) for suffix in ("", "-v1")}


def test_versions_of_names_with_the_same_trainer(tmp_path: Path, make: Make) -> None:
    """test_ckpt_version_after_rerun_same_trainer."""
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=-1, monitor="epoch", filename="test")
    checkpoint.STARTING_VERSION = 9
    one = make(tmp_path, checkpoint, max_epochs=2)
    one.fit(BoringModel())
    one.fit_loop.max_epochs = 4
    one.fit(BoringModel())
    assert found(tmp_path) == {"test.ckpt", "test-v9.ckpt", "test-v10.ckpt", "test-v11.ckpt"}
    assert {Path(path).name for path in checkpoint.best_k_models} == found(tmp_path)


def test_without_versions_checkpoints_are_replaced(tmp_path: Path, make: Make) -> None:
    """test_ckpt_version_counter_disabled_after_rerun_new_trainer."""
    for model in (BoringModel(), BoringModel()):
        checkpoint = ModelCheckpoint(
            tmp_path, save_top_k=-1, save_last=True, monitor="epoch", filename="{epoch}", enable_version_counter=False
        )
        make(tmp_path, checkpoint, max_epochs=2).fit(model)
        assert {Path(path).name for path in checkpoint.best_k_models} == {"epoch=0.ckpt", "epoch=1.ckpt"}
        assert found(tmp_path) == {"epoch=0.ckpt", "epoch=1.ckpt", "last.ckpt"}
        assert same_weights(model, load(tmp_path / "last.ckpt")["state_dict"])


def test_validation_every_second_epoch(tmp_path: Path, make: Make) -> None:
    """test_check_val_every_n_epochs_top_k_integration."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="epoch", save_top_k=-1, filename="{epoch}")
    make(tmp_path, checkpoint, max_epochs=5, check_val_every_n_epoch=2).fit(BoringModel())
    assert found(tmp_path) == {"epoch=1.ckpt", "epoch=3.ckpt"}


def test_the_callbacks_state_in_another_folder(tmp_path: Path, make: Make) -> None:
    """test_model_checkpoint_saveload_ckpt: of the old folder only the best path is taken over."""
    given = {"monitor": "loss", "save_top_k": 2, "save_last": True}
    old = ModelCheckpoint(tmp_path / "old", **given)
    make(tmp_path, old, max_epochs=2).fit(Scored())
    state = state_of(tmp_path / "old/last.ckpt", old)
    new = ModelCheckpoint(tmp_path / "new", **given)
    with pytest.warns(UserWarning, match="The dirpath has changed"):
        make(tmp_path, new, max_epochs=2).fit(Scored(), ckpt_path=tmp_path / "old/last.ckpt")
    assert new.best_model_path == state["best_model_path"] != ""
    for key in ("dirpath", "best_model_score", "kth_best_model_path", "best_k_models", "last_model_path"):
        assert getattr(new, key) != state[key], key
    assert torch.is_tensor(state["best_model_score"]) and load(new.best_model_path)


def test_resuming_elsewhere_leaves_the_old_last(tmp_path: Path, make: Make) -> None:
    """test_resume_training_preserves_old_ckpt_last."""
    given = {"filename": "{step}", "monitor": "step", "mode": "max", "save_last": True, "save_top_k": 2}
    given |= {"every_n_train_steps": 1}
    make(tmp_path, ModelCheckpoint(**given), limit_train_batches=3).fit(BoringModel())
    kept = {"last.ckpt", "step=2.ckpt", "step=3.ckpt"}
    assert found(tmp_path / "checkpoints") == kept
    again = make(tmp_path, ModelCheckpoint(tmp_path / "new", **given), limit_train_batches=3, max_epochs=2)
    again.fit(BoringModel(), ckpt_path=tmp_path / "checkpoints/step=2.ckpt")
    assert found(tmp_path / "checkpoints") == kept and found(tmp_path / "new") == {
        "last.ckpt",
        "step=5.ckpt",
        "step=6.ckpt",
    }


@pytest.mark.parametrize("last", [True, False])
def test_a_checkpoint_knows_its_own_path(tmp_path: Path, make: Make, last: bool) -> None:
    """test_save_last_saves_correct_last_model_path, test_none_monitor_saves_correct_best_model_path."""
    checkpoint = ModelCheckpoint(tmp_path, save_last=last)
    checkpoint.CHECKPOINT_NAME_LAST = "{foo}-last"
    one = make(tmp_path, checkpoint)
    one.strategy.connect(BoringModel())
    save = checkpoint._save_last_checkpoint if last else checkpoint._save_none_monitor_checkpoint
    save(one, {"foo": torch.tensor(1)})
    (name,) = found(tmp_path)
    assert name == ("foo=1-last.ckpt" if last else "epoch=0-step=0.ckpt")
    assert state_of(tmp_path / name, checkpoint)[f"{'last' if last else 'best'}_model_path"] == str(tmp_path / name)


def test_versions_of_the_last(tmp_path: Path, make: Make) -> None:
    """test_save_last_versioning."""
    for _ in range(2):
        make(tmp_path, ModelCheckpoint(tmp_path, save_top_k=0, save_last=True), max_epochs=2).fit(BoringModel())
    assert found(tmp_path) == {"last.ckpt", "last-v1.ckpt"}
    assert not any((tmp_path / name).is_symlink() for name in found(tmp_path))


@pytest.mark.parametrize("every", [0, 5])
def test_the_last_ignores_every_n_epochs(tmp_path: Path, make: Make, every: int) -> None:
    """test_save_last_every_n_epochs_interaction: as of lightning 2.6, once at the end."""
    checkpoint = ModelCheckpoint(
        tmp_path, every_n_epochs=every, save_last=True, save_top_k=0, save_on_train_epoch_end=True
    )
    one = make(tmp_path, checkpoint, max_epochs=2)
    one.fit(BoringModel())
    assert io_of(one).saved == [str(tmp_path / "last.ckpt")] and found(tmp_path) == {"last.ckpt"}


@pytest.mark.parametrize("same", [True, False])
def test_what_was_resumed_from_stays(tmp_path: Path, make: Make, same: bool) -> None:
    """test_resume_and_old_checkpoint_files_remain."""
    given = {"monitor": "step", "mode": "max", "save_top_k": 2, "every_n_train_steps": 2}
    steps = {"limit_train_batches": 10, "max_epochs": -1}
    make(tmp_path, ModelCheckpoint(tmp_path / "a", **given), max_steps=5, **steps).fit(BoringModel())
    assert found(tmp_path / "a") == {"epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"}
    second = tmp_path / ("a" if same else "b")
    again = make(tmp_path, ModelCheckpoint(second, **given), max_steps=8, **steps)
    again.fit(BoringModel(), ckpt_path=tmp_path / "a/epoch=0-step=4.ckpt")
    assert found(second) == {f"epoch=0-step={step}.ckpt" for step in ((4, 6, 8) if same else (6, 8))}
    assert same or found(tmp_path / "a") == {"epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"}


@pytest.mark.parametrize(
    ("name", "there", "wanted"),
    [
        ("last", [], []),
        ("last", ["last"], []),
        ("last", ["last", "last.ckpt"], ["last.ckpt"]),
        ("last", ["log.ckpt", "last-v0.ckpt", "last-v1.ckpt"], ["last-v0.ckpt", "last-v1.ckpt"]),
        ("other", ["last.ckpt", "other-v0.ckpt"], ["other-v0.ckpt"]),
    ],
)
def test_the_last_checkpoints_are_found(
    tmp_path: Path, make: Make, name: str, there: list[str], wanted: list[str]
) -> None:
    """test_find_last_checkpoints: the newest of them is resumed."""
    one = make(tmp_path, enable_checkpointing=False)
    one.fit(BoringModel())
    for each in there:
        one.save_checkpoint(tmp_path / "run" / each)
    checkpoint = ModelCheckpoint(tmp_path / "run")
    checkpoint.CHECKPOINT_NAME_LAST = name
    again = make(tmp_path, checkpoint, max_epochs=2)
    assert checkpoint._find_last_checkpoints(again) == {str(tmp_path / "run" / one) for one in wanted}
    again.fit(BoringModel(), ckpt_path="last")
    assert io_of(again).loaded == [str(tmp_path / "run" / one) for one in wanted[-1:]]
