"""Lightning's Trainer, ModelCheckpoint and all, over the real engine. Where Lightning is not installed, skipped."""

from __future__ import annotations

import logging
import os
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
import safetensors
import torch

pytest.importorskip("lightning", reason="lightning is not installed")

import cairn._lightning.checkpoint_io
import cairn.lightning
from cairn._lightning.values import check_kept
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Model(LightningModule):
    """Draws from the generator in each step, and has buffers that forward changes."""

    def __init__(self, rate: float = 0.1, width: int = 8, extra: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        norm = torch.nn.BatchNorm1d(width)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, width), norm, torch.nn.Dropout(0.5), torch.nn.Linear(width, 1)
        )
        self.seen: list[tuple[int, float, float]] = []
        self.saved: list[tuple[int, dict[str, torch.Tensor]]] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = self.net(batch[0]).square().mean() + 0 * (float(np.random.rand()))
        self.seen.append((self.global_step, float(loss), float(batch[0].sum()) + float(np.random.rand())))
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("val", self.net(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["rate"])
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = {name: tensor.clone() for name, tensor in checkpoint["state_dict"].items()}
        self.saved.append((self.global_step, state))


def batches() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=8, shuffle=True)


def an_io(**options: Any) -> cairn.lightning.CheckpointIO:
    return cairn.lightning.CheckpointIO(**{"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, **options})


def a_trainer(*callbacks: Any, io: Any = None, **options: Any) -> Trainer:
    fixed: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    plugins = [io or an_io()]
    options = {"max_epochs": 2, "accelerator": "cpu", **fixed, **options}
    return Trainer(plugins=plugins, callbacks=[*callbacks], **options)


def fit(
    *callbacks: Any,
    ckpt_path: Any = None,
    model: Any = None,
    seed: int = 1,
    val: Any = None,
    ours: bool = True,
    loader: Any = None,
    **options: Any,
) -> Any:
    """`ours`: with cairn's Callback."""
    seed_everything(seed, verbose=False)
    model = model or Model()
    trainer = a_trainer(*[cairn.lightning.Callback()] * ours, *callbacks, **options)
    trainer.fit(model, loader or batches(), val, ckpt_path=ckpt_path)
    return model


def found(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def same(ours: Any, theirs: Any, path: str = "") -> None:
    """Type by type and bit by bit."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), path
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), path
        assert getattr(ours, "_metadata", None) == getattr(theirs, "_metadata", None), path
        for key in ours:
            same(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), path
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same(one, other, f"{path}/{i}")
    else:
        assert ours == theirs, path


MODES: dict[str, dict[str, Any]] = {
    "top-k and last": {"monitor": "loss", "save_top_k": 2, "save_last": True, "every_n_train_steps": 1},
    "one name for all": {"monitor": "loss", "save_top_k": 3, "filename": "best", "every_n_train_steps": 1},
    "a name for an epoch": {"save_top_k": -1, "filename": "{epoch}", "every_n_train_steps": 2},
    "newest": {"save_top_k": 1, "every_n_train_steps": 1},
    "last": {"save_top_k": 0, "save_last": True, "every_n_train_steps": 3},
    "link": {"monitor": "loss", "save_last": "link", "every_n_train_steps": 2},
    "weights": {"save_weights_only": True, "monitor": "loss", "save_top_k": 2},
}


@pytest.mark.parametrize("mode", MODES)
def test_the_same_paths_hold_the_same_as_with_torch_save(tmp_path: Path, mode: str) -> None:
    class Theirs(cairn.lightning.Callback):
        """In the checkpoint, but idle."""

        def setup(self, *_: Any, **__: Any) -> None: ...
        def on_fit_start(self, *_: Any) -> None: ...
        def on_train_start(self, *_: Any) -> None: ...

    fit(ModelCheckpoint(tmp_path / "run", **MODES[mode]))
    os.rename(tmp_path / "run", tmp_path / "ours")
    seed_everything(1, verbose=False)
    trainer = a_trainer(Theirs(), ModelCheckpoint(tmp_path / "run", **MODES[mode]), io=TorchCheckpointIO())
    trainer.fit(Model(), batches())

    assert found(tmp_path / "ours") == found(tmp_path / "run") != []
    for name in found(tmp_path / "run"):
        theirs = torch.load(tmp_path / "run" / name, weights_only=False)
        ours = cairn.lightning.load_checkpoint(tmp_path / "ours" / name)
        for checkpoint in (theirs, ours):
            state = checkpoint.get("callbacks", {}).pop("cairn.lightning.Callback", None)
            assert state is not None or mode == "weights"
        same(ours, theirs, name)


def test_any_safetensors_reader_opens_a_checkpoint(tmp_path: Path) -> None:
    model = fit(ModelCheckpoint(tmp_path, save_top_k=0, save_last=True))
    (shard,) = (tmp_path / "last.ckpt").glob("*.safetensors")
    with safetensors.safe_open(shard, "pt") as file:
        assert torch.equal(file.get_tensor("state_dict/net.0.weight"), model.net[0].weight)


@pytest.mark.parametrize("clone", [True, False])
def test_each_checkpoint_holds_what_was_there_when_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clone: bool
) -> None:
    if not clone:
        monkeypatch.setattr(cairn._lightning.checkpoint_io, "_BUFFERS", 0)
    # Too large to be copied within the call: parameters, optimizer state and buffers.
    model = fit(
        ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=1), model=Model(width=40_000), max_epochs=1
    )

    assert len(model.saved) == 5
    for step, state in model.saved:
        loaded = cairn.lightning.load_checkpoint(tmp_path / f"epoch=0-step={step}.ckpt")
        for name, tensor in state.items():
            assert torch.equal(loaded["state_dict"][name], tensor), (step, name)


def test_a_load_right_after_a_save_reads_what_it_saves(tmp_path: Path) -> None:
    steps = []

    class Reads(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            for path in (tmp_path / "last.ckpt", tmp_path / f"{trainer.global_step}.ckpt"):
                trainer.save_checkpoint(path)
                loaded = cairn.lightning.load_checkpoint(path)
                same(loaded["state_dict"], pl_module.state_dict())
                steps.append(loaded["global_step"])

    fit(Reads(), model=Model(width=50_000), max_epochs=1, enable_checkpointing=False)

    assert steps == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


class Based(Model):
    """With more than 1 MiB that does not change, and buffers beside it, which each save copies."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.BatchNorm1d(600)).requires_grad_(False)


@pytest.mark.parametrize("frozen", [True, "state_dict/base*"])
def test_what_is_frozen_is_written_once(tmp_path: Path, frozen: Any) -> None:
    class Waits(ModelCheckpoint):
        """Until a save is durable: only then can the next one link what it holds."""

        def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
            super()._save_checkpoint(trainer, filepath)
            cairn.lightning.load_checkpoint(filepath)

    model = fit(
        Waits(tmp_path / "run", save_top_k=-1, every_n_train_steps=4, filename="{step}"),
        model=Based(),
        io=an_io(frozen=frozen, host_memory="16MiB"),
    )

    files = [*(tmp_path / "run").glob("*.ckpt/kept-*")]
    assert len(files) == 2 and len({file.stat().st_ino for file in files}) == 1
    for (step, state), path in zip(model.saved, sorted((tmp_path / "run").iterdir()), strict=True):
        assert str(step) in path.name
        same(dict(cairn.lightning.load_checkpoint(path)["state_dict"]), state)


def test_buffers_beside_the_state_dict_hold_what_was_there(tmp_path: Path) -> None:
    """As Lightning's WeightAveraging keeps them, in "current_model_state"."""
    model, io = Model(width=1_000_000), an_io()
    io.attach(model)
    io.save_checkpoint({"state_dict": {"w": torch.ones(1)}, "current_model_state": model.state_dict()}, tmp_path / "a")
    for buffer in model.buffers():
        buffer.add_(1)  # As the next forward does, before any fence.
    io.teardown()

    kept = cairn.lightning.load_checkpoint(tmp_path / "a")["current_model_state"]
    assert kept["net.1.running_var"].eq(1).all() and kept["net.1.running_mean"].eq(0).all()


def test_manual_optimization_with_the_bare_optimizer(tmp_path: Path) -> None:
    class Manual(Model):
        automatic_optimization = False

        def training_step(self, batch: list[torch.Tensor], index: int) -> None:  # type: ignore[override]
            optimizer = self.optimizers(use_pl_optimizer=False)
            optimizer.zero_grad()
            super().training_step(batch, index).backward()
            optimizer.step()
            checkpoint = tmp_path / f"{len(self.saved)}.ckpt"
            self.trainer.save_checkpoint(checkpoint)

    model = fit(model=Manual(width=40_000), max_epochs=1, enable_checkpointing=False)

    assert len(model.saved) == 5
    for index, (_, state) in enumerate(model.saved):
        loaded = cairn.lightning.load_checkpoint(tmp_path / f"{index}.ckpt")
        for name, tensor in state.items():
            assert torch.equal(loaded["state_dict"][name], tensor), (index, name)


EPOCHS: dict[str, tuple[dict[str, Any], bool]] = {
    "at an epoch's end": ({}, False),
    "after validation": ({}, True),
    "before validation's end": ({"save_on_train_epoch_end": True}, True),
    "at the last batch": ({"every_n_train_steps": 5}, False),
}


@pytest.mark.parametrize("when", EPOCHS)
def test_resumes_bit_exactly_between_epochs(tmp_path: Path, when: str) -> None:
    given, validates = EPOCHS[when]
    val = batches() if validates else None
    whole = fit(ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **given), max_epochs=3, val=val)
    resumed = fit(
        ModelCheckpoint(tmp_path / "more", filename="{step}", save_top_k=-1, **given),
        max_epochs=3,
        val=val,
        seed=2,
        ckpt_path=tmp_path / "step=5.ckpt",
    )

    assert resumed.seen == whole.seen[5:]
    same(resumed.state_dict(), whole.state_dict())


class Placed(torch.utils.data.DataLoader[Any]):
    """Keeps its place in the epoch."""

    place = skipped = 0

    def __iter__(self) -> Any:
        inner = super().__iter__()
        self.place, self.skipped = self.skipped, 0
        for _ in range(self.place):
            next(inner)
        return self._placed(inner)

    def _placed(self, inner: Any) -> Any:
        for batch in inner:
            self.place += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skipped = state["place"]


@pytest.mark.parametrize("limit", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 15}], ids=["epochs", "steps"])
def test_a_resumed_run_is_resumed_bit_exactly_in_mid_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: dict[str, int]
) -> None:
    """After one that was resumed at an epoch's last batch Lightning's own numbers of epochs are one behind."""

    def run(folder: Path, seed: int, ckpt_path: Any = None) -> Any:
        saves = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
        loader = Placed(torch.utils.data.TensorDataset(X), batch_size=8)
        return fit(saves, seed=seed, ckpt_path=ckpt_path, loader=loader, **limit)

    whole = run(tmp_path / "whole", 1)
    first = run(tmp_path / "first", 2, tmp_path / "whole/step=5.ckpt")
    assert first.seen == whole.seen[5:] and caplog.text == ""
    second = run(tmp_path / "second", 3, tmp_path / "first/step=8.ckpt")
    lost = "Lightning has lost where this checkpoint is in its epoch" in caplog.text
    assert lost == ("max_steps" not in limit)
    if lost:  # By its own checkpoints, too, and without a word.
        return
    assert second.seen == whole.seen[8:]
    same(second.state_dict(), whole.state_dict())


