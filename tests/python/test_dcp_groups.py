"""cairn.dcp: the process group of an asynchronous save while training goes on, and what a load says at the first start.
Real processes over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from dcp_worlds import Worlds, end, worlds

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
__all__ = ["worlds"]  # A fixture.

TRAINS = """
import threading
uploads, trained = threading.Event(), threading.Event()
class Crossed(cairn.dcp.SavePlanner):
    "On rank 0 the upload's messages come before training's, on rank 1 after them."
    def create_local_plan(self):
        uploads.set()
        assert rank == 0 or trained.wait(30)
        return super().create_local_plan()
def trains(step, **how):
    uploads.clear(), trained.clear()
    response = cairn.dcp.async_save({"w": torch.ones(9), "n": step}, planner=Crossed(), **how)
    assert uploads.wait(30)
    ones = [torch.ones(1000) for _ in range(9)]
    works = [dist.all_reduce(one, async_op=True) for one in ones]
    trained.set()
    for work in works:
        work.wait()
    getattr(response, "upload_completion", response).result(30)  # Before torch 2.9 it is that future itself.
    return torch.cat(ones).unique().tolist()
"""

# Of each collective of a group it counts one.
UNPLANNED = """
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
def sharded(value):
    made = sharded_tensor.zeros(ChunkShardingSpec(0, ["rank:0/cpu", "rank:1/cpu"]), 5, 4)
    for shard in made.local_shards():
        shard.tensor.fill_(value)
    return made
def sent():
    return [group._get_sequence_number_for_group() for group in (dist.group.WORLD, saving)]
def unplanned(step, by_path):
    state = {"w": distribute_tensor(torch.arange(50.0), mesh, [Shard(0)]), "x": torch.ones(3), "n": step}
    state["s"] = sharded(step)
    before = sent()
    dist.barrier()
    assert sent() != before
    before = sent()
    for at in (step, step + 1):
        cairn.dcp.save(state, storage_writer=cairn.dcp.StorageWriter(c, at))
        cairn.dcp.async_save(state, checkpoint_id=f"{by_path}/step-{at}")  # Replaced by the next one, once it is durable.
        response = cairn.dcp.async_save(state, checkpoint_id=f"{by_path}/step-{at}")
        getattr(response, "upload_completion", response).result(30)
    assert sent() == before
    elsewhere = f"{by_path}-{step}"
    cairn.dcp.save(state, checkpoint_id=f"{elsewhere}/step-{step}")
    cairn.dcp.checkpointer_for(f"{elsewhere}/step-{step}").close()  # Its loads open it.
    reads = [{"storage_reader": cairn.dcp.StorageReader(source, step)} for source in (c, by_path)]
    for how in (*reads, *({"checkpoint_id": f"{root}/step-{step}"} for root in (by_path, elsewhere))):
        got = {"w": distribute_tensor(torch.zeros(50), mesh, [Shard(0)]), "x": torch.zeros(3), "n": 0}
        got["s"] = sharded(0)
        before = sent()
        cairn.dcp.load(got, **how)
        assert sent() == before
        assert torch.equal(got["w"].full_tensor(), torch.arange(50.0)) and got["n"] == step and got["x"].sum() == 3
        assert all((shard.tensor == step).all() for shard in got["s"].local_shards())
    for source in (c, by_path):
        got = {"w": distribute_tensor(torch.zeros(50), mesh, [Shard(0)]), "x": torch.zeros(3), "n": 0}
        got["s"] = sharded(0)
        dcp.load(got, storage_reader=cairn.dcp.StorageReader(source, step), planner=cairn.dcp.LoadPlanner())
        assert torch.equal(got["w"].full_tensor(), torch.arange(50.0)) and got["n"] == step and got["x"].sum() == 3
        assert all((shard.tensor == step).all() for shard in got["s"].local_shards())
