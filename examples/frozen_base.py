"""Trains a low-rank adapter (LoRA) beside a frozen base model on the CPU, and saves each step. The base is on the disk
once.

    python examples/frozen_base.py FOLDER [--steps 10] [--width 2048]

Prints a line `step=N loss=X written=BYTES` for each step, and at the end how much disk the checkpoints use, beside what
they would use if each had its own copy of the base. Run it again, and it resumes from the newest checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cairn
import torch


class Adapted(torch.nn.Module):
    """A linear layer that does not change, and a low-rank correction of it that is trained."""

    def __init__(self, width: int, rank: int = 4) -> None:
        super().__init__()
        self.base = torch.nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = torch.nn.Linear(width, rank, bias=False), torch.nn.Linear(rank, width, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def disk_use(folder: Path) -> int:
    """A file that has several names counts once."""
    files = {
        (stat.st_dev, stat.st_ino): stat.st_size for stat in (path.stat() for path in folder.rglob("*.safetensors"))
    }
    return sum(files.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=2048)
    options = parser.parse_args()

    torch.manual_seed(7)
    model = Adapted(options.width)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    with cairn.Checkpointer(options.folder, keep_last=options.steps) as checkpointer:
        try:
            state = checkpointer.restore(state)
        except cairn.NotFound:
            pass
        checkpointer.protect(optimizer)
        for step in range(state["step"] + 1, options.steps + 1):
            x = torch.randn(8, options.width, generator=torch.Generator().manual_seed(step))
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            save = checkpointer.save(step, {**state, "step": step}, frozen=True)
            save.wait()
            print(f"step={step} loss={loss.item():.6f} written={save.stats['bytes_written']}", flush=True)
        checkpoints = checkpointer.checkpoints()
        apart = sum(one.bytes for one in checkpoints)
        print(f"checkpoints={len(checkpoints)} disk={disk_use(options.folder)} each_its_own={apart}")


if __name__ == "__main__":
    main()