@pytest.mark.parametrize("ours", [True, False])
def test_optimizers_unlike_the_checkpoints_are_refused(tmp_path: Path, ours: bool) -> None:
    class Own(torch.optim.Optimizer):
        """Would take any state, and fail in its first step."""

    class Unlike(Model):
        def __init__(self, make: Any) -> None:
            super().__init__()
            self.make = make

        def configure_optimizers(self) -> Any:
            return self.make(self)

    fit(ModelCheckpoint(tmp_path, filename="one"), max_epochs=1, model=Model())
    for make, message in (
        (
            lambda m: torch.optim.SGD(m.parameters(), momentum=0.9),
            "one.ckpt: .* optimizer_states/0: the tree has SGD, the checkpoint has the state of AdamW; or begin with new",
        ),
        (lambda m: Own(m.parameters(), {"lr": 0.1}), "the tree has Own, the checkpoint has the state of AdamW"),
        (
            lambda m: torch.optim.AdamW(m.net[0].parameters()),
            "optimizer_states/0: only the checkpoint has the parameters net.1.weight, net.1.bias, net.3",
        ),
        (
            lambda m: [torch.optim.AdamW(part.parameters()) for part in (m.net[0], m.net[3])],
            "has 2 optimizers, the checkpoint has the states of 1",
        ),
    ):
        model = Unlike(make)
        model.automatic_optimization = False  # Lightning asks for that if there are several.
        with pytest.raises(cairn.InvalidArgument, match=message):
            fit(max_epochs=2, model=model, ckpt_path=tmp_path / "one.ckpt", ours=ours)


