"""Resumes in mid-epoch, with DataLoader workers: each row comes once an epoch, in the order of an uninterrupted run.

    python examples/data_order.py FOLDER [--steps 60] [--workers 2]

Prints "from the beginning" or "resumed from step N", then one line `step=N rows=[...] noise=X` for each step.

The order of an epoch, and the random numbers for each row, follow from the seed, the epoch and the row alone. So the
checkpoint needs only two numbers, and training may continue with another number of workers. What a sampler or a worker
has drawn ahead is not saved, and need not be.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import cairn
import torch

ROWS, BATCH, SEED = 50, 4, 7


class Order:
    """A batch sampler: batches of (epoch, row), from batch `begin` of `epoch` on. The last, smaller batch is kept."""

    def __init__(self) -> None:
        self.epoch, self.begin = 0, 0

    def __len__(self) -> int:
        return math.ceil(ROWS / BATCH)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rows = torch.randperm(ROWS, generator=torch.Generator().manual_seed(SEED + self.epoch)).tolist()
        for at in range(self.begin, len(self)):
            yield [(self.epoch, row) for row in rows[at * BATCH : (at + 1) * BATCH]]


class Rows(torch.utils.data.Dataset[tuple[int, float]]):
    """What a row is, with noise that does not depend on the worker that reads it."""

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, float]:
        epoch, row = item
        noise = torch.Generator().manual_seed((SEED + epoch) * ROWS + row)
        return row, torch.rand((), generator=noise).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    order = Order()
    loader = torch.utils.data.DataLoader(
        Rows(), batch_sampler=order, num_workers=options.workers, worker_init_fn=cairn.shield_worker
    )
    with cairn.Checkpointer(options.folder, host_memory="64MiB", keep_last=2) as checkpointer:
        tree = {"step": 0, "epoch": 0, "batch": 0}  # And model, optimizer, ... as in plain_pytorch.py.
        try:
            tree = checkpointer.restore(tree)
            print(f"resumed from step {tree['step']}", flush=True)
        except cairn.NotFound:
            print("from the beginning", flush=True)
        step = tree["step"]
        order.epoch, order.begin = tree["epoch"], tree["batch"]
        while step < options.steps:
            for batch, (rows, noise) in enumerate(loader, order.begin + 1):
                step += 1
                print(f"step={step} rows={rows.tolist()} noise={noise.sum().item().hex()}", flush=True)
                if step % 5 == 0 or step == options.steps:
                    checkpointer.save(step, {"step": step, "epoch": order.epoch, "batch": batch})
                if step == options.steps:
                    break
            order.epoch, order.begin = order.epoch + 1, 0


if __name__ == "__main__":
    main()
