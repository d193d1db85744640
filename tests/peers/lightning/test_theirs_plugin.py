"""What Lightning's own tests of the Trainer's saves and of CheckpointIO ask of a plugin, written anew for Cairn's. The name
of the file that it comes from stands above each test, whose first line names theirs."""

from __future__ import annotations

import os
from pathlib import Path

import cairn
import cairn.lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import AsyncCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy
from test_sharded import finish, start
from theirs import Adam, CountingIO, Make, Scored, found, load

# checkpointing/test_trainer_checkpoint.py


def test_fine_tuning_from_the_best(tmp_path: Path, make: Make) -> None:
    """test_finetuning_with_ckpt_path."""
    checkpoint = ModelCheckpoint(tmp_path, monitor="val", filename="{epoch:02d}", save_top_k=-1)
    make(tmp_path, checkpoint).fit(Scored(val=[0.5]))
    best = checkpoint.best_model_path
    assert best.endswith("epoch=00.ckpt")
    for epochs in (3, 4, 5):
        one = make(tmp_path, max_epochs=epochs)
        one.fit(Scored(), ckpt_path=best)
        one.test(ckpt_path="best", verbose=False)
        best = one.checkpoint_callback.best_model_path
        assert f"epoch={epochs - 1}-" in best


def test_storage_options_are_refused_and_nothing_is_written(tmp_path: Path, make: Make) -> None:
    """test_trainer_save_checkpoint_storage_options."""
    one = make(tmp_path / "run", enable_checkpointing=False)
    one.fit(BoringModel())
    with pytest.raises(TypeError, match="storage_options: expected None"):
        one.save_checkpoint(tmp_path / "a.ckpt", storage_options={"key": 1})
    one.save_checkpoint(tmp_path / "b.ckpt", weights_only=True)
    assert "optimizer_states" not in load(tmp_path / "b.ckpt") and not (tmp_path / "a.ckpt").exists()


# checkpointing/test_torch_saving.py


def test_a_trainer_can_be_pickled(tmp_path: Path, make: Make) -> None:
    """test_model_torch_save."""
    one = make(tmp_path)
    one.fit(BoringModel())
    torch.save(one.model, tmp_path / "model.pt")
    torch.save(one, tmp_path / "trainer.pt")
    again = torch.load(tmp_path / "trainer.pt", weights_only=False)
    again.fit_loop.max_epochs = 2
    again.fit(BoringModel(), ckpt_path="best")
    assert again.global_step == 4
    assert found(tmp_path / "checkpoints") == {"epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt"}


# checkpointing/test_model_checkpoint.py and test_torch_saving.py, in two processes


@pytest.mark.parametrize("how", ["callback", "alone"])
@pytest.mark.parametrize("begin", ["ddp_spawn", "ddp_fork"])
def test_one_of_two_processes_saves(tmp_path: Path, begin: str, how: str) -> None:
    """test_model_checkpoint_no_extraneous_invocations, test_model_torch_save_ddp_cpu."""
    finish(start(Path(__file__).with_name("two_started.py"), tmp_path, begin, how))
    assert found(tmp_path / "run") == {f"epoch={i}-step={2 * i + 2}.ckpt" for i in range(3)}
    assert load(tmp_path / "run/epoch=2-step=6.ckpt")["global_step"] == 6


# plugins/test_checkpoint_io_plugin.py


@pytest.mark.parametrize("where", ["strategy", "plugins"])
def test_the_plugin_does_all(tmp_path: Path, make: Make, where: str) -> None:
    """test_checkpoint_plugin_called."""
    for suffix in ("", "-v1"):
        io = CountingIO()
        strategy = SingleDeviceStrategy(torch.device("cpu"), checkpoint_io=io if where == "strategy" else None)
        checkpoint = ModelCheckpoint(tmp_path, save_last=True)
        given = {"plugins": [] if where == "strategy" else [io], "strategy": strategy, "accelerator": "auto"}
        one = make(tmp_path, checkpoint, max_epochs=2, limit_train_batches=1, **given)
        one.fit(BoringModel())
        assert checkpoint.best_model_path == str(tmp_path / f"epoch=1-step=2{suffix}.ckpt")
        assert checkpoint.last_model_path == str(tmp_path / f"last{suffix}.ckpt")
        assert (len(io.saved), len(io.removed)) == (4, 1)
        one.test(BoringModel(), ckpt_path=checkpoint.last_model_path, verbose=False)
        assert io.loaded == [str(tmp_path / f"last{suffix}.ckpt")]
    assert found(tmp_path) == {f"{name}{end}.ckpt" for name in ("epoch=1-step=2", "last") for end in ("", "-v1")}


def test_lightnings_wrapper_for_threads(tmp_path: Path, make: Make, request: pytest.FixtureRequest) -> None:
    """test_async_checkpoint_plugin: Cairn needs no wrapper, and with the Callback says so."""
    io = CountingIO()
    checkpoint = ModelCheckpoint(tmp_path, save_top_k=2, monitor="step", mode="max")
    one = make(tmp_path, checkpoint, plugins=[AsyncCheckpointIO(io)], max_epochs=3, limit_train_batches=1)
    if "callback" in request.node.name:
        with pytest.raises(cairn.FailedPrecondition, match="found AsyncCheckpointIO: .*in the background"):
            one.fit(BoringModel())
        return
    one.fit(BoringModel())
    assert (len(io.saved), len(io.removed)) == (3, 1)
    assert found(tmp_path) == {"epoch=1-step=2.ckpt", "epoch=2-step=3.ckpt"}


# checkpointing/test_legacy_checkpoints.py


def test_lightnings_own_file_is_refused_with_the_line_that_converts_it(tmp_path: Path, make: Make) -> None:
    """test_resume_legacy_checkpoints, test_load_legacy_checkpoints: of Lightning's files; Cairn unpickles nothing."""
    stock = make(tmp_path, ModelCheckpoint(tmp_path, filename="old"), fences=False, plugins=[])
    stock.fit(Adam())
    old, new = tmp_path / "old.ckpt", tmp_path / "new.ckpt"
    with pytest.raises(cairn.InvalidArgument, match=r"old.ckpt: .*CheckpointIO\(\)\.save_checkpoint\(torch\.load\("):
        make(tmp_path).fit(Adam(), ckpt_path=old)
    CountingIO().save_checkpoint(torch.load(old, weights_only=False), new)
    resumed = make(tmp_path, max_epochs=2)
    resumed.fit(Adam(), ckpt_path=new)
    assert resumed.global_step == 4 and os.path.isfile(old)
