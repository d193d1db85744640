"""Measures what a group pays to fall back over a damaged checkpoint, in times of one restore.

    PYTHONPATH=build/python/site python3 bench/python/fall_back.py [--dir DIR] [--ranks 8] [--mib 64] [--pairs 9]

So many processes restore one checkpoint together. The newest has a flipped bit in the last block of one shard: so the
others have read all of theirs when that is found. Pairs of restore(fall_back=True) and restore of the older step, in turn
which one comes first; the ratio of their times, its median, least and greatest. `cold`: the files' pages are dropped
before each (where reads bypass the page cache that changes nothing). The goal: a median of 2.1 at most. Needs torch and
2 * ranks * mib of disk, half of that memory.
"""

import argparse
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

GOAL = 2.1


def serve(rank, world, port, root, mib, commands):
    """One rank: restores as it is told, and answers with the seconds it took and the step it found."""
    import cairn
    import torch
    from torch.distributed import TCPStore

    logging.getLogger("cairn").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, None, False)
    weights = torch.zeros(mib << 18)
    options = {"host_memory": "64MiB", "chunk": "4MiB", "queue_depth": 4, "workers": 1, "group_timeout": 300}
    with cairn.Checkpointer(root, group=(store, rank, world), **options) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"weights": weights.fill_(step + rank / world), "step": step}).wait()
        commands.send(None)
        while (how := commands.recv()) is not None:
            begun = time.perf_counter()
            step = checkpointer.restore({"weights": weights, "step": 0}, **how)["step"]
            seconds = time.perf_counter() - begun
            assert bool((weights == step + rank / world).all())
            commands.send((seconds, step))


def drop_pages(root):
    for file in Path(root).glob("step-*/*"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def restore(ranks, **how):
    """Seconds until the last rank has it."""
    for rank in ranks:
        rank.send(how)
    answers = [rank.recv() for rank in ranks]
    assert {step for _, step in answers} == {1}, answers
    return max(seconds for seconds, _ in answers)


def measure(ranks, root, pairs, cold):
    ratios, older = [], []
    for pair in range(pairs):
        seconds = {}
        for name in ("fall back", "older")[:: 1 if pair % 2 else -1]:
            if cold:
                drop_pages(root)
            seconds[name] = restore(ranks, **({"fall_back": True} if name == "fall back" else {"step": 1}))
        ratios.append(seconds["fall back"] / seconds["older"])
        older.append(seconds["older"])
    return ratios, older


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", default=".")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=9)
    asked = parser.parse_args()

    from torch.distributed import TCPStore

    host = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="cairn-fall-back-", dir=asked.dir) as folder:
        root = os.path.join(folder, "run")
        ranks = []
        for rank in range(asked.ranks):
            here, there = context.Pipe()
            process = context.Process(
                target=serve, args=(rank, asked.ranks, host.port, root, asked.mib, there), daemon=True
            )
            process.start()
            there.close()
            ranks.append(here)
        for rank in ranks:
            rank.recv()
        shard = Path(root, f"step-{2:020d}", f"shard-{asked.ranks // 2:05d}.safetensors")
        with open(shard, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
            os.fsync(file.fileno())
        restore(ranks, step=1)
        for name, cold in (("warm", False), ("cold", True)):
            ratios, older = measure(ranks, root, asked.pairs, cold)
            median = statistics.median(ratios)
            print(
                f"{name}: {asked.ranks} ranks of {asked.mib} MiB, {asked.pairs} pairs: fall back over one / restore: "
                f"median {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), goal {GOAL}: "
                f"{'met' if median <= GOAL else 'missed'}; one restore {statistics.median(older):.2f} s"
            )
        for rank in ranks:
            rank.send(None)


if __name__ == "__main__":
    main()