def test_schedulers_unlike_the_checkpoints_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lightning gives each the state of its place, and leaves out the rest."""

    class Other(Model):
        def __init__(self, *make: Any) -> None:
            super().__init__()
            self.make = make

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters())
            return [optimizer], [make(optimizer) for make in self.make]

    rates = torch.optim.lr_scheduler
    fit(ModelCheckpoint(tmp_path, filename="one"), max_epochs=1, model=Model())
    fit(ModelCheckpoint(tmp_path, filename="bare"), max_epochs=1, model=Model(), ours=False)
    for name, make, said in (
        ("one", [lambda o: rates.ExponentialLR(o, 0.9)], "has ExponentialLR, the checkpoint has the state of StepLR"),
        ("bare", [lambda o: rates.MultiStepLR(o, [1])], "another scheduler class: the tree's has base_lrs, gamma,"),
        ("one", [], "the module has 0 schedulers, the checkpoint has the state of 1"),
        ("one", [lambda o: rates.StepLR(o, 1)], ""),
        ("bare", [lambda o: rates.StepLR(o, 1)], ""),
    ):
        caplog.clear()
        fit(max_epochs=2, model=Other(*make), ckpt_path=tmp_path / f"{name}.ckpt", default_root_dir=tmp_path)
        warned = [one.getMessage() for one in caplog.records if one.name == "cairn" and one.levelno == logging.WARNING]
        assert len(warned) == bool(said) and said in "".join(warned)


@pytest.mark.parametrize("after", [False, True])
def test_an_optimizers_state_follows_the_parameters_names(tmp_path: Path, after: bool) -> None:
    """Also of a checkpoint that was saved after the fit."""

    class Ordered(Model):
        def __init__(self, turned: bool = False) -> None:
            super().__init__(width=4)
            self.turned = turned

        def configure_optimizers(self) -> Any:
            vectors = [self.net[0].bias, self.net[1].weight, self.net[1].bias]  # Of one shape.
            self.made = torch.optim.AdamW(vectors[::-1] if self.turned else vectors)
            return self.made

    first = fit(ModelCheckpoint(tmp_path, filename="one"), max_epochs=1, model=Ordered())
    if after:
        first.trainer.save_checkpoint(tmp_path / "one.ckpt")
    turned = fit(max_epochs=1, model=Ordered(turned=True), ckpt_path=tmp_path / "one.ckpt")
    for name, parameter in turned.named_parameters():
        if state := first.made.state.get(first.get_parameter(name)):
            same(turned.made.state[parameter], state)


def test_a_scheduler_of_groups_in_another_order_is_refused(tmp_path: Path) -> None:
    class Grouped(Model):
        def __init__(self, turned: bool = False) -> None:
            super().__init__()
            self.turned = turned

        def configure_optimizers(self) -> Any:
            groups = [{"params": self.net[i].parameters(), "lr": 0.1 * (i + 1)} for i in (0, 3)]
            optimizer = torch.optim.AdamW(groups[::-1] if self.turned else groups)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)]

    fit(ModelCheckpoint(tmp_path, filename="one"), max_epochs=1, model=Grouped())
    fit(max_epochs=2, model=Grouped(), ckpt_path=tmp_path / "one.ckpt")
    with pytest.raises(
        cairn.InvalidArgument, match="one.ckpt: lr_schedulers/0: its base_lrs are of the optimizer's groups"
    ):
        fit(max_epochs=2, model=Grouped(turned=True), ckpt_path=tmp_path / "one.ckpt")


def test_optimizers_in_another_order_are_refused(tmp_path: Path) -> None:
    """Lightning gives each the state of its place: the parameters of both may have one shape."""

    class Two(Model):
        def __init__(self, turned: bool = False) -> None:
            super().__init__(width=4)
            self.automatic_optimization = False
            self.turned = turned

        def configure_optimizers(self) -> Any:
            made = [torch.optim.AdamW([one]) for one in (self.net[1].weight, self.net[1].bias)]
            return made[::-1] if self.turned else made

        def training_step(self, batch: Any, index: int) -> None:
            self.manual_backward(super().training_step(batch, index))
            for optimizer in self.optimizers():
                optimizer.step()

    fit(ModelCheckpoint(tmp_path, filename="one"), max_epochs=1, model=Two())
    resumed = {"max_epochs": 2, "ckpt_path": tmp_path / "one.ckpt", "default_root_dir": tmp_path}
    fit(model=Two(), **resumed)
    with pytest.raises(cairn.InvalidArgument, match="optimizer_states/0: only the tree has the parameters net.1.bias"):
        fit(model=Two(turned=True), **resumed)


class Color(Enum):
    RED = 1


@dataclass
class Config:
    kind: Any


REFUSED: dict[str, Any] = {
    "a function": len,
    "an object": object(),
    "an Enum": Color.RED,
    "a generator": torch.Generator(),
    "an optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
def test_a_hyper_parameter_that_cannot_be_kept_is_refused_by_key(tmp_path: Path, what: str, nested: bool) -> None:
    value = {"deep": [1, REFUSED[what]]} if nested else REFUSED[what]
    key = "hyper_parameters/extra/deep/1" if nested else "hyper_parameters/extra"
    with pytest.raises(cairn.InvalidArgument, match=rf'{key}: .*save_hyperparameters\(ignore=\["extra"\]\)'):
        fit(ModelCheckpoint(tmp_path, every_n_train_steps=1), model=Model(extra=value))
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (Config(Color.RED), "extra/kind"),
        ([Config({"a": Color.RED})], "extra/0/kind/a"),
        ({Color.RED}, "extra/0"),
        (frozenset({(Color.RED,)}), "extra/0/0"),
        (deque([1, Color.RED]), "extra/1"),
    ],
)
def test_what_holds_an_enum_is_refused_by_key(value: Any, key: str) -> None:
    with pytest.raises(cairn.InvalidArgument, match=f"^hyper_parameters/{key}: a"):
        check_kept({"hyper_parameters": {"extra": value}}, "")
    check_kept({"extra": [Config(5), deque([1]), {1, "x"}]}, "")


def test_load_from_checkpoint(tmp_path: Path) -> None:
    class Data(LightningDataModule):
        def __init__(self, size: int = 8) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.count = 0

        def train_dataloader(self) -> Any:
            return batches()

        def state_dict(self) -> dict[str, Any]:
            return {"count": 5}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    seed_everything(1, verbose=False)
    model = Model(width=16, extra={"a": (1, None), "b": [0.5, "x"], "c": Path("x")})
    trainer = a_trainer(cairn.lightning.Callback(), ModelCheckpoint(tmp_path, save_last=True))
    trainer.fit(model, datamodule=Data(size=3))
    path = tmp_path / "last.ckpt"

    loaded = cairn.lightning.load_from_checkpoint(Model, path)
    assert dict(loaded.hparams) == {"rate": 0.1, "width": 16, "extra": model.hparams["extra"]}
    same(loaded.state_dict(), model.state_dict())
    assert cairn.lightning.load_from_checkpoint(Model, path, rate=3.0).hparams["rate"] == 3.0
    (tmp_path / "h.yaml").write_text("rate: 7.0\nwidth: 16\n")
    assert cairn.lightning.load_from_checkpoint(Model, path, hparams_file=tmp_path / "h.yaml").hparams["rate"] == 7.0
    data = cairn.lightning.load_from_checkpoint(Data, path)
    assert data.count == 5 and data.hparams["size"] == 3
    with pytest.raises(RuntimeError, match="size mismatch"):
        cairn.lightning.load_from_checkpoint(Model, path, width=4)
    with pytest.raises(cairn.NotFound):
        cairn.lightning.load_from_checkpoint(Model, tmp_path / "nothing.ckpt")


def test_map_location(tmp_path: Path) -> None:
    fit(ModelCheckpoint(tmp_path, save_last=True), max_epochs=1)
    path = tmp_path / "last.ckpt"
    for where in ("cpu", torch.device("cpu"), None, {"cuda:0": "cuda:1"}):
        assert cairn.lightning.load_checkpoint(path, where)["state_dict"]["net.0.weight"].device.type == "cpu"
    moved = cairn.lightning.load_checkpoint(path, "meta")
    assert moved["state_dict"]["net.0.weight"].is_meta and moved["optimizer_states"][0]["state"][0]["exp_avg"].is_meta
    assert moved["state_dict"]._metadata and moved["epoch"] == 0
    with pytest.raises(cairn.InvalidArgument, match="map_location"):
        cairn.lightning.load_checkpoint(path, lambda storage, _: storage)


def test_without_the_callback_a_save_is_durable_when_it_returns(tmp_path: Path) -> None:
    there: list[bool] = []

    class Look(Model):
        def on_train_epoch_end(self) -> None:
            self.trainer.save_checkpoint(tmp_path / "a.ckpt")
            there.append(bool(cairn.lightning.load_checkpoint(tmp_path / "a.ckpt")))
            self.trainer.strategy.remove_checkpoint(tmp_path / "a.ckpt")
            there.append((tmp_path / "a.ckpt").exists())

    with pytest.warns(UserWarning, match="cairn.lightning.Callback"):
        a_trainer(enable_checkpointing=False, max_epochs=1).fit(Look(), batches())
    assert there == [True, False]


def test_after_the_fit_a_save_is_durable_when_it_returns(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    trainer = a_trainer(cairn.lightning.Callback(), ModelCheckpoint(tmp_path, save_last=True))
    model = Model()
    trainer.fit(model, batches())
    trainer.save_checkpoint(tmp_path / "final.ckpt")
    # The pool is free again: another Trainer may write there.
    fit(ModelCheckpoint(tmp_path, filename="second"), max_epochs=1)

    same(cairn.lightning.load_checkpoint(tmp_path / "final.ckpt")["state_dict"], model.state_dict())
    assert not [warning for warning in recwarn if "cairn.lightning" in str(warning.message)]
    assert trainer.validate(model, batches(), ckpt_path="best", verbose=False)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, batches(), ckpt_path="last")
    assert trainer.current_epoch == 3


class Spoiled(Model):
    """Its second save fails: the name that it commits to is taken by something else."""

    def on_train_batch_start(self, *_: Any) -> None:
        if self.global_step == 2:
            theirs = Path(self.trainer.strategy.checkpoint_io._store.checkpointer.root) / f"step-{2:020}"
            theirs.mkdir()
            (theirs / "theirs").write_text("")


def test_a_failed_save_is_raised_in_the_fit(tmp_path: Path) -> None:
    with pytest.raises(cairn.Error, match="step 2"):
        fit(ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1), model=Spoiled())
    assert cairn.lightning.load_checkpoint(tmp_path / "epoch=0-step=2.ckpt")["global_step"] == 2
    assert "epoch=0-step=4.ckpt" not in found(tmp_path)


def test_a_failed_last_save_is_raised_at_the_end_of_the_fit(tmp_path: Path) -> None:
    with pytest.raises(cairn.Error, match="step 2"):
        fit(ModelCheckpoint(tmp_path, every_n_train_steps=2), model=Spoiled(), max_epochs=1)
    assert found(tmp_path) == ["epoch=0-step=2.ckpt"]


def test_an_exception_in_training_goes_through_and_saves_are_kept(tmp_path: Path) -> None:
    class Breaks(Model):
        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == 3:
                raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        fit(ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1), model=Breaks())
    assert found(tmp_path) == [f"epoch=0-step={step}.ckpt" for step in (1, 2, 3)]
    fit(ModelCheckpoint(tmp_path, filename="next", every_n_train_steps=1), max_epochs=1)


def test_sharded_strategies_are_refused_by_name() -> None:
    class FSDPStrategy(SingleDeviceStrategy): ...

    class Mine(FSDPStrategy): ...

    trainer = a_trainer(
        cairn.lightning.Callback(), strategy=Mine(torch.device("cpu"), accelerator="cpu"), accelerator="auto"
    )
    with pytest.raises(cairn.Unsupported, match=r"strategy=cairn.lightning.FSDPStrategy\("):
        trainer.fit(Model(), batches())


def test_the_callback_asks_for_the_checkpoint_io(tmp_path: Path) -> None:
    trainer = Trainer(
        accelerator="cpu", logger=False, callbacks=[cairn.lightning.Callback()], default_root_dir=tmp_path
    )
    with pytest.raises(cairn.FailedPrecondition, match="TorchCheckpointIO"):
        trainer.fit(Model(), batches())


def test_storage_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="storage_options"):
        an_io().save_checkpoint({}, tmp_path / "a.ckpt", storage_options={"key": 1})


def test_what_lightning_loads_by_path_says_what_to_use_instead(tmp_path: Path) -> None:
    fit(ModelCheckpoint(tmp_path, save_last=True), max_epochs=1)
    path = tmp_path / "last.ckpt"
    with pytest.raises(cairn.Unsupported, match=r"last.ckpt is a Cairn .*cairn\.lightning\.load_from_checkpoint\("):
        Model.load_from_checkpoint(path)
    plain = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with pytest.raises(cairn.Unsupported, match=r"Trainer\(plugins=\[cairn\.lightning\.CheckpointIO"):
        plain.fit(Model(), batches(), ckpt_path=path)
    plain.fit_loop.max_epochs = 1
    plain.fit(Model(width=3), batches())
    plain.save_checkpoint(tmp_path / "theirs.ckpt")  # Which is read as ever.
    assert Model.load_from_checkpoint(tmp_path / "theirs.ckpt").hparams["width"] == 3


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_a_cast_that_loses_values_is_refused_unless_allowed(tmp_path: Path, precision: Any, ours: bool) -> None:
    class Narrow(Model):
        def __init__(self) -> None:
            super().__init__()
            if precision == "32-true":
                self.net[0].half()

        def training_step(self, batch: list[torch.Tensor], _: int) -> Any:
            return sum(parameter.float().square().sum() for parameter in self.parameters())

    fit(ModelCheckpoint(tmp_path, filename="wide"), max_epochs=1)
    path = tmp_path / "wide.ckpt"
    model = Narrow()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(cairn.InvalidArgument, match=r'wide.ckpt: .*net.0.weight \(F32 .* here\).*cast="allow"'):
        fit(model=model, ckpt_path=path, precision=precision, ours=ours)
    same(dict(model.state_dict()), before)
    if precision == "32-true":
        with pytest.raises(cairn.InvalidArgument, match="net.0.bias"):
            cairn.lightning.load_from_checkpoint(Narrow, path)
        with pytest.raises(cairn.InvalidArgument, match="net.0.bias"):
            a_trainer(*[cairn.lightning.Callback()] * ours).validate(model, batches(), ckpt_path=path)
        cairn.lightning.load_from_checkpoint(Narrow, path, cast="allow")
    fit(
        model=Narrow(),
        ckpt_path=path,
        precision=precision,
        io=an_io(cast="allow"),
        ours=ours,
        default_root_dir=tmp_path,
    )


def test_a_cast_that_keeps_every_value_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(ModelCheckpoint(tmp_path, filename="narrow"), max_epochs=1, precision="bf16-true")
    caplog.set_level(logging.INFO, "cairn")
    fit(ckpt_path=tmp_path / "narrow.ckpt", max_epochs=2, default_root_dir=tmp_path)
    assert len([one for one in caplog.messages if "to another dtype, none with a loss: net.0.weight (BF16" in one]) == 1


class Tenfold(torch.nn.Linear):
    """Its weight was a tenth of what it is, until version 2."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *more: Any) -> None:
        if (metadata.get("version") or 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state, prefix, metadata, *more)


