"""Trains a small character model with Lightning in two processes, each of which holds a part of it (FSDP2). Run it again,
and it resumes from the last checkpoint, in mid-epoch too.

    python examples/lightning_sharded.py FOLDER [--epochs 2] [--every 10]

Prints a line `step=N loss=X` for each step, with the first process's loss, and at the end a digest of the weights. On the
CPU a run that was killed and resumed prints the losses and the digest of an uninterrupted one. The text is the licences
that Debian ships.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn.lightning
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.fsdp import fully_shard

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, BATCH, BATCHES = 32, 8, 60  # Characters, windows in a batch, batches in an epoch of each process.


class Windows:
    """Batches of text, other ones in each process. Lightning keeps the state of the first process's loader, so the state
    is what is the same in all."""

    def __init__(self) -> None:
        self.text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
        self.epoch, self.at = 0, 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self.at == BATCHES:
            self.epoch, self.at = self.epoch + 1, 0
        order = torch.Generator().manual_seed(1000 * self.epoch + torch.distributed.get_rank())
        begins = torch.randint(len(self.text) - WINDOW, (BATCHES, BATCH), generator=order)
        while self.at < BATCHES:
            self.at += 1
            yield torch.stack([self.text[begin : begin + WINDOW + 1] for begin in begins[self.at - 1].tolist()])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class CharacterModel(LightningModule):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Embedding(256, width),
            torch.nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True),
            torch.nn.Linear(width, 256),
        )

    def configure_model(self) -> None:
        for layer in (*self.net, self.net):
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        logits = self.net(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if self.global_rank == 0:
            print(f"step={self.global_step + 1} loss={loss.item().hex()}", flush=True)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    seed_everything(7, verbose=False)
    newest = ModelCheckpoint(
        options.folder, monitor="loss", save_top_k=2, save_last=True, every_n_train_steps=options.every
    )
    trainer = Trainer(
        strategy=cairn.lightning.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        plugins=[cairn.lightning.CheckpointIO(host_memory="64MiB", chunk="1MiB")],
        callbacks=[cairn.lightning.Callback(), newest],
        max_epochs=options.epochs,
        accelerator="cpu",
        devices=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CharacterModel(), Windows(), ckpt_path="last")  # There may be no last checkpoint yet.
    if trainer.global_rank == 0:
        weights = cairn.lightning.load_checkpoint(f"{options.folder}/last.ckpt")["state_dict"]  # Of both processes.
        digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in weights.values()))
        print(f"digest={digest.hexdigest()}")


if __name__ == "__main__":
    main()
