"""Runs cairn_train as a job of several ranks, as torchrun starts them."""

import os
import socket
import subprocess


def run_ranks(command, world, limit=None, **environment):
    """(exit status, standard output, standard error) of each rank. subprocess.TimeoutExpired after `limit` seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environment}
    ranks = [
        subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=os.environ | given | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=limit) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [(process.returncode, *output) for process, output in zip(ranks, outputs, strict=True)]
