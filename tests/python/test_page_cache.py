"""Ranks of one node that read the same bytes have the disk give them once; others bypass the page cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from dcp_worlds import PRELUDE
from ranks import World

MIB = 1 << 20
READ = """
from pathlib import Path
def read_bytes():
    return int(Path("/proc/self/io").read_text().partition("\\nread_bytes: ")[2].split()[0])
def reading(call):
    before = read_bytes()
    call()
    return read_bytes() - before
"""


@pytest.fixture
def world(root: Path) -> Any:
    made: list[World] = []

    def make(world: int, options: str = "", **environment: str) -> World:
        made.append(World(world, root, **environment))
        made[-1].open(options)
        assert made[-1].all(PRELUDE.replace("PG_TIMEOUT", "60") + READ) == [None] * world
        return made[-1]

    yield make
    for one in made:
        one.end()


def read_anew(world: World, root: Path, code: str) -> list[int]:
    """The bytes that the disk gives to each rank."""
    for file in root.glob("step-*/shard-*"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found = world.all(f"reading(lambda: {code})")
    assert all(isinstance(one, int) for one in found), found
    if not any(found):
        pytest.skip("this filesystem keeps its files in memory")
    return found


@pytest.mark.parametrize(("ranks", "tensors"), [(2, 2), (3, 3), (3, 1)])
def test_replicated_tensors_are_read_once_for_all_ranks(world: Any, root: Path, ranks: int, tensors: int) -> None:
    job = world(ranks, 'replicated=["shared/*"]')
    # Of 64 MiB each: every rank writes one, or one rank the only one.
    shared = f"{{'t' + str(i): torch.full(({16 * MIB},), VALUE + i) for i in range({tensors})}}"
    state = f"{{'shared': {shared}, 'mine': torch.full((9,), VALUE + rank)}}"
    assert job.all(f"c.save(1, {state.replace('VALUE', '1.0')}).result()") == [1] * ranks
    job.all(f"kept = {state.replace('VALUE', '0.0')}")

    read = sum(read_anew(job, root, "c.restore(kept, 1)"))

    assert 64 * MIB * tensors <= read < 66 * MIB * tensors
    values = "[*(float(t.mean()) for t in kept['shared'].values()), float(kept['mine'][0])]"
    assert job.all(values) == [[*(1.0 + i for i in range(tensors)), 1.0 + rank] for rank in range(ranks)]
    assert sum(read_anew(job, root, "c.load(1, names=['shared/t0'], lazy=True)['shared/t0'].load()")) < 66 * MIB


@pytest.mark.parametrize(("local", "times"), [("1", 2), ("2", 1), ("nonsense", 1)])
def test_the_ranks_of_a_node_are_what_torchrun_says(world: Any, root: Path, local: str, times: int) -> None:
    job = world(2, 'replicated=["w"]', LOCAL_WORLD_SIZE=local)
    assert job.all(f"c.save(1, {{'w': torch.ones({2 * MIB})}}).result()") == [1, 1]
    job.all(f"kept = {{'w': torch.zeros({2 * MIB})}}")

    read = sum(read_anew(job, root, "c.restore(kept, 1)"))

    assert 8 * MIB * times <= read < 9 * MIB * times


def test_what_each_rank_has_for_itself_bypasses_the_page_cache(world: Any, root: Path) -> None:
    job = world(2)
    assert job.all(f"c.save(1, {{'mine': torch.ones({MIB})}}).result()") == [1, 1]
    job.all(f"kept = {{'mine': torch.zeros({MIB})}}")

    once = sum(read_anew(job, root, "c.restore(kept, 1)"))
    again = sum(job.all("reading(lambda: c.restore(kept, 1))"))

    assert 8 * MIB <= once < 9 * MIB and 8 * MIB <= again < 9 * MIB


def test_dcp_replicas_are_read_once_and_shards_bypass_the_page_cache(world: Any, root: Path) -> None:
    job = world(4)
    # Two replicas of two shards, each rank's own state beside them.
    job.all(f"""
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
def state(value, placements):
    torch.manual_seed(0)
    whole = torch.full((4, {MIB // 2}), value)
    own = {{f"random {{rank}}": torch.full((100,), value + rank), f"loader {{rank}}": torch.full((20_000,), value)}}
    return {{"w": distribute_tensor(whole, mesh, placements)}} | own
replicas, shards = [Replicate(), Shard(0)], [Shard(0), Shard(0)]
""")
    assert job.all("save(state(1.0, replicas), 1)") == [None] * 4
    job.all("twice, once = state(0.0, replicas), state(0.0, shards)")

    read = sum(read_anew(job, root, "load(twice, 1)"))
    assert 8 * MIB <= read < 9 * MIB
    assert job.all("repr((float(twice['w'].to_local().mean()), float(twice[f'random {rank}'][0])))") == [
        repr((1.0, 1.0 + rank)) for rank in range(4)
    ]

    job.all("columns = state(0.0, [Shard(1), Replicate()]); None")
    assert 8 * MIB <= sum(read_anew(job, root, "load(columns, 1)")) < 9 * MIB
    assert job.all("float(columns['w'].to_local().mean())") == [1.0] * 4

    assert 8 * MIB <= sum(read_anew(job, root, "load(once, 1)")) < 12 * MIB
    assert 8 * MIB <= sum(job.all("reading(lambda: load(once, 1))")) < 12 * MIB
    assert job.all("float(once['w'].to_local().mean())") == [1.0] * 4


MADE_ANEW = """
from torch.distributed.checkpoint.planner import LoadPlan
class Anew(cairn.dcp.LoadPlanner):
    def create_global_plan(self, plans):
        return [LoadPlan(plan.items) for plan in super().create_global_plan(plans)]
"""


def test_a_dcp_planner_may_make_the_plans_anew(world: Any) -> None:
    job = world(2)
    job.all(MADE_ANEW + "state = {'w': torch.ones(1000)}")
    assert job.all("save(state, 1)") == [None] * 2

    assert job.all("float(load({'w': torch.zeros(1000)}, 1, planner=Anew())['w'].mean())") == [1.0] * 2


def test_ranks_that_read_parts_of_the_same_rows_have_the_disk_give_them_once(world: Any, root: Path) -> None:
    job = world(4)
    whole = f"distribute_tensor(torch.arange({4 * MIB}.0).reshape(4096, -1), mesh, [Shard(DIM)])"
    job.all(f"rows, columns = {{'w': {whole.replace('DIM', '0')}}}, {{'w': {whole.replace('DIM', '1')}}}")
    assert job.all("save(rows, 1)") == [None] * 4
    job.all("kept = columns['w'].to_local().clone(); columns['w'].to_local().zero_(); None")

    read = sum(read_anew(job, root, "load(columns, 1)"))

    assert 16 * MIB <= read < 17 * MIB
    assert job.all("torch.equal(columns['w'].to_local(), kept)") == [True] * 4