class Versioned(Model):
    def __init__(self, wrapped: bool) -> None:
        super().__init__()
        self.net[0] = checkpoint_wrapper(Tenfold(4, 8)) if wrapped else Tenfold(4, 8)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_module_keeps_its_states_version_however_it_is_wrapped(tmp_path: Path, wrapped: bool) -> None:
    saved = fit(ModelCheckpoint(tmp_path, filename="one"), model=Versioned(wrapped), max_epochs=1)
    path = tmp_path / "one.ckpt"
    other = Versioned(not wrapped)
    a_trainer(cairn.lightning.Callback()).validate(other, batches(), ckpt_path=path, verbose=False)
    for loaded in (other, cairn.lightning.load_from_checkpoint(Versioned, path, wrapped=not wrapped)):
        same(dict(loaded.state_dict()), dict(saved.state_dict()))


def warnings_in(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(one.getMessage() for one in caplog.records if one.name == "cairn")


def test_a_save_amid_accumulated_gradients_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Saves(Callback):
        def __init__(self, batch: int) -> None:
            self.batch = batch

        def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, index: int) -> None:
            if index == self.batch:
                trainer.save_checkpoint(tmp_path / f"{index}.ckpt")

    for batch, said in ((0, "is after 1 of 2 batches whose gradients are accumulated"), (1, ""), (4, "")):
        caplog.clear()
        fit(Saves(batch), max_epochs=1, accumulate_grad_batches=2, enable_checkpointing=False)  # Of 5 batches.
        assert (said in warnings_in(caplog)) if said else not warnings_in(caplog), batch


