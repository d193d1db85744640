"""Trains a small character model with Lightning. Run it again, and it resumes from the last checkpoint, in mid-epoch
too.

    python examples/lightning_text.py FOLDER [--epochs 2] [--every 10]

Prints a line `step=N epoch=N loss=X` for each step, and at the end a digest of the weights. On the CPU a run that was
killed and resumed prints the losses and the digest of an uninterrupted one. The text is the licences that Debian ships.
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

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, BATCH, BATCHES = 32, 8, 120  # Characters, windows in a batch, batches in an epoch.


class Windows:
    """Batches of text in a new random order each epoch. It has a state, so that a run can resume in mid-epoch."""

    def __init__(self) -> None:
        self.text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
        self.begins, self.at = torch.empty(0), BATCHES

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self.at == BATCHES:
            self.begins, self.at = torch.randint(len(self.text) - WINDOW, (BATCHES, BATCH)), 0
        while self.at < BATCHES:
            self.at += 1
            yield torch.stack([self.text[begin : begin + WINDOW + 1] for begin in self.begins[self.at - 1].tolist()])

    def state_dict(self) -> dict[str, Any]:
        return {"begins": self.begins, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begins, self.at = state["begins"], state["at"]


class CharacterModel(LightningModule):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embed, self.recur = torch.nn.Embedding(256, width), torch.nn.GRU(width, width, batch_first=True)
        self.norm, self.drop = torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(width, 256)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        hidden, _state = self.recur(self.embed(batch[:, :-1]))
        logits = self.head(self.drop(self.norm(hidden.transpose(1, 2)).transpose(1, 2)))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        print(f"step={self.global_step + 1} epoch={self.current_epoch} loss={loss.item().hex()}", flush=True)
        self.log("loss", loss)
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
        options.folder, monitor="loss", save_top_k=2, save_last=True, every_n_train_steps=options.every,
        save_on_exception=True,  # SIGTERM ends it after the step, with one more checkpoint.
    )  # fmt: skip
    trainer = Trainer(
        plugins=[cairn.lightning.CheckpointIO(host_memory="64MiB", chunk="1MiB")],
        default_root_dir=options.folder,
        callbacks=[cairn.lightning.Callback(), newest],
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = CharacterModel()
    trainer.fit(model, Windows(), ckpt_path="last")  # There may be no last checkpoint yet.
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    print(f"digest={digest.hexdigest()}")


if __name__ == "__main__":
    main()
