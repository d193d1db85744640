"""FSDP2 with its optimizer: kill the job, and go on with more or fewer processes.

    torchrun --nproc-per-node=4 examples/fsdp2.py FOLDER [--steps 2000]

Rank 0 prints "N ranks, from the beginning" or "N ranks, resumed from step M", then one line `step=N loss=X` for each step.
Every ten steps, and when it has resumed, it prints `digest=X step=N` of the weights and of the optimizer's state.

Each rank writes its own parts of both. get_state_dict names them as the whole model does, so that any number of ranks
can read them, and makes the state that a new optimizer lacks: what is not there cannot be read into. A step's batch
follows from its number. A rank takes its share of that batch, so it stays the same for any number of ranks (which must
divide it). Sums of more or fewer parts may differ in their last bits.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any

import cairn
import torch
import torch.distributed as dist
from cairn import dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

BATCH = 32


def digest(state: Any) -> str:
    """Of all tensors, whole; every rank calls it."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                add(value[key])
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            found.update(whole.detach().contiguous().numpy().tobytes())

    add(state)
    return found.hexdigest()


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
    mesh = init_device_mesh("cpu", (world,))
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def state(step: int) -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "step": step}

    with cairn.Checkpointer(options.folder, host_memory="64MiB", group=dist.group.WORLD) as checkpointer:
        checkpointer.protect(optimizer)
        first = 1
        if checkpointer.steps():
            loaded = state(0)
            dcp.load(loaded, storage_reader=dcp.StorageReader(checkpointer))
            set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
            first = loaded["step"] + 1
            say(f"{world} ranks, resumed from step {first - 1}\ndigest={digest(state(0))} step={first - 1}")
        else:
            say(f"{world} ranks, from the beginning")
        for step in range(first, options.steps + 1):
            batch = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))
            mine = batch.tensor_split(world)[rank]
            loss = (model(mine).squeeze(1) - mine.sum(1)).square().mean()  # FSDP averages the gradients.
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            whole = loss.detach() / world
            dist.all_reduce(whole)
            say(f"step={step} loss={whole.item()}")
            if step % 10 == 0 or step == options.steps:
                dcp.async_save(state(step), storage_writer=dcp.StorageWriter(checkpointer, step))
                say(f"digest={digest(state(step))} step={step}")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
