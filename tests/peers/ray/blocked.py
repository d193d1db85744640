r"""How long training is blocked by a save: torch.save and ray.train.report with its asynchronous upload, and Cairn's report,
in adjacent pairs, in one worker of a local cluster.

PYTHONPATH=build/python/site:build/python/test-tools:build/python/peers/ray:tests/peers \
    .venv/bin/python tests/peers/ray/blocked.py FOLDER
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cairn.ray
import ray
import ray.train
import ray.train.torch
import torch
from pairs import compare


def train(config: dict[str, Any]) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = cairn.ray.Checkpoints(host_memory="1GiB")

    def backward() -> None:
        optimizer.zero_grad()
        model(torch.randn(64, 1024)).square().mean().backward()

    def theirs(number: int) -> float:
        begin = time.perf_counter()
        folder = tempfile.mkdtemp(dir=config["folder"])
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
        ray.train.report(
            {},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC,
        )
        blocked = time.perf_counter() - begin
        ray.train.get_all_reported_checkpoints()  # It has been written.
        backward()
        optimizer.step()
        return blocked

    def ours(number: int) -> float:
        begin = time.perf_counter()
        checkpoints.report({}, number, {"model": model, "optimizer": optimizer})
        blocked = time.perf_counter() - begin
        backward()
        begin = time.perf_counter()
        checkpoints.fence()
        blocked += time.perf_counter() - begin
        optimizer.step()
        ray.train.get_all_reported_checkpoints()
        return blocked

    backward()
    optimizer.step()
    size = 3 * sum(one.nbytes for one in model.parameters())
    with open(f"{config['folder']}/result", "w") as result, contextlib.redirect_stdout(result):
        compare("ray", size, theirs, ours)
    checkpoints.close()


def main() -> None:
    folder = os.path.abspath(sys.argv[1])
    ray.init(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    keep = ray.train.CheckpointConfig(num_to_keep=1)
    run = ray.train.RunConfig(name="run", storage_path=folder, checkpoint_config=keep)
    scaling = ray.train.ScalingConfig(num_workers=1)
    ray.train.torch.TorchTrainer(
        train, train_loop_config={"folder": folder}, scaling_config=scaling, run_config=run
    ).fit()
    print(Path(folder, "result").read_text(), end="")


if __name__ == "__main__":
    main()
