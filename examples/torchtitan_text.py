"""Trains a small character model on two ranks with torchtitan's parts. Run it again, and it resumes.

    torchrun --nproc-per-node 2 examples/torchtitan_text.py FOLDER [--steps 60] [--every 5]

FSDP2 shards the model; optimizer, scheduler and data loader are torchtitan's. Its own Trainer asks for a GPU, so the loop
here makes the same calls. Rank 0 prints a line `step=N loss=X` for each step, and at the end a digest of the weights. On
the CPU a run that was killed and resumed prints the losses and the digest of an uninterrupted one.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn.torchtitan
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, WIDTH = 32, 64


class Windows(torch.utils.data.IterableDataset[torch.Tensor]):
    """Random windows of the text. Its state lets a run resume in mid-epoch."""

    def __init__(self, rank: int) -> None:
        self.text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
        self.random = torch.Generator().manual_seed(rank)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            begin = int(torch.randint(len(self.text) - WINDOW, (1,), generator=self.random))
            yield self.text[begin : begin + WINDOW + 1]

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.set_state(state["random"])


class Progress:
    """What torchtitan's Trainer keeps of itself."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def sharded_model() -> torch.nn.Module:
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, WIDTH),
        torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)),
        torch.nn.LayerNorm(WIDTH),
        torch.nn.Linear(WIDTH, 256),
    )
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model, progress = sharded_model(), Progress()
    optimizers = default_adamw(lr=3e-3).build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=4).build(optimizers=optimizers, training_steps=options.steps)
    data = ParallelAwareDataloader(Windows(rank), dp_rank=rank, dp_world_size=ranks, batch_size=8)

    # In a torchtitan config: checkpoint=cairn.torchtitan.CheckpointManager.Config(...). Its Trainer builds it so.
    config = cairn.torchtitan.CheckpointManager.Config(
        enable=True, interval=options.every, keep_latest_k=2, last_save_model_only=False, host_memory="64MiB"
    )
    checkpointer = config.build(
        dataloader=data,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": progress},
        sd_adapter=None,
        base_folder=options.folder,
    )
    checkpointer.load()
    batches = iter(data)
    while progress.step < options.steps:
        progress.step += 1
        batch = next(batches)
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizers.zero_grad()
        loss.backward()
        checkpointer.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        dist.all_reduce(loss.detach())
        if rank == 0:
            print(f"step={progress.step} loss={loss.item().hex()}", flush=True)
        checkpointer.save(progress.step, last_step=progress.step == options.steps)
    checkpointer.close()
    digest = hashlib.sha256(b"".join(one.full_tensor().numpy().tobytes() for one in model.state_dict().values()))
    if rank == 0:
        print(f"digest={digest.hexdigest()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
