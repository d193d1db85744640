"""What Lightning's own tests of resuming and of CheckpointIO ask of a checkpoint, written anew for Cairn's. The name of
the file that it comes from stands above each test, whose first line names theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

import cairn
import cairn.lightning
import pytest
import torch
import yaml
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import TrainerFn
from theirs import Adam, Make, Scored, found, io_of, load, same_weights

# models/test_restore.py


class SameProperties(Callback):
    def check(self, trainer: Any, model: Any, *_: Any) -> None:
        assert (trainer.global_step, trainer.current_epoch) == (model.global_step, model.current_epoch)

    on_train_start = on_train_batch_start = on_train_batch_end = on_train_end = check


def test_trainer_and_model_agree(tmp_path: Path, make: Make) -> None:
    """test_model_properties_fit_ckpt_path."""
    model = BoringModel()
    make(tmp_path, SameProperties(), ModelCheckpoint(tmp_path, save_last=True)).fit(model)
    resumed = make(tmp_path, SameProperties(), ModelCheckpoint(tmp_path, save_last=True), max_epochs=2)
    resumed.fit(model, ckpt_path=str(tmp_path / "last.ckpt"))
    assert (resumed.global_step, resumed.current_epoch) == (4, 2)


def same_state(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_state, one, other))
    return bool(one == other)


@pytest.mark.parametrize("what", ["fit", "validate", "test", "predict"])
def test_the_state_is_there_when_a_phase_starts(tmp_path: Path, make: Make, what: str) -> None:
    """test_trainer_properties_restore_ckpt_path."""
    make(tmp_path, ModelCheckpoint(tmp_path, save_last=True)).fit(Adam(), datamodule=BoringDataModule())
    kept, seen = load(tmp_path / "last.ckpt"), []

    class Looks(Adam):
        def look(self) -> None:
            seen.append(what)
            assert same_weights(self, kept["state_dict"])
            assert self.trainer.global_step == (kept["global_step"] if what == "fit" else 0)
            if what == "fit":
                assert self.trainer.current_epoch == kept["epoch"] + 1
                assert same_state([one.state_dict() for one in self.trainer.optimizers], kept["optimizer_states"])
                configs = self.trainer.lr_scheduler_configs
                assert same_state([one.scheduler.state_dict() for one in configs], kept["lr_schedulers"])

        def on_train_start(self) -> None:
            self.look()

        def on_validation_start(self) -> None:
            if self.trainer.state.fn == TrainerFn.VALIDATING:
                self.look()

        on_test_start = on_predict_start = look

    one = make(tmp_path, enable_checkpointing=False, max_epochs=3, limit_predict_batches=1)
    getattr(one, what)(Looks(), datamodule=BoringDataModule(), ckpt_path=tmp_path / "last.ckpt")
    assert seen == [what]


def test_steps_and_epochs_count_on(tmp_path: Path, make: Make) -> None:
    """test_correct_step_and_epoch: from a checkpoint that was saved after the fit."""
    first = make(tmp_path, max_epochs=2)
    first.fit(BoringModel())
    first.save_checkpoint(tmp_path / "model.ckpt")
    kept = load(tmp_path / "model.ckpt")
    assert (kept["epoch"], kept["global_step"]) == (2, 4)

    class Looks(BoringModel):
        def on_train_start(self) -> None:
            assert (self.trainer.current_epoch, self.trainer.global_step) == (2, 4)
            assert self.trainer.fit_loop.epoch_loop._batches_that_stepped == 4

    second = make(tmp_path, max_epochs=4)
    assert (second.current_epoch, second.global_step) == (0, 0)
    second.fit(Looks(), ckpt_path=tmp_path / "model.ckpt")
    assert (second.current_epoch, second.global_step) == (4, 8)
    assert second.fit_loop.epoch_loop._batches_that_stepped == 8


def test_one_trainer_fits_twice(tmp_path: Path, make: Make) -> None:
    """test_fit_twice."""
    epochs = []

    class Keeps(BoringModel):
        def on_train_epoch_end(self) -> None:
            epochs.append(self.current_epoch)

    one = make(tmp_path, max_epochs=2)
    one.fit(Keeps())
    one.fit_loop.max_epochs = 4
    one.fit(Keeps())
    assert epochs == [0, 1, 2, 3] and len(found(tmp_path / "checkpoints")) == 1


def test_a_missing_checkpoint_is_named(tmp_path: Path, make: Make) -> None:
    """test_try_resume_from_non_existing_checkpoint."""
    with pytest.raises(FileNotFoundError, match=f"there is no checkpoint at {tmp_path}/absent.ckpt"):
        make(tmp_path).fit(BoringModel(), ckpt_path=tmp_path / "absent.ckpt")


def test_callbacks_get_their_states(tmp_path: Path, make: Make) -> None:
    """test_callbacks_state_fit_ckpt_path, test_callbacks_references_fit_ckpt_path."""
    before = ModelCheckpoint(tmp_path, monitor="val", save_last=True)
    make(tmp_path, before).fit(Scored(val=[0.5]))
    after = ModelCheckpoint(tmp_path, monitor="val", save_last=True)
    one = make(tmp_path, after)
    one.fit(Scored(), ckpt_path=tmp_path / "last.ckpt")
    assert one.checkpoint_callback is after and before.best_model_score == 0.5
    for key in ("best_model_path", "best_model_score", "best_k_models", "kth_best_model_path", "kth_value"):
        assert getattr(before, key) == getattr(after, key), key
    assert before.last_model_path == after.last_model_path


T = TypeVar("T")


class Sized(Scored):
    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()


class SizedOf(Sized, Generic[T]): ...


class SizedOfInt(SizedOf[int]): ...


@pytest.mark.parametrize("kind", [Sized, SizedOfInt])
def test_a_model_comes_back_with_its_hyper_parameters(tmp_path: Path, make: Make, kind: Any) -> None:
    """test_load_model_from_checkpoint, test_running_test_pretrained_model_cpu."""
    model = kind(batch_size=7)
    make(tmp_path, ModelCheckpoint(tmp_path, monitor="loss", save_top_k=-1), max_epochs=2).fit(model)
    path = tmp_path / "epoch=1-step=4.ckpt"
    assert load(path)[kind.CHECKPOINT_HYPER_PARAMS_KEY] == {"batch_size": 7}
    loaded = cairn.lightning.load_from_checkpoint(kind, path)
    assert type(loaded) is kind and dict(loaded.hparams) == {"batch_size": 7} and same_weights(loaded, model)
    make(tmp_path).test(loaded, verbose=False)


def test_a_model_comes_back_with_a_file_of_hyper_parameters(tmp_path: Path, make: Make) -> None:
    """test_model_saving_loading."""
    logger, model = CSVLogger(tmp_path), Sized(batch_size=7)
    one = make(tmp_path, logger=logger)
    one.fit(model)
    one.save_checkpoint(tmp_path / "a.ckpt")
    given = Path(logger.log_dir) / "hparams.yaml"
    assert yaml.safe_load(given.read_text()) == {"batch_size": 7}
    loaded = cairn.lightning.load_from_checkpoint(Sized, tmp_path / "a.ckpt", hparams_file=given)
    batch = torch.ones(2, 32)
    assert loaded.hparams["batch_size"] == 7 and torch.equal(loaded.eval()(batch), model.eval()(batch))


class More(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        self.c_d3 = torch.nn.Linear(7, 7)


@pytest.mark.parametrize(
    ("saved", "loaded", "says"), [(More, BoringModel, "Unexpected"), (BoringModel, More, "Missing")]
)
def test_strict_or_not(tmp_path: Path, make: Make, saved: Any, loaded: Any, says: str) -> None:
    """test_strict_model_load_more_params, test_strict_model_load_less_params. From a URL it is refused by name."""
    one = make(tmp_path)
    one.fit(saved())
    one.save_checkpoint(tmp_path / "a.ckpt")
    cairn.lightning.load_from_checkpoint(loaded, tmp_path / "a.ckpt", strict=False)
    with pytest.raises(RuntimeError, match=rf'{says} key\(s\) in state_dict: "c_d3.weight", "c_d3.bias"'):
        cairn.lightning.load_from_checkpoint(loaded, tmp_path / "a.ckpt", strict=True)
    with pytest.raises(cairn.Unsupported, match="^http://a/a.ckpt: .* mounted filesystems only"):
        cairn.lightning.load_from_checkpoint(loaded, "http://a/a.ckpt")


class Stops(BoringModel):
    def __init__(self, at: int, raises: bool) -> None:
        super().__init__()
        self.at, self.raises = at, raises

    def training_step(self, batch: Any, index: int) -> Any:
        if index == self.at:
            if self.raises:
                raise KeyError("theirs")
            self.trainer.should_stop = True
        return super().training_step(batch, index)


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("middle", [True, False])
def test_resuming_in_mid_epoch_warns(tmp_path: Path, make: Make, raises: bool, middle: bool) -> None:
    """test_restarting_mid_epoch_raises_warning. After `should_stop` lightning 2.6 warns with none of its
    files either."""
    model, steps = Stops(4 if middle else -1, raises), {"limit_train_batches": 8, "limit_val_batches": 0}
    first = make(tmp_path, **steps)
    if middle and raises:
        with pytest.raises(KeyError, match="theirs"):
            first.fit(model)
    else:
        first.fit(model)
    first.save_checkpoint(tmp_path / "a.ckpt")
    model.at = -1
    second = make(tmp_path, max_epochs=2, **steps)
    with pytest.warns() as heard:  # Of something in each case: few workers, for one.
        second.fit(model, ckpt_path=tmp_path / "a.ckpt")
    told = [one for one in heard if "resuming from a checkpoint that ended" in str(one.message)]
    assert bool(told) == (middle and raises) and second.current_epoch == 2


# trainer/connectors/test_checkpoint_connector.py


def test_a_loaded_checkpoint_is_let_go(tmp_path: Path, make: Make) -> None:
    """test_preloaded_checkpoint_lifecycle."""
    one = make(tmp_path)
    one.fit(BoringModel())
    path = one.checkpoint_callback.best_model_path
    connector = make(tmp_path, max_epochs=2)._checkpoint_connector
    connector.resume_start(path)
    assert connector._ckpt_path == path and connector._loaded_checkpoint["global_step"] == 2
    connector.trainer.state.fn = TrainerFn.FITTING
    connector.resume_end()
    assert connector._ckpt_path == path and not connector._loaded_checkpoint


def test_slurms_checkpoint_comes_first(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """test_hpc_restore_attempt."""
    folder, model = tmp_path / "run", BoringModel()
    one = make(folder, enable_checkpointing=False)
    one.fit(model)
    one.save_checkpoint(folder / "hpc_ckpt_3.ckpt")
    assert found(folder) == {"hpc_ckpt_3.ckpt"}
    for name, value in {"NTASKS": "1", "JOB_NAME": "train", "NODELIST": "localhost", "NTASKS_PER_NODE": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("JOB_ID", "JOBID", "PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    kept = load(folder / "hpc_ckpt_3.ckpt")["state_dict"]
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    again = make(folder, enable_checkpointing=False)
    again.fit(model)
    assert io_of(again).loaded == [str(folder / "hpc_ckpt_3.ckpt")] and same_weights(model, kept)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at .*/absent"):
        make(folder).fit(model, ckpt_path=str(folder / "absent"))


def test_the_highest_of_slurms_checkpoints(tmp_path: Path, make: Make) -> None:
    """test_hpc_max_ckpt_version. In another place than a mounted filesystem (test_ckpt_for_fsspec) it is refused."""
    one = make(tmp_path)
    one.fit(BoringModel())
    for name in ("hpc_ckpt", "hpc_ckpt_0", "hpc_ckpt_3", "hpc_ckpt_33"):
        one.save_checkpoint(tmp_path / f"{name}.ckpt")
    assert one._checkpoint_connector._hpc_resume_path == str(tmp_path / "hpc_ckpt_33.ckpt")
    again = make(tmp_path, max_epochs=2)
    again.fit(BoringModel(), ckpt_path="hpc")
    assert io_of(again).loaded == [str(tmp_path / "hpc_ckpt_33.ckpt")] and again.global_step == 4
    with pytest.raises(cairn.Unsupported, match="^memory://a/checkpoints/.*: .*copy checkpoints to memory://"):
        make("memory://a").fit(BoringModel())


def test_each_loop_gets_its_state(tmp_path: Path, make: Make) -> None:
    """test_loops_restore."""
    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    make(tmp_path, checkpoint).fit(BoringModel())
    one = make(tmp_path, checkpoint)
    one.strategy.connect(BoringModel())
    for fn in TrainerFn:
        one.state.fn = fn
        one._checkpoint_connector.resume_start(str(tmp_path / "last.ckpt"))
        one._checkpoint_connector.restore_loops()
        kept = one._checkpoint_connector._loaded_checkpoint["loops"]
        loop = getattr(one, f"{fn.value}_loop")
        assert same_state(loop.state_dict(), kept[f"{fn.value}_loop"])
    assert one.fit_loop.epoch_progress.current.completed == 0 and one.global_step == 2


def test_the_trainers_own_ckpt_path(tmp_path: Path, make: Make) -> None:
    """test_stateful_trainer_ckpt_path_support."""
    make(tmp_path, ModelCheckpoint(tmp_path, save_last=True)).fit(BoringModel())
    one = make(tmp_path, ModelCheckpoint(tmp_path, save_last=True), max_epochs=2)
    one.ckpt_path = tmp_path / "epoch=0-step=2.ckpt"
    one.fit(BoringModel())
    assert one.ckpt_path == tmp_path / "epoch=0-step=2.ckpt" and one.global_step == 4
    with pytest.warns(UserWarning, match="trainer.ckpt_path =.*but then you passed"):
        one.fit(BoringModel(), ckpt_path="last")
    one.ckpt_path = None
    one.test(BoringModel(), ckpt_path="best", verbose=False)
    assert [Path(path).name for path in io_of(one).loaded] == [
        "epoch=0-step=2.ckpt",
        "last-v1.ckpt",  # Since the first run made the other.
        "epoch=1-step=4.ckpt",
    ]


@pytest.mark.parametrize(("given", "strict"), [(None, True), (True, True), (False, False)])
def test_strict_loading_of_the_model(tmp_path: Path, make: Make, given: bool | None, strict: bool) -> None:
    """test_strict_loading."""
    make(tmp_path, ModelCheckpoint(tmp_path)).fit(BoringModel())
    calls = []

    class Loads(BoringModel):
        def load_state_dict(self, state: Any, strict: bool = True, **_: Any) -> None:
            calls.append(strict)

    model = Loads()
    model.strict_loading = given
    make(tmp_path, max_epochs=2).fit(model, ckpt_path=tmp_path / "epoch=0-step=2.ckpt")
    assert calls == [strict]