def test_state_of_what_is_not_in_the_run_any_more_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Data(LightningDataModule):
        def train_dataloader(self) -> Any:
            return batches()

        def state_dict(self) -> dict[str, int]:
            return {"read": 5}

    class Renamed(Data):
        pass

    def run(data: Any, **given: Any) -> None:
        trainer = a_trainer(cairn.lightning.Callback(), default_root_dir=tmp_path, enable_checkpointing=False, **given)
        trainer.fit(Model(), datamodule=data, ckpt_path=tmp_path / "one.ckpt" if "max_epochs" in given else None)
        if not given:
            trainer.save_checkpoint(tmp_path / "one.ckpt")

    run(Data())
    run(Data(), max_epochs=3)
    assert not warnings_in(caplog)
    run(Renamed(), max_epochs=3)
    assert "has the state of test_state_of_what_is_not_in_the_run" in warnings_in(caplog)
    assert "Data, which is not in this run: it is left out" in warnings_in(caplog)


def test_schedulers_that_have_changed_places_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Two(Model):
        def __init__(self, turned: bool = False) -> None:
            super().__init__(width=4)
            self.automatic_optimization = False
            self.turned = turned

        def configure_optimizers(self) -> Any:
            made = [torch.optim.AdamW([one]) for one in (self.net[1].weight, self.net[1].bias)]
            rates = [torch.optim.lr_scheduler.StepLR(one, 1) for one in made]
            return made, rates[::-1] if self.turned else rates

        def training_step(self, batch: Any, index: int) -> None:
            self.manual_backward(super().training_step(batch, index))
            for optimizer in self.optimizers():
                optimizer.step()

    fit(ModelCheckpoint(tmp_path, filename="one"), max_epochs=1, model=Two())
    resumed = {"max_epochs": 2, "ckpt_path": tmp_path / "one.ckpt", "default_root_dir": tmp_path}
    fit(model=Two(), **resumed)
    assert not warnings_in(caplog)
    fit(model=Two(True), **resumed)
    assert "one.ckpt: scheduler 0 is of optimizer 1, in the checkpoint of optimizer 0" in warnings_in(caplog)


