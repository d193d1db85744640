"""Trains a small character model whose weights are sharded over the ranks, with Megatron-core's distributed checkpoints.
Run it again, at any number of ranks, and it resumes.

    torchrun --nproc-per-node 2 examples/megatron_text.py FOLDER [--steps 60] [--every 5]

Each rank holds a slice of rows of each weight, and its momentum. Rank 0 prints a line `step=N loss=X` for each step, and
at the end a digest of the weights. On the CPU a run that was killed and resumed prints the losses and the digest of an
uninterrupted one.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import cairn.megatron
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, WIDTH, BATCH = 32, 96, 8  # Characters, features, windows on each rank.
SHAPES = {"embed": (256, WIDTH), "up": (4 * WIDTH, WIDTH), "head": (256, 4 * WIDTH)}


def gathered(shard: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard)
    return torch.cat(parts)


def loss_of(weights: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.gelu(weights["embed"][batch[:, :-1]] @ weights["up"].T)
    return torch.nn.functional.cross_entropy((hidden @ weights["head"].T).flatten(0, 1), batch[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    random = torch.Generator().manual_seed(1)  # Alike on all ranks.
    weights = {
        name: (torch.randn(shape, generator=random) / 10).chunk(ranks)[rank].clone() for name, shape in SHAPES.items()
    }
    momentum = {name: torch.zeros_like(one) for name, one in weights.items()}

    def state(step: int) -> dict[str, Any]:
        def sharded(prefix: str, of: dict[str, torch.Tensor]) -> dict[str, Any]:
            return {n: ShardedTensor.from_rank_offsets(prefix + n, one, (0, rank, ranks)) for n, one in of.items()}

        parts = {"weights": sharded("weights.", weights), "momentum": sharded("momentum.", momentum)}
        return parts | {"step": step, "random": random.get_state()}

    strategies = cairn.megatron.register(options.folder / ".cairn", host_memory="64MiB")
    done = 0
    if found := sorted(options.folder.glob("iter_*/metadata.json")):
        loaded = dist_checkpointing.load(state(0), str(found[-1].parent))  # Into weights and momentum, in place.
        done = loaded["step"]
        random.set_state(loaded["random"])
    for step in range(done + 1, options.steps + 1):
        begins = torch.randint(len(text) - WINDOW, (ranks, BATCH), generator=random)[rank].tolist()
        batch = torch.stack([text[begin : begin + WINDOW + 1] for begin in begins])
        whole = {name: gathered(one).requires_grad_() for name, one in weights.items()}
        loss = loss_of(whole, batch)
        loss.backward()
        strategies.checkpointer.fence()  # Weights and momentum are overwritten next.
        for name, one in weights.items():
            dist.all_reduce(whole[name].grad)
            momentum[name].mul_(0.9).add_(whole[name].grad.chunk(ranks)[rank] / ranks)
            one.sub_(momentum[name], alpha=0.3)
        if rank == 0:
            print(f"step={step} loss={loss.item().hex()}", flush=True)
        strategies.calls.maybe_finalize_async_calls()
        if step % options.every == 0:
            folder = options.folder / f"iter_{step:07}"
            folder.mkdir(exist_ok=True)
            request = dist_checkpointing.save(state(step), str(folder), cairn.megatron.BACKEND, async_sharded_save=True)
            strategies.calls.schedule_async_request(request)
    strategies.close()
    digest = hashlib.sha256(b"".join(gathered(one).numpy().tobytes() for one in weights.values()))
    if rank == 0:
        print(f"digest={digest.hexdigest()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
