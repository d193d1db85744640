"""Measures what a group pays to fall back over a damaged checkpoint, in times of one restore.

Several processes restore one checkpoint together. The newest has a flipped bit in the last block of one shard, so the
others have read all of theirs when it is found. In pairs, in turns: restore(fall_back=True), and restore of the older
step; the ratio of their times, its median, least and greatest. `cold`: the files' pages are dropped before each, which
changes nothing if reads bypass the page cache. The goal is a median of 2.1 at most. Needs torch, 2 * ranks * mib of
disk and half of that memory. Takes a few minutes (an estimate).
"""

import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

from ..shared.machine import drop_pages
from ..shared.options import add_directory, add_repetitions, positive

GOAL = 2.1


def serve(rank, world, port, root, mib, commands):
    """One rank: restores when asked, and answers with the seconds it took and the step it found."""
    import cairn
    import torch
    from torch.distributed import TCPStore

    logging.getLogger("cairn").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, None, False)
    weights = torch.zeros(mib << 18)
    options = {"host_memory": "64MiB", "chunk": "4MiB", "queue_depth": 4, "worker_threads": 1, "group_timeout": 300}
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


def damage(shard):
    """Flips a bit in its last block."""
    with open(shard, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
        os.fsync(file.fileno())


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


def add_arguments(parser):
    add_directory(parser)
    add_repetitions(parser, 9, "--pairs")
    parser.add_argument("--ranks", type=positive(int), default=8, help="default: 8")
    parser.add_argument("--mib", type=positive(int), default=64, help="of each rank's tensor; default: 64")


def run(args):
    from torch.distributed import TCPStore

    host = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="cairn-fall-back-", dir=args.dir) as folder:
        root = os.path.join(folder, "run")
        ranks = []
        for rank in range(args.ranks):
            here, there = context.Pipe()
            arguments = (rank, args.ranks, host.port, root, args.mib, there)
            context.Process(target=serve, args=arguments, daemon=True).start()
            there.close()
            ranks.append(here)
        for rank in ranks:
            rank.recv()
        damage(Path(root, f"step-{2:020d}", f"shard-{args.ranks // 2:05d}.safetensors"))
        restore(ranks, step=1)
        for name, cold in (("warm", False), ("cold", True)):
            ratios, older = measure(ranks, root, args.pairs, cold)
            median = statistics.median(ratios)
            print(
                f"{name}: {args.ranks} ranks of {args.mib} MiB, {args.pairs} pairs: fall back over one / restore: "
                f"median {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), goal {GOAL}: "
                f"{'met' if median <= GOAL else 'missed'}; one restore {statistics.median(older):.2f} s"
            )
        for rank in ranks:
            rank.send(None)
