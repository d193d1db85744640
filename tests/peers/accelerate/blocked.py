r"""How long training is blocked by a save: accelerate's save_state and Cairn's, in adjacent pairs. Theirs is synchronous.

PYTHONPATH=build/python/site:build/python/test-tools:build/python/peers/accelerate:tests/peers \
    .venv/bin/python tests/peers/accelerate/blocked.py FOLDER
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

import cairn.accelerate
import torch
from accelerate import Accelerator
from pairs import compare


class Run:
    def __init__(self, accelerator: Any, name: str) -> None:
        self.accelerator, self.path = accelerator, f"{sys.argv[1]}/{name}"
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12)))
        self.model, self.optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        self.step()

    def step(self) -> float:
        """Seconds of the optimizer's step, before which Cairn fences."""
        self.optimizer.zero_grad()
        self.accelerator.backward(self.model(torch.randn(64, 1024)).square().mean())
        begin = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - begin

    def save(self, number: int) -> float:
        alone = self.step()
        begin = time.perf_counter()
        self.accelerator.save_state(f"{self.path}/{number}")
        blocked = time.perf_counter() - begin
        blocked += max(0.0, self.step() - alone)
        if isinstance(self.accelerator, cairn.accelerate.Accelerator):
            self.accelerator.wait_for_checkpoints()
        shutil.rmtree(f"{self.path}/{number}")
        return blocked


def main() -> None:
    theirs = Run(Accelerator(cpu=True), "theirs")
    ours = Run(cairn.accelerate.Accelerator(cpu=True, cairn_options={"host_memory": "1GiB"}), "ours")
    size = 3 * sum(one.nbytes for one in ours.model.parameters())
    compare("accelerate", size, theirs.save, ours.save)
    ours.accelerator.end_training()


if __name__ == "__main__":
    main()
