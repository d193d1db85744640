"""How long training is blocked by a save: DeepSpeed's own and Cairn's, in adjacent pairs.

DeepSpeed's own is synchronous: its decoupled writer (0.19.8) cannot send ZeRO's state of the CPU to its process.

DS_ACCELERATOR=cpu LOCAL_RANK=0 PYTHONPATH=build/python/site:build/python/peers/deepspeed:tests/peers \
    .venv/bin/python tests/peers/deepspeed/blocked.py FOLDER
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

import cairn.deepspeed
import deepspeed
import torch
import torch.distributed as dist
from pairs import compare


def measured(folder: str, ours: bool) -> Callable[[int], float]:
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(24)))
    config = {
        "train_micro_batch_size_per_gpu": 64,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
    if ours:
        cairn.deepspeed.attach(engine, folder, host_memory="1GiB", keep_last=2)

    def one(_: int) -> float:
        begin = time.perf_counter()
        engine.save_checkpoint(folder, tag=f"step{engine.global_steps}")
        blocked = time.perf_counter() - begin
        engine.backward(engine(torch.randn(64, 1024)).square().mean())
        begin = time.perf_counter()
        if ours:
            engine.checkpoint_engine.checkpointer.fence()
        blocked += time.perf_counter() - begin
        engine.step()
        if ours:
            engine.checkpoint_engine.checkpointer.drain()
        return blocked

    engine.backward(engine(torch.randn(64, 1024)).square().mean())
    engine.step()
    return one


def main() -> None:
    logging.disable()
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", 0, 1, True), rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend="gloo")
    theirs, ours = (measured(f"{sys.argv[1]}/{name}", name == "ours") for name in ("theirs", "ours"))
    compare("DeepSpeed", 24 * 1024 * 1025 * 4 * 4, theirs, ours)


if __name__ == "__main__":
    main()
