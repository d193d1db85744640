"""How long training is blocked by a save: torchtitan's async mode and Cairn's, in adjacent pairs.

PYTHONPATH=build/python/site:build/python/peers/torchtitan:tests/peers .venv/bin/python tests/peers/torchtitan/blocked.py FOLDER
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from cairn.torchtitan import CheckpointManager
from pairs import compare
from torchtitan.components.checkpointer import CheckpointManager as DcpManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw


def main() -> None:
    logging.disable()
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", 0, 1, True), rank=0, world_size=1)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(24)))
    optimizers = default_adamw(lr=1e-3).build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config().build(optimizers=optimizers, training_steps=100)

    def backward() -> None:
        optimizers.zero_grad()
        model(torch.randn(64, 1024)).square().mean().backward()

    def measured(kind: Any, folder: str, **options: Any) -> Callable[[int], float]:
        config = kind.Config(enable=True, interval=1, folder=folder, keep_latest_k=2, async_mode="async", **options)
        manager = config.build(
            dataloader=None,
            model_parts=[model],
            optimizers=optimizers,
            lr_schedulers=schedulers,
            states={},
            sd_adapter=None,
            base_folder=sys.argv[1],
        )

        def one(step: int) -> float:
            begin = time.perf_counter()
            manager.save(step)
            blocked = time.perf_counter() - begin
            backward()
            begin = time.perf_counter()
            if kind is CheckpointManager:
                manager.maybe_wait_for_staging()  # torchtitan's async mode has copied everything by now.
            blocked += time.perf_counter() - begin
            optimizers.step()
            manager.maybe_wait_for_saving()
            return blocked

        return one

    backward()
    optimizers.step()
    state = optimizers.state_dict()
    size = sum(one.nbytes for one in [*model.parameters(), *state.values()] if isinstance(one, torch.Tensor))
    compare("torchtitan", size, measured(DcpManager, "theirs"), measured(CheckpointManager, "ours", host_memory="1GiB"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
