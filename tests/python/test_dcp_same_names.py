"""cairn.dcp: ranks that hold different contents under one name are refused, by name, on every rank."""

from __future__ import annotations

from pathlib import Path

import cairn
import pytest
from dcp_worlds import Worlds, end, shards, worlds
from ranks import World

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
from cairn._dcp import direct

__all__ = ["worlds"]  # A fixture.

MORE = """
import numpy
from torch.distributed.device_mesh import DeviceMesh
from cairn._dcp import compare, direct
meshes = [DeviceMesh("cpu", [of]) for of in range(world)]
def mine(placement, value=None):
    return DTensor.from_local(torch.full((4, 4), float(rank if value is None else value)), meshes[rank], [placement])
def replicated(value):
    return DTensor.from_local(torch.full((4, 4), float(value)), mesh, [Replicate()])
def hybrid():
    torch.manual_seed(rank)
    return fully_shard(torch.nn.Linear(4, 4), mesh=init_device_mesh("cpu", (world, 1), mesh_dim_names=("copies", "parts")))
digested = []
of = compare.crc_of
compare.crc_of = lambda tensor: digested.append(tensor.nbytes) or of(tensor)
def start(state, step):
    direct.start_save(c, step, state).wait()
def count(call):
    digested.clear()
    call()
    return sorted(digested)
"""
HOW = ('save({state}, 1, "sync")', "save({state}, 1)", "start({state}, 1)")
UNLIKE = {
    "torch.full((4, 4), float(rank))": "float32 [4, 4]: rank 0 has CRC",
    "mine(Shard(0))": "float32 [4, 4] of [4, 4]: rank 0 has CRC",
    "mine(Replicate())": "float32 [4, 4] of [4, 4]: rank 0 has CRC",
    "hybrid().weight": "float32 [4, 4] of [4, 4]: rank 0 has CRC",
    "rank": "rank 0 has 0, rank 1 has 1",
    '("MT", rank)': 'rank 0 has ["tuple","MT",0], rank 1 has ["tuple","MT",1]',
    "'x' * 200 + str(rank)": "rank 0 has 203 characters with CRC",
    "(numpy.full(3, rank),)": 'rank 0 has ["tuple",["a"]] int64 [3] CRC',
    "(numpy.full(100_000, rank),)": "an array in a value, int64 [100000]: rank 0 has CRC",
}


@pytest.fixture
def two(worlds: Worlds) -> World:
    made = worlds(2, "keep_last=0")
    assert made.all(MORE) == [None] * 2
    return made


def test_what_differs_under_one_name_is_refused_by_name(two: World, root: Path) -> None:
    for number, (value, said) in enumerate(UNLIKE.items()):
        how = HOW[number % 3]
        for answer in two.answers(how.format(state=f'{{"same": torch.ones(3), "n": {{"x": {value}}}}}')):
            assert "InvalidArgument: " in answer["message"] or answer["error"] == "InvalidArgument", answer
            message = answer["message"]
            assert "step 1: ranks hold different contents under one name" in message, message
            assert f": {said}" in message and "per_rank=['n.x']" in message and '"same"' not in message, message
    for how in HOW:  # Both kinds in one message.
        for answer in two.answers(how.format(state='{"v": rank, "t": torch.full((2,), float(rank))}')):
            assert '"v": rank 0 has 0' in answer["message"] and '"t": float32 [2]' in answer["message"], answer
    assert shards(root, 1) == []
    assert two.all('save({"v": 1, "t": torch.ones(2)}, 1)') == [None] * 2
    # What DCP's planner pickles: equal bytes pass.
    pickled = "import argparse; save({'v': argparse.Namespace(lr=0.1, seed=7, name='x' * SEED)}, 2, 'HOW', dcp.DefaultSavePlanner())"
    for how in ("sync", "async"):
        for answer in two.answers(pickled.replace("SEED", "rank").replace("HOW", how)):
            assert '"v": rank 0 has a value of type ' in answer["message"], answer
    assert two.all(pickled.replace("SEED", "3").replace("HOW", "sync")) == [None] * 2


def test_contents_are_compared_once_and_only_what_no_mesh_proves(two: World) -> None:
    two.all("""
state = {"mesh": replicated(1), "own": mine(Shard(0), 1), "plain": torch.ones(10), "v": ("x", numpy.ones(3)), "n": 1,
         f"only{rank}": torch.full((5,), float(rank)), "rows": distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])}
def again(step):
    return {**state, "n": step, "plain": state["plain"] * step}
""")
    first = [[40, 64]] * 2
    assert two.all("count(lambda: save(again(1), 1))") == first
    for how in ('save(again({0}), {0}, "sync")', "save(again({0}), {0})", "start(again({0}), {0})"):
        assert two.all(f"step = globals().get('step', 1) + 1; count(lambda: {how.format('step')})") == [[]] * 2
    # Values are compared at each save.
    for answer in two.answers("step += 1; save({**again(step), 'n': step + rank}, step)"):
        assert '"n": rank 0 has 5, rank 1 has 6' in answer["message"]
    # What is new is compared: a name, a shape, a mesh.
    more = "state['more'] = torch.ones(2)", "state['plain'] = torch.ones(11)", "state['mesh'] = mine(Replicate(), 1)"
    for change, expected in zip(more, ([8], [44], [64]), strict=True):
        assert two.all(f"{change}; step += 1; count(lambda: save(again(step), step))") == [expected] * 2


