"""A run in two processes: two_processes.py FOLDER EPOCHS fsdp|ddp. Prints a digest of all weights.

Torch's FSDP1 asks for an accelerator unless it is given its device, which Lightning gives only if it has a number.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any

import cairn.lightning
import torch
import torch.distributed.fsdp
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

X = torch.randn(40, 8, generator=torch.Generator().manual_seed(3))
FSDP: Any = torch.distributed.fsdp.FullyShardedDataParallel
FSDP.__init__ = functools.partialmethod(
    lambda self, init, *given, **named: init(self, *given, **{**named, "device_id": torch.device("cpu")}), FSDP.__init__
)


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=4)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def main() -> None:
    torch.set_num_threads(1)
    seed_everything(1)
    folder, epochs = sys.argv[1], int(sys.argv[2])
    trainer = Trainer(
        strategy=cairn.lightning.FSDPStrategy() if sys.argv[3] == "fsdp" else "ddp",
        plugins=[cairn.lightning.CheckpointIO(host_memory="8MiB", chunk="1MiB", queue_depth=2)],
        callbacks=[cairn.lightning.Callback(), ModelCheckpoint(folder, save_last=True)],
        max_epochs=epochs,
        accelerator="cpu",
        devices=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), ckpt_path="last")
    trainer.save_checkpoint(f"{folder}/after.ckpt")
    if trainer.global_rank == 0:
        state = cairn.lightning.load_checkpoint(f"{folder}/last.ckpt")["state_dict"]
        weights = b"".join(state[name].numpy().tobytes() for name in sorted(state) if "running" not in name)
        kept = cairn.lightning.load_checkpoint(f"{folder}/after.ckpt")["callbacks"]["cairn.lightning.Callback"]
        assert len(kept["rng"]) == 2 and kept["optimizers"][0]["kind"] == "AdamW"
        print(f"epoch={trainer.current_epoch} digest={hashlib.sha256(weights).hexdigest()}")


if __name__ == "__main__":
    main()
