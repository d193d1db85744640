"""Trains a small character model with Lightning, and goes on bit by bit where it was killed.

    python lightning_text.py FOLDER [--text FILE...] [--epochs 2] [--every 10]

Run it, kill it with SIGKILL at any moment, run it again: the losses, and the digest of the weights at the end, are those
of a run that nobody killed (on the CPU, with the same torch and number of threads). The text is by default the licence
texts that Debian brings along.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cairn.lightning
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint


class Windows:
    """Batches of text windows in a new random order each epoch. Knows its place, so that a run can go on in mid-epoch."""

    def __init__(self, text: bytes, window: int, batch: int, batches: int) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._window, self._batch, self._batches = window, batch, batches
        self._begins: torch.Tensor | None = None
        self._at = 0

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self._begins is None or self._at == self._batches:
            self._begins = torch.randint(len(self._text) - self._window, (self._batches, self._batch))
            self._at = 0
        while self._at < self._batches:
            begins = self._begins[self._at]
            self._at += 1
            yield torch.stack([self._text[begin : begin + self._window + 1] for begin in begins.tolist()])

    def state_dict(self) -> dict[str, Any]:
        return {"begins": self._begins, "at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begins, self._at = state["begins"], state["at"]


class CharacterModel(LightningModule):
    def __init__(self, width: int = 64, rate: float = 3e-3, dropout: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embed = torch.nn.Embedding(256, width)
        self.recur = torch.nn.GRU(width, width, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(width)
        self.drop = torch.nn.Dropout(dropout)
        self.head = torch.nn.Linear(width, 256)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        hidden, _state = self.recur(self.embed(batch[:, :-1]))
        logits = self.head(self.drop(self.norm(hidden.transpose(1, 2)).transpose(1, 2)))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        print(f"step={self.global_step + 1} epoch={self.current_epoch} loss={loss.item().hex()}", flush=True)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["rate"])
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5), "interval": "step"},
        }


def digest(model: torch.nn.Module) -> str:
    """Of every bit of the weights and buffers."""
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, nargs="*", default=sorted(Path("/usr/share/common-licenses").glob("*")))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batches", type=int, default=120, help="of an epoch")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    seed_everything(7, verbose=False)
    text = b"".join(path.read_bytes() for path in options.text)
    trainer = Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[cairn.lightning.CheckpointIO(host_memory="64MiB")],
        callbacks=[
            cairn.lightning.Callback(),
            ModelCheckpoint(
                options.folder, monitor="loss", save_top_k=2, save_last=True, every_n_train_steps=options.every
            ),
        ],
    )
    model = CharacterModel()
    # Resumes from the last checkpoint; there may be none yet.
    trainer.fit(model, Windows(text, window=32, batch=8, batches=options.batches), ckpt_path="last")
    print(f"digest={digest(model)}", flush=True)


if __name__ == "__main__":
    main()
