"""Hyper-parameters of OmegaConf are refused with the line that keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cairn
import cairn.lightning
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import OmegaConf


class Model(LightningModule):
    def __init__(self, hyper_parameters: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters(hyper_parameters)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()  # type: ignore[no-any-return]

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(4, 4)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, hyper_parameters: Any) -> None:
    trainer = Trainer(
        plugins=[cairn.lightning.CheckpointIO(host_memory="8MiB", chunk="1MiB", queue_depth=2)],
        callbacks=[cairn.lightning.Callback(), ModelCheckpoint(folder, filename="a")],
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(hyper_parameters))


CONFIG = OmegaConf.create({"rate": 0.1, "double": "${rate}", "layers": [1, 2]})


@pytest.mark.parametrize("given", [CONFIG, {"config": CONFIG}, {"layers": CONFIG.layers}], ids=["all", "one", "list"])
def test_it_is_refused_with_the_line_that_keeps_it(tmp_path: Path, given: Any) -> None:
    key = "hyper_parameters" + ("" if given is CONFIG else f"/{next(iter(given))}")
    with pytest.raises(cairn.InvalidArgument, match=rf"^{key}: .*OmegaConf\.to_container\(config, resolve=True\)"):
        fit(tmp_path, given)
    assert not (tmp_path / "a.ckpt").exists()


def test_that_line_keeps_it(tmp_path: Path) -> None:
    fit(tmp_path, OmegaConf.to_container(CONFIG, resolve=True))

    kept = cairn.lightning.load_checkpoint(tmp_path / "a.ckpt")["hyper_parameters"]
    assert kept == {"rate": 0.1, "double": 0.1, "layers": [1, 2]}
