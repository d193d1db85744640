"""cairn.dcp with a Checkpointer that has `memory`: an upload ends once it is kept, and a killed job goes on with it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cairn
import pytest
from jobs import ENVIRONMENT
from ranks import World

dcp = pytest.importorskip("cairn.dcp")
torch = pytest.importorskip("torch")


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


SAVES_AND_DIES = """
import os, sys, torch, cairn, cairn.dcp as dcp
root, memory, how = sys.argv[1:]
options = {"memory": memory, "disk_every": 1000, "host_memory": "32MiB"}
state = lambda step: {"w": torch.full((100_000,), float(step)), "step": step}
if how == "by path":
    checkpointer = dcp.checkpointer_for(f"{root}/step-0", **options)
    where = lambda step: {"checkpoint_id": f"{root}/step-{step}"}
else:
    checkpointer = cairn.Checkpointer(root, **options)
    planner = {"planner": dcp.SavePlanner()} if how == "planned" else {}
    where = lambda step: {"storage_writer": dcp.StorageWriter(checkpointer, step), **planner}
dcp.save(state(1), **where(1))
checkpointer.drain()
for step in range(2, 6):
    response = dcp.async_save(state(step), **where(step))
    getattr(response, "upload_completion", response).result()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["by writer", "planned", "by path"])
def test_a_killed_process_goes_on_with_what_is_in_memory_alone(root: Path, memory: Path, how: str) -> None:
    command = [sys.executable, "-c", SAVES_AND_DIES, root, memory, how]
    assert subprocess.run(command, check=False, env=ENVIRONMENT, timeout=120).returncode == -9
    with cairn.Checkpointer(root, read_only=True, host_memory="32MiB") as reader:
        assert reader.steps() == [1]

    state = {"w": torch.zeros(100_000), "step": 0}
    path = f"{root}/step-0"
    with dcp.checkpointer_for(path, memory=memory, host_memory="32MiB") as checkpointer:
        assert checkpointer.latest() == 5
        where = {"checkpoint_id": f"{root}/step-5"} if how == "by path" else {}
        dcp.load(state, **(where or {"storage_reader": dcp.StorageReader(checkpointer)}))
    assert state["step"] == 5 and torch.equal(state["w"], torch.full((100_000,), 5.0))
    assert list(memory.iterdir()) == []
    with cairn.Checkpointer(root, read_only=True, host_memory="32MiB") as reader:
        assert reader.steps() == [1, 5]


def test_the_ranks_of_a_killed_job_go_on_with_what_is_in_memory_alone(tmp_path: Path, memory: Path) -> None:
    begin = f"""
import cairn.dcp as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
dist.init_process_group("gloo", store=dist.PrefixStore("torch", store), rank=rank, world_size=world)
mesh = dist.init_device_mesh("cpu", (world,))
def state(step):
    whole = torch.arange(1000 * 64.0).view(1000, 64) * step
    return {{"w": distribute_tensor(whole, mesh, [Shard(0)]), "b": distribute_tensor(whole[0], mesh, [Replicate()]),
             "step": step}}
c = cairn.Checkpointer({str(tmp_path / "root")!r}, group=dist.group.WORLD, memory={str(memory)!r}, disk_every=1000,
                       host_memory="32MiB", chunk="1MiB")
"""
    saves = "[dcp.save(state(step), storage_writer=dcp.StorageWriter(c, step)) for step in range(1, 6)]"
    world = World(2, tmp_path)
    assert world.all(begin) == [None] * 2
    assert world.all(saves) == [[None] * 5] * 2
    world.end()

    world = World(2, tmp_path)
    assert world.all(begin) == [None] * 2
    assert world.all("found = state(0); dcp.load(found, storage_reader=dcp.StorageReader(c))") == [None] * 2
    assert world.all("found['step'], found['w'].to_local().equal(state(5)['w'].to_local())") == [[5, True]] * 2
    assert world.all("c.close()") == [None] * 2
    world.end()
    assert list(memory.iterdir()) == []
