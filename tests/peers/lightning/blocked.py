r"""How long training is blocked by a save: Lightning's AsyncCheckpointIO and Cairn's CheckpointIO, in adjacent pairs.

PYTHONPATH=build/python/site:build/python/test-tools:build/python/peers/lightning:tests/peers \
    .venv/bin/python tests/peers/lightning/blocked.py FOLDER
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

import cairn.lightning
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
from pairs import compare


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12)))


def main() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())

    def backward() -> None:
        optimizer.zero_grad()
        model.net(torch.randn(64, 1024)).square().mean().backward()

    def measured(io: Any, finish: Any, name: str) -> Any:
        def one(number: int) -> float:
            path = f"{sys.argv[1]}/{name}/{number}.ckpt"
            begin = time.perf_counter()
            io.save_checkpoint({"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}, path)
            blocked = time.perf_counter() - begin
            backward()
            begin = time.perf_counter()
            if isinstance(io, cairn.lightning.CheckpointIO):
                io.fence()
            blocked += time.perf_counter() - begin
            optimizer.step()
            finish()
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            return blocked

        os.makedirs(f"{sys.argv[1]}/{name}", exist_ok=True)
        return one

    backward()
    optimizer.step()
    ours = cairn.lightning.CheckpointIO(host_memory="1GiB")
    ours.attach(model)
    theirs = AsyncCheckpointIO(TorchCheckpointIO())
    size = 3 * sum(one.nbytes for one in model.parameters())

    def finish_theirs() -> None:
        theirs._executor.submit(lambda: None).result()  # Its one thread has written what came before.

    compare(
        "lightning",
        size,
        measured(theirs, finish_theirs, "theirs"),
        measured(ours, lambda: ours._store.finish(), "ours"),
    )
    ours.teardown()


if __name__ == "__main__":
    main()