def test_parameters_of_no_module_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Outside(Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [torch.nn.Parameter(torch.ones(3))]  # A list is no module.

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW([*self.parameters(), *self.hidden])

    fit(ModelCheckpoint(tmp_path, filename="one"), max_epochs=1, model=Outside())
    said = "AdamW: no module has 1 of its parameters ([3]): their values are in no checkpoint"
    assert warnings_in(caplog).count(said) == 1
    fit(max_epochs=2, ckpt_path=tmp_path / "one.ckpt", default_root_dir=tmp_path, model=Outside())
    assert warnings_in(caplog).count(said) == 2


def test_two_tensors_do_not_go_into_tied_weights(tmp_path: Path) -> None:
    class Tied(Model):
        def __init__(self, tied: bool = True) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
            if tied:
                self.net[1].weight = self.net[0].weight

    for tied in (False, True):
        fit(ModelCheckpoint(tmp_path, filename=f"tied-{tied}"), max_epochs=1, model=Tied(tied))
    model = Tied()
    with pytest.raises(cairn.InvalidArgument, match='tied-False.ckpt: "net.0.weight" and "net.1.weight" share memory'):
        fit(model=model, ckpt_path=tmp_path / "tied-False.ckpt")
    with pytest.raises(cairn.InvalidArgument, match='"net.0.weight" and "net.1.weight" share memory'):
        cairn.lightning.load_from_checkpoint(Tied, tmp_path / "tied-False.ckpt", tied=True)
    fit(model=model, ckpt_path=tmp_path / "tied-True.ckpt", default_root_dir=tmp_path)
