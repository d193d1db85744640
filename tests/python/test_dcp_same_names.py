"""cairn.dcp: ranks that hold different contents under one name are refused, by name, on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from dcp_worlds import Worlds, shards, worlds
from ranks import World

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
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
