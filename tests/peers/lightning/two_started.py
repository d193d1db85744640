"""A run whose Trainer starts two processes by itself: two_started.py FOLDER ddp_spawn|ddp_fork callback|alone."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from theirs import trainer


def main() -> None:
    folder, start, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    checkpoint = ModelCheckpoint(folder / "run", monitor="epoch", save_top_k=-1)
    one = trainer(folder, checkpoint, fences=how == "callback", strategy=start, devices=2, max_epochs=3)
    one.fit(BoringModel())
    torch.save(one, folder / "trainer.pt")
    assert one.state.finished and checkpoint.best_model_path.endswith("epoch=0-step=2.ckpt")


if __name__ == "__main__":
    main()
