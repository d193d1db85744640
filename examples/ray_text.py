"""Trains a small character model with Ray Train on two workers of a local cluster. A worker that dies is replaced, and
training continues from the last checkpoint.

    python examples/ray_text.py FOLDER [--steps 60] [--every 5] [--die-at N]

Prints a line `step=N loss=X` for each step, with the first worker's loss, and at the end a digest of the weights. With
--die-at the second worker kills itself after that step, once. On the CPU such a run ends with the digest of one in which
nobody died. The text is the licences that Debian ships.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import cairn.ray
import ray
import ray.train
import ray.train.torch
import torch

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, BATCH = 32, 8


class CharacterModel(torch.nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.recur = torch.nn.Embedding(256, width), torch.nn.GRU(width, width, batch_first=True)
        self.drop, self.head = torch.nn.Dropout(0.1), torch.nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.drop(self.recur(self.embed(text[:, :-1]))[0]))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def train(config: dict[str, Any]) -> None:
    """What each worker runs."""
    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    rank, folder = ray.train.get_context().get_world_rank(), Path(config["folder"])
    torch.manual_seed(7)
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    model = ray.train.torch.prepare_model(CharacterModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(rank)  # Each worker has batches of its own.
    tree = {"model": model, "optimizer": optimizer, "rng": cairn.RngState(), "step": 0}
    replicated = ["optimizer/*", "step"]
    with cairn.ray.Checkpoints(host_memory="64MiB", chunk="1MiB", replicated=replicated) as checkpoints:
        checkpoints.protect(optimizer)
        try:
            tree = checkpoints.restore(tree)
        except cairn.NotFound:
            pass  # The first start.
        for step in range(tree["step"] + 1, config["steps"] + 1):
            begins = torch.randint(len(text) - WINDOW, (BATCH,)).tolist()
            loss = model(torch.stack([text[begin : begin + WINDOW + 1] for begin in begins]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                with open(folder / "losses", "a") as losses:
                    print(f"step={step} loss={loss.item().hex()}", file=losses)
            if step % config["every"] == 0:
                checkpoints.report({"loss": loss.item()}, step, tree | {"step": step})
            if rank == 1 and step == config["die_at"] and not (folder / "died").exists():
                (folder / "died").touch()
                ray.train.get_all_reported_checkpoints()  # Waits until Ray Train knows the last one.
                os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
        with open(folder / "losses", "a") as losses:
            print(f"digest={hashlib.sha256(weights).hexdigest()}", file=losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--die-at", type=int, default=0)
    options = parser.parse_args()

    folder = os.path.abspath(options.folder)
    os.makedirs(folder, exist_ok=True)
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={**vars(options), "folder": folder},
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    ray.shutdown()
    print(Path(folder, "losses").read_text(), end="")
    print(f"checkpoint={os.path.basename(result.checkpoint.path)}")


if __name__ == "__main__":
    main()
