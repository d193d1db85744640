"""Resumes in mid-epoch, with DataLoader workers and dropout: rows and losses are those of an uninterrupted run.

    python examples/data_order.py FOLDER [--steps 60] [--workers 2]

Prints "from the beginning" or "resumed from step N", then one line `step=N rows=[...] loss=X` for each step. On the CPU
a run that was killed and resumed prints the lines of an uninterrupted one, bit by bit.

The order of an epoch, and the random numbers for each row, follow from the seed, the epoch and the row alone. So the
checkpoint needs only two numbers, and training may continue with another number of workers. What a sampler or a worker
has drawn ahead is not saved, and need not be.

The loader has a generator of its own. Without one, each `iter(loader)` draws a seed from torch's default generator. A
resumed run begins its epoch once more, after RngState has restored that generator: dropout would draw other numbers.
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


class Rows(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    """What a row is, with noise that does not depend on the worker that reads it."""

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, torch.Tensor]:
        epoch, row = item
        noise = torch.Generator().manual_seed((SEED + epoch) * ROWS + row)
        return row, row / ROWS + 0.1 * torch.randn(8, generator=noise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    order = Order()
    loader = torch.utils.data.DataLoader(
        Rows(),
        batch_sampler=order,
        num_workers=options.workers,
        generator=torch.Generator(),  # Or beginning an epoch would draw from the generator that dropout uses.
        worker_init_fn=cairn.shield_worker,
    )
    with cairn.Checkpointer(options.folder, host_memory="64MiB", keep_last=2) as checkpointer:
        checkpointer.protect(optimizer)
        tree = {"model": model, "optimizer": optimizer, "rng": cairn.RngState(), "step": 0, "epoch": 0, "batch": 0}
        try:
            tree = checkpointer.restore(tree)
            print(f"resumed from step {tree['step']}", flush=True)
        except cairn.NotFound:
            print("from the beginning", flush=True)
        step = tree["step"]
        order.epoch, order.begin = tree["epoch"], tree["batch"]
        while step < options.steps:
            for batch, (rows, inputs) in enumerate(loader, order.begin + 1):
                step += 1
                loss = (model(inputs).squeeze(1) - rows / ROWS).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"step={step} rows={rows.tolist()} loss={loss.item().hex()}", flush=True)
                if step % 5 == 0 or step == options.steps:
                    checkpointer.check()
                    checkpointer.save(step, tree | {"step": step, "epoch": order.epoch, "batch": batch})
                if step == options.steps:
                    break
            order.epoch, order.begin = order.epoch + 1, 0


if __name__ == "__main__":
    main()