"""


def test_training_goes_on_beside_a_save(worlds: Worlds, root: Path) -> None:
    world = worlds(2, "max_in_flight=4, keep_last=0", pg_timeout=20, timeout=5)
    world.all(TRAINS)
    summed = [[2.0]] * 2

    assert world.all("trains(1, storage_writer=cairn.dcp.StorageWriter(c, 1), process_group=saving)") == summed

    # A planner makes DCP plan, on a group with which training could hang: refused on all ranks, before one of them waits.
    by_path = f"cairn.dcp.checkpointer_for({str(root / 'b/step-3')!r}, host_memory='8MiB', chunk='1MiB')"
    world.all(f"b = {by_path}; None")
    for where in (f"checkpoint_id={str(root / 'b/step-3')!r}", "storage_writer=cairn.dcp.StorageWriter(c, 3)"):
        for answer in world.answers(f"trains(3, {where})"):
            assert (
                answer["error"] == "InvalidArgument"
                and "call cairn.dcp.async_save without a planner" in answer["message"]
            )

    # Without one, nothing is sent on any group, with or without a path.
    world.all(UNPLANNED)
    assert world.all(f"unplanned(2, {str(root / 'b')!r}); b.close(); c.steps()") == [[1, 2, 3]] * 2

    # DCP's own call takes what it is given: refused on all ranks, before one of them waits for another.
    default = "process_group=dist.group.WORLD"
    for group in ("", f", {default}"):
        call = f"dcp.async_save({{'w': torch.ones(9)}}, storage_writer=cairn.dcp.StorageWriter(c, 4){group})"
        for answer in world.answers(call):
            assert answer["error"] == "InvalidArgument"
            assert 'process_group=torch.distributed.new_group(backend="gloo")' in answer["message"]
    assert world.all("save({'w': torch.ones(9)}, 4); c.steps()") == [[1, 2, 3, 4]] * 2

    # On a GPU NCCL trains, and DCP has the gloo beside it.
    world.all("torch.cuda.is_available = lambda: True; dist.get_backend_config = lambda: 'cpu:gloo,cuda:nccl'")
    call = call.replace(f", {default}", "").replace("c, 4", "c, 5")
    assert (
        world.all(f"response = {call}; getattr(response, 'upload_completion', response).result(30); None") == [None] * 2
    )
    end(world)


def test_a_load_by_path_raises_the_error_itself_on_all_ranks(worlds: Worlds, root: Path) -> None:
    world = worlds(2)

    def load(path: Path) -> list[tuple[str, str]]:
        answers = world.answers(f"cairn.dcp.load({{'w': torch.zeros(9)}}, checkpoint_id={str(path)!r})")
        return [(answer["error"], answer["message"]) for answer in answers]

    # The root is there, and empty, at the first start; another one has the step, damaged.
    told = f"there is no step 1 under {root}"
    assert load(root / "step-1") == [("NotFound", told), ("NotFound", f"rank 0: {told}")]
    nowhere = root.parent / "no"
    told = f"there is no checkpoint under {nowhere}: there is no such directory"
    assert load(nowhere / "step-1") == [("NotFound", told)] * 2
    # A rank that finds the root already, which another rank made after its NotFound, hears the same.
    nowhere.mkdir()
    world[0].run("import types; import cairn._opening as opening; real = opening._core; None")
    world[0].run(
        "def missing(*_): raise cairn.NotFound('no such directory')\nopening._core = types.SimpleNamespace(Checkpointer=missing); None"
    )
    assert load(nowhere / "step-1") == [("NotFound", told)] * 2
    world[0].run("opening._core = real; None")
    nowhere.rmdir()

    # DCP's own checkpoint is not the first start.
    world.all(f"dcp.save({{'w': torch.ones(9)}}, checkpoint_id={str(root.parent / 'theirs/step-25')!r})")
    for error, message in load(root.parent / "theirs/step-25"):
        assert error == "InvalidArgument" and "in DCP's own format" in message
    assert world.all("save({'w': torch.ones(9)}, 1)") == [None] * 2
    shard = next(root.glob("step-*/shard-00000*"))
    shard.write_bytes(shard.read_bytes()[:-9])
    first, second = load(root / "step-1")
    assert first[0] == second[0] == "Corrupt" and second[1] == f"rank 0: {first[1]}" and "Traceback" not in first[1]
    end(world)


def test_a_failure_that_nobody_asks_for_is_logged(worlds: Worlds) -> None:
    world = worlds(2, pg_timeout=20)
    world.all("""
import logging, queue
told = queue.Queue()
handler = logging.Handler()
handler.emit = lambda record: "async_save" in record.getMessage() and told.put(record.getMessage())
logging.getLogger("cairn").addHandler(handler)
class Broken(cairn.dcp.SavePlanner):
    def create_local_plan(self):
        raise ValueError("a broken plan")
""")
    save = "cairn.dcp.async_save({'w': torch.ones(9)}, storage_writer=cairn.dcp.StorageWriter(c, 7), planner=Broken(), process_group=saving)"
    world.all(f"r = {save}; getattr(r, 'upload_completion', r).exception(30); None")
    assert world.all("told.get(timeout=30)") == ["step 7 is not saved: async_save has failed: a broken plan"] * 2
    end(world)
