"""How long training is blocked by a save: Megatron-core's asynchronous strategy and Cairn's, in adjacent pairs.

Megatron's queue needs an NVIDIA driver. So its part here is what training waits for in any case: the plan, and the copy
of the tensors into host memory that its writer makes before the next step (its fork of the process comes on top).

PYTHONPATH=build/python/site:build/python/peers/megatron:tests/peers .venv/bin/python tests/peers/megatron/blocked.py FOLDER
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
import warnings
from typing import Any

import cairn.megatron
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from pairs import compare


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", 0, 1, True), rank=0, world_size=1)
    tensors = {f"w{number}": torch.randn(1024, 1024) for number in range(72)}
    strategies = cairn.megatron.register(f"{sys.argv[1]}/.cairn", host_memory="1GiB")

    def save(name: str, number: int, backend: Any) -> Any:
        folder = f"{sys.argv[1]}/{name}_{number}"
        os.makedirs(folder)
        state = {key: ShardedTensor.from_rank_offsets(key, one) for key, one in tensors.items()}
        return folder, dist_checkpointing.save(state, folder, backend, async_sharded_save=True)

    def theirs(number: int) -> float:
        begin = time.perf_counter()
        folder, request = save("theirs", number, ("torch_dist", 1))
        staged = request.preload_fn()
        blocked = time.perf_counter() - begin
        request._replace(preload_fn=lambda: staged).execute_sync()
        shutil.rmtree(folder)
        return blocked

    def ours(number: int) -> float:
        begin = time.perf_counter()
        folder, request = save("ours", number, cairn.megatron.BACKEND)
        strategies.calls.schedule_async_request(request)
        strategies.checkpointer.fence()
        blocked = time.perf_counter() - begin
        strategies.calls.maybe_finalize_async_calls(blocking=True)
        shutil.rmtree(folder)
        return blocked

    compare("Megatron-core", sum(one.nbytes for one in tensors.values()), theirs, ours)
    strategies.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
