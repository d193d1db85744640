"""What opening sets up, how large the pool is, and what a fence says that waits for the disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cairn
import pytest
import torch

if TYPE_CHECKING:
    from ranks import World

Make = Callable[..., cairn.Checkpointer]
MIB = 1 << 20


def available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def reaches(checkpointer: cairn.Checkpointer, size: int) -> bool:
    """Whether the pool, which grows behind the calls, gets that size."""
    end = time.monotonic() + 60
    while checkpointer.stats["pool_bytes"] != size and time.monotonic() < end:
        os.sched_yield()
    return checkpointer.stats["pool_bytes"] == size


def test_the_pool_fits_the_state_by_default(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with cairn.Checkpointer(root, chunk="1MiB", queue_depth=2) as checkpointer:
        assert checkpointer.stats["pool_bytes"] == 4 * MIB
        assert checkpointer.stats["pool_limit_bytes"] <= available() / 3  # A quarter, and others may end meanwhile.
        checkpointer.save(1, {"w": torch.ones(5 * MIB)}).wait()
        assert reaches(checkpointer, 20 * MIB)
        checkpointer.save(2, {"w": torch.ones(MIB)}).wait()
        assert checkpointer.stats["pool_bytes"] == 20 * MIB
    with cairn.Checkpointer(root, chunk="1MiB", queue_depth=2, host_memory="auto", read_only=True) as reader:
        assert reader.load(1)["w"].sum() == 5 * MIB
        assert reader.stats["pool_bytes"] == 4 * MIB


def test_the_ranks_of_a_node_share_its_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(available()))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with cairn.Checkpointer(root, chunk="1MiB", queue_depth=2) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(5 * MIB)}).wait()
        assert checkpointer.stats["pool_bytes"] == checkpointer.stats["pool_limit_bytes"] == 2 * MIB
        assert checkpointer.restore({"w": torch.empty(5 * MIB)})["w"].sum() == 5 * MIB


def test_the_ranks_of_a_node_are_counted_where_no_launcher_says_it(worlds: Callable[..., World]) -> None:
    world = worlds(3, "")
    assert world.all("c.stats['ranks_of_node']") == [3] * 3
    world.all("""
import logging, os
seen, log = [], logging.getLogger("cairn")
handler = logging.Handler()
handler.emit = lambda record: seen.append(record.getMessage())
log.addHandler(handler)
log.setLevel(logging.INFO)
def counted(**variables):
    c.close()
    os.environ.update(variables)
    open(c.root, group_timeout=20, host_memory="auto", chunk=0, queue_depth=0, worker_threads=0)
    for name in variables:
        del os.environ[name]
    c.check()
    seen[:-1] = []
    return c.stats["ranks_of_node"], c.stats["pool_limit_bytes"]
""")

    found = world.all("counted()")
    assert [count for count, _ in found] == [3] * 3
    assert all(limit <= available() / 9 for _, limit in found)  # A quarter of a third, and others may end meanwhile.
    known = "ranks on this node: 3, known by the names of the ranks' nodes. This one has a pool of at most"
    assert all(known in said for (said,) in world.all("seen"))

    slurm = "SLURM_STEP_TASKS_PER_NODE='2,1', SLURM_NODEID=str(rank // 2), SLURM_PROCID=str(rank)"
    assert [count for count, _ in world.all(f"counted({slurm})")] == [2, 2, 1]
    assert "SLURM_STEP_TASKS_PER_NODE=2,1, SLURM_NODEID=1." in world[2].run("seen")[0]

    # Rank 0 believes its launcher, and asks nobody; rank 1 does not believe its own.
    mixed = "LOCAL_WORLD_SIZE='2' if rank == 0 else '4' if rank == 1 else '1'"
    assert [count for count, _ in world.all(f"counted({mixed})")] == [2, 3, 1]
    assert "the size of the group" in world[1].run("seen")[0]
    assert "not by LOCAL_WORLD_SIZE=4: expected 1 to 3" in world[1].run("seen")[0]


@pytest.mark.parametrize("memory", ["4MiB", 4 * MIB])
def test_a_size_is_the_pools_from_the_beginning(root: Path, memory: Any) -> None:
    with cairn.Checkpointer(root, chunk="1MiB", queue_depth=2, host_memory=memory) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(5 * MIB)}).wait()
        assert checkpointer.stats["pool_bytes"] == checkpointer.stats["pool_limit_bytes"] == 4 * MIB


@pytest.mark.parametrize("memory", [0, "0", "much", "Auto", -1, None])
def test_what_is_no_size_is_refused(root: Path, memory: Any) -> None:
    with pytest.raises(cairn.InvalidArgument, match='host_memory: .*"auto"'):
        cairn.Checkpointer(root, host_memory=memory)


def test_opening_does_not_initialise_cuda(root: Path) -> None:
    program = """
import sys, torch, cairn
with cairn.Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.save(1, {"w": torch.ones(100_000)}).wait()
assert not torch.cuda.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_an_error_and_no_more(make: Make) -> None:
    checkpointer = make()
    with pytest.raises(cairn.Error):
        checkpointer._engine.core.set_up(0)
    checkpointer.save(1, {"w": torch.ones(100_000)}).wait()


def test_a_fence_that_waits_for_the_disk_says_so_once(worlds: Callable[..., World]) -> None:
    world = worlds(2, "")
    # Until rank 0 begins the save, rank 1 writes nothing: its pool of 8 MiB is full.
    world[1].start("""
import logging
seen, log = [], logging.getLogger("cairn")
handler = logging.Handler()
handler.emit = lambda record: seen.append(record.getMessage())
log.addHandler(handler)
save = c.save(1, {"w": torch.ones(3 << 20)})
while not any("a fence" in one for one in seen):
    try:
        c.fence(timeout=0.05)
        break
    except cairn.DeadlineExceeded:
        c.check()
[one for one in seen if "a fence" in one]
""")
    found = world[1].answer()["value"]
    assert len(found) == 1, found
    warning = found[0]
    assert warning.startswith("step 1: a fence waits for the disk, and training with it: the pool of 8.0 MiB is full")
    assert "this save's 12.0 MiB. A larger host_memory, or staging on the GPU, lets training go on" in warning

    world[0].start("c.save(1, {'w': torch.ones(3 << 20)}).result()")
    assert world[1].run("save.result()") == 1
    assert world[0].answer()["value"] == 1
    assert world[1].run("c.fence(); c.check(); sum('a fence' in one for one in seen)") == 1