@pytest.mark.parametrize("compare", ["always", "never"])
def test_contents_are_compared_always_or_never(worlds: Worlds, compare: str) -> None:
    two = worlds(2, f'compare_replicas="{compare}"')
    two.all(MORE)
    expected = [[16] if compare == "always" else []] * 2
    for number, how in enumerate(HOW):
        call = [how.replace("1", str(10 * number + i)) for i in range(3)]
        two.all("state = {'w': torch.ones(4)}")
        assert two.all(f"count(lambda: {call[0].format(state='state')})") == expected
        answers = two.answers(call[1].format(state="{'w': torch.full((4,), float(rank))}"))
        assert ["error" in one for one in answers] == [compare == "always"] * 2, answers
        for answer in two.answers(call[2].format(state="{'v': rank}")):
            assert '"v": rank 0 has 0, rank 1 has 1' in answer["message"], answer
        # from_local takes each rank's word that its replica is the others'. A buffer is one rank's in any case.
        answers = two.answers(how.replace("1", str(10 * number + 3)).format(state="{'w': replicated(rank)}"))
        assert ["error" in one for one in answers] == [compare == "always"] * 2, answers
    buffers = (
        "direct.start_save_of(c, 99, lambda: ({'b': torch.full((4,), float(rank))}, {}), is_buffer=lambda _: True)"
    )
    assert two.all(f"{buffers}.wait()") == [None] * 2


OWN = """
def state_of(of):
    torch.manual_seed(100 + of)
    return {"rng": torch.get_rng_state(), "loader": {"epoch": of + 1, "seen": [of] * 3}, "mt": ("MT", numpy.full(3, of)),
            "experts": {"w": mine(Shard(0), of), "b": mine(Replicate(), 5 + of)}, "c": torch.full((2,), 1j * of, dtype=torch.complex128),
            "w": distribute_tensor(torch.arange(4.0), mesh, [Shard(0)]), "step": 7}
def blank_of():
    return {"rng": torch.zeros_like(torch.get_rng_state()), "loader": {"epoch": 0, "seen": []}, "mt": None,
            "experts": {"w": torch.zeros(4, 4), "b": mine(Replicate(), -1)}, "c": torch.zeros(2, dtype=torch.complex128),
            "w": torch.zeros(4), "step": 0}
def same(got, of):
    want = {**state_of(of), "w": torch.arange(4.0)}
    (kind, array), (_, wanted) = got.pop("mt"), want.pop("mt")
    return kind == "MT" and array.tolist() == wanted.tolist() and digests(got) == digests(want)
"""
PER_RANK = "['rng', 'loader.*', 'mt', 'experts.?', 'c']"


def test_each_rank_keeps_its_own_under_one_name(worlds: Worlds, root: Path) -> None:
    two = worlds(2, f"keep_last=0, per_rank={PER_RANK}")
    two.all(MORE + OWN)
    for step, how in enumerate(
        ("start(state_of(rank), 0)", "save(state_of(rank), 1, 'sync')", "save(state_of(rank), 2)")
    ):
        assert two.all(f"count(lambda: {how})") == [[]] * 2
        assert two.all(f"same(load(blank_of(), {step}), rank)") == [True] * 2
        # By a root, with another planner, and all that there is.
        assert (
            two.all(f"""
state = blank_of()
cairn.dcp.load(state, checkpoint_id={str(root)!r} + "/step-{step}")
whole = direct.load_all(c, step={step}, together=True)
same(state, rank) and same({{**whole, "c": whole["c"]}}, rank)
""")
            == [True] * 2
        )
        files = shards(root, step)
        assert all(
            {f"{name}/~v~{rank}" for name in ("rng", "experts.w", "mt", "c")} - {"mt/~v~0", "mt/~v~1"} <= names.keys()
            for rank, names in enumerate(files)
        ), files
        assert files[0]["mt/~v~0/1"] == files[1]["mt/~v~1/1"] == 3
    # DCP may cache its plans.
    for step in (3, 4):
        planner = "cairn.dcp.SavePlanner(enable_plan_caching=True)"
        assert two.all(f"save(state_of(rank), {step}, 'sync', {planner})") == [None] * 2
        assert two.all(f"same(load(blank_of(), {step}), rank)") == [True] * 2
    # What is not named is compared, and a tensor that is spread over ranks is nobody's own.
    for answer in two.answers("save({**state_of(rank), 'step': rank}, 5)"):
        assert '"step": rank 0 has 0, rank 1 has 1' in answer["message"] and "rng" not in answer["message"]
    for how in HOW:
        call = how.replace("1", "5").format(
            state='{"experts": {"w": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}}'
        )
        for answer in two.answers(call):
            assert '"experts.w": per_rank names it, but it is spread over ranks' in answer["message"], answer
    two.all(f"c.close(); open({str(root)!r} + '2', group_timeout=60, per_rank=[str(rank)])")
    for how in HOW:
        for rank, answer in enumerate(two.answers(how.format(state="{'w': torch.ones(2)}"))):
            assert f"per_rank is ['{rank}'] on rank {rank} and ['{1 - rank}'] on rank {1 - rank}" in answer["message"]
    end(two)

    three = worlds(3)
    three.all(MORE + OWN)
    shared = "{'w': torch.zeros(4), 'step': 0}"
    assert three.all(f"load({shared}, 2)['w'].tolist()") == [[0.0, 1.0, 2.0, 3.0]] * 3
    for planner in ("None", "dcp.DefaultLoadPlanner(allow_partial_load=True)"):
        for answer in three.answers(f"load({{**{shared}, 'loader': {{'epoch': 0}}}}, 2, {planner})"):
            assert (
                f'{root}/step-{2:020}: "loader.epoch" was saved with per_rank, each rank has its own, but 2 ranks saved '
                'it and 3 ranks would load it. Leave these out of the state to load into: "c", "experts.b"'
            ) in answer["message"], answer
    end(three)
    with cairn.Checkpointer(root, read_only=True) as reader:
        assert sorted(direct.load_all(reader)) == ["step", "w"]
        reader.verify()
