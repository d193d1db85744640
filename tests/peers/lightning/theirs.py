"""The models and Trainers of Lightning's own tests, for what test_theirs_*.py ask of Cairn's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cairn.lightning
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

Make = Callable[..., Trainer]  # FOLDER, *callbacks, **options of Trainer.
load = cairn.lightning.load_checkpoint


class CountingIO(cairn.lightning.CheckpointIO):
    """Keeps the paths of the calls."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, **options})
        self.saved: list[str] = []
        self.loaded: list[str] = []
        self.removed: list[str] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.saved.append(str(path))
        super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *given: Any, **named: Any) -> dict[str, Any]:
        self.loaded.append(str(path))
        return super().load_checkpoint(path, *given, **named)

    def remove_checkpoint(self, path: Any) -> None:
        self.removed.append(str(path))
        super().remove_checkpoint(path)


def trainer(folder: Any, *callbacks: Any, fences: bool = True, **options: Any) -> Trainer:
    """On the CPU, for one short epoch, with Cairn's CheckpointIO, and if it `fences` with Cairn's Callback."""
    given = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1, "num_sanity_val_steps": 0}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    ours = [cairn.lightning.Callback()] if fences else []
    options = {"plugins": [CountingIO()], "accelerator": "cpu", "default_root_dir": folder, **given, **quiet, **options}
    return Trainer(callbacks=[*ours, *callbacks], **options)


def io_of(one: Trainer) -> CountingIO:
    io: CountingIO = one.strategy.checkpoint_io
    return io


def found(folder: Path) -> set[str]:
    """Everything in the folder, hidden or not."""
    return {entry.name for entry in folder.iterdir()}


def state_of(path: Path, checkpoint: ModelCheckpoint) -> dict[str, Any]:
    state: dict[str, Any] = load(path)["callbacks"][checkpoint.state_key]
    return state


def same_weights(one: torch.nn.Module, other: torch.nn.Module | dict[str, torch.Tensor]) -> bool:
    state = other if isinstance(other, dict) else other.state_dict()
    return all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())


class Scored(BoringModel):
    """Logs the next of these values: "train" in each step, "val" at the end of each validation. The rate doubles with
    each epoch, or depends on the score that it is to `watch`."""

    def __init__(self, train: Iterable[float] = (), val: Iterable[float] = (), watch: str | None = None) -> None:
        super().__init__()
        self.train_scores, self.val_scores, self.watch = iter(train), iter(val), watch

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        self.log("loss", loss["loss"])
        value = next(self.train_scores, None)
        if value is not None:
            self.log("train", value, on_step=True, on_epoch=True)
        return loss

    def on_validation_epoch_end(self) -> None:
        value = next(self.val_scores, None)
        if value is not None:
            self.log("val", value)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        if self.watch is None:
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=2)]
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return [optimizer], [{"scheduler": scheduler, "monitor": self.watch, "strict": True}]


class Adam(BoringModel):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]
