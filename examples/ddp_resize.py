"""DDP that changes its size: stop it, and go on with more or fewer processes.

    torchrun --nproc-per-node=2 examples/ddp_resize.py FOLDER [--steps 2000]

Rank 0 prints "N ranks, from the beginning" or "N ranks, resumed from step M", a digest of the weights, then one line
`step=N loss=X` for each step, and again a digest. SIGTERM to torchrun, or to any one of the ranks, ends all of them
after the same step with one more save; torchrun gives them 30 seconds for that.

Nothing in the checkpoint belongs to one rank: model, optimizer and step are the same everywhere, and a step's batch
follows from its number. A rank takes its share of that batch, so it stays the same for any number of ranks (which must
divide it). Sums of more or fewer parts may differ in their last bits.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import cairn
import torch
import torch.distributed as dist

BATCH = 32


def digest(model: torch.nn.Module) -> str:
    state = model.state_dict().values()
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state)).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with cairn.Checkpointer(
        options.folder, host_memory="64MiB", group=dist.group.WORLD, replicated=["optimizer/*", "step"]
    ) as checkpointer:
        checkpointer.protect(optimizer)
        checkpointer.stop_on(grace=25)
        tree = {"model": model, "optimizer": optimizer, "step": 0}
        try:
            tree = checkpointer.restore(tree)
            say(f"{world} ranks, resumed from step {tree['step']}")
        except cairn.NotFound:
            say(f"{world} ranks, from the beginning")
        say(f"digest={digest(plain)}")
        for step in range(tree["step"] + 1, options.steps + 1):
            batch = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))
            mine = batch.tensor_split(world)[rank]
            loss = (model(mine).squeeze(1) - mine.sum(1)).square().mean()  # DDP averages the gradients.
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(f"step={step} loss={loss.item()}")
            stopping = checkpointer.stop_requested()
            if stopping or step % 100 == 0 or step == options.steps:
                checkpointer.save(step, tree | {"step": step})
            if stopping:
                break
        say(f"digest={digest(plain)}")
    dist.destroy_process_group()
    return 75 if checkpointer.stop_reason else 0


if __name__ == "__main__":
    sys.exit(main())
