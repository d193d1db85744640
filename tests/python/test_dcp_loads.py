"""cairn.dcp.load without DCP's plan: what it opens, what it finds without opening, and what it does if that is not enough.
Real processes over gloo. That nothing is sent on a process group: test_dcp_groups.py."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from dcp_worlds import Worlds, end, worlds
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
from cairn._dcp import direct
from cairn._dcp.loading import load_state

__all__ = ["worlds"]  # A fixture.

# Weights that are spread, some tied, what all hold alike, and what a stage alone has.
STATE = """
import os, pathlib, shutil
def state_of(value, tied=True):
    rows = lambda n, by=1.0: distribute_tensor(torch.arange(float(n)) * by + value, mesh, [Shard(0)])
    embed = rows(21)
    model = {"embed": embed, "head": embed if tied else rows(21), "w": rows(64, 2.0), "bytes": torch.full((3,), value, dtype=torch.uint8)}
    optim = {"state": {"w": {"step": torch.tensor(float(value)), "exp_avg": rows(64, 3.0)}},
             "param_groups": [{"lr": value / 8, "params": ["w"]}]}
    stage = {f"stage{rank}": torch.full((5,), float(value + rank)), f"note{rank}": [value, rank, "x"]}
    return {"model": model, "optim": optim, **stage, "epoch": value}
def blank(state):
    if isinstance(state, dict):
        return {key: blank(child) for key, child in state.items()}
    if isinstance(state, list):
        return [*map(blank, state)]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None
def same(got, value):
    return digests(got) == digests(state_of(value))
def opened(call):
    "The shards that the call opens, of this rank's copy of the checkpoint alone."
    import ctypes, struct
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(fd, str(copy).encode(), 0x20) >= 0  # IN_OPEN
    call()
    data, found, at = os.read(fd, 1 << 20), set(), 0
    os.close(fd)
    while at < len(data):
        size = struct.unpack_from("iIII", data, at)[3]
        found.add(data[at + 16 : at + 16 + size].rstrip(bytes(1)).decode())
        at += 16 + size
    return sorted(name for name in found if name.startswith("shard-"))
def copied(step):
    global copy
    copy = pathlib.Path(c.root).parent / f"copy-{rank}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(f"{c.root}/step-{step:020}", copy)
def load_copy(into):
    cairn.dcp.load(into, storage_reader=cairn.dcp.StorageReader(c, folder=str(copy)))
    return into
"""


def test_a_rank_opens_its_own_shard_and_the_one_of_what_all_hold(worlds: Worlds) -> None:
    world = worlds(4, "keep_last=0")
    world.all(STATE)
    assert (
        world.all("cairn.dcp.save(state_of(3), storage_writer=cairn.dcp.StorageWriter(c, 1)); copied(1)") == [None] * 4
    )

    own = world.all("got = blank(state_of(3)); found = opened(lambda: load_copy(got)); assert same(got, 3), got; found")
    assert own == [sorted({"shard-00000.safetensors", f"shard-0000{rank}.safetensors"}) for rank in range(4)]
    # Of others' it opens what it asks for, as it is: a stage's tensor, and a value.
    other = "{f'stage{rank ^ 1}': torch.zeros(5), f'note{rank ^ 1}': None, 'epoch': 0}"
    own = world.all(
        f"got = {other}; [opened(lambda: load_copy(got)), got[f'stage{{rank ^ 1}}'][0].item(), got[f'note{{rank ^ 1}}']]"
    )
    for rank, found in enumerate(own):
        files, first, note = found if isinstance(found, list) else pytest.fail(str(found))
        wanted = {0, rank, rank ^ 1}
        assert files == [f"shard-0000{one}.safetensors" for one in sorted(wanted)], files
        assert (first, note) == (3 + (rank ^ 1), [3, rank ^ 1, "x"])
    # What a hint lacks is found all the same.
    world.all("(copy / 'index.cairn').unlink(); None")
    assert (
        world.all(f"got = {other}; opened(lambda: load_copy(got))")
        == [[f"shard-0000{i}.safetensors" for i in range(4)]] * 4
    )
    end(world)


# What shard 0 may say wrongly of the others, and of a rank that does not exist.
LIES = """
from cairn._dcp import found as finding
true = finding.text_of
def lying(lie):
    def text_of(details, given):
        text = true(details, given)
        return text if text.rest is None else text._replace(rest=text.rest._replace(**lie(text.rest)))
    finding.text_of = text_of
    got = blank(state_of(3))
    try:
        load_copy(got)
        return same(got, 3)
    except cairn.Error as error:
        return f"{type(error).__name__}: {error}"
    finally:
        finding.text_of = true
moved = lambda values, by: {at + by: paths for at, paths in values.items()}
lies = {
    "of another rank": lambda rest: {"values": moved(rest.values, 1)},
    "of no rank": lambda rest: {"values": moved(rest.values, 90)},
    "of rank -1": lambda rest: {"values": moved(rest.values, -90)},
    "no values": lambda rest: {"values": {}},
    "no tensors": lambda rest: {"tensors": {}},
    "none tied": lambda rest: {"tied": set()},
    "all tied": lambda rest: {"tied": {*rest.tensors, "model.w", "model.head"}},
    "a tensor as a value": lambda rest: {"values": {1: {"model.w": ("model", "w"), "stage1": ("stage1",)}}},
    "a value as a tensor": lambda rest: {"tensors": {**rest.tensors, "epoch": ("epoch",), "note1": ("note1",)}},
    "another path": lambda rest: {"tensors": {fqn: ("optim", 3) for fqn in rest.tensors} | {"model.w": ("epoch",)}},
    "what nobody has": lambda rest: {"tensors": {**rest.tensors, "ghost": ("ghost",)}, "values": {1: {"gone": ("gone",)}}},
}
"""


def test_what_shard_0_says_wrongly_of_the_others_changes_nothing(worlds: Worlds) -> None:
    world = worlds(4, "keep_last=0")
    world.all(STATE + LIES)
    world.all("cairn.dcp.save(state_of(3), storage_writer=cairn.dcp.StorageWriter(c, 1)); copied(1)")
    for found in world.all("{what: lying(lie) for what, lie in lies.items()}"):
        assert isinstance(found, dict), found
        assert {what: one for what, one in found.items() if one is not True} == {}
    end(world)


class Rows(torch.Tensor):
    """A rank's rows of a tensor. It tells DCP of them as DTensor does, and needs no process group."""

    first: int
    whole: torch.Size

    def _chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size([self.first]), torch.Size(self.shape))

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        data = TensorWriteData(self._chunk(), TensorProperties.create_from_tensor(self), self.whole)
        return [WriteItem(MetadataIndex(fqn, self._chunk().offsets), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._chunk()]

    def __get_tensor_shard__(self, _: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)

    def size(self, *_: Any) -> Any:
        return self.whole


def test_two_shards_are_enough_for_each_of_64_ranks(root: Path) -> None:
    world, store = 64, torch.distributed.HashStore()
    options: dict[str, Any] = {"host_memory": "4MiB", "chunk": "1MiB", "queue_depth": 2, "worker_threads": 1}
    options["group_timeout"] = 120.0

    def state(rank: int, value: float) -> dict[str, Any]:
        rows = torch.full((8,), value * (rank + 1)).as_subclass(Rows)
        rows.first, rows.whole = 8 * rank, torch.Size([8 * world])
        return {"rows": rows, "step": torch.full((), value), "n": value}

    def run(rank: int) -> None:
        checkpointer = cairn.Checkpointer(root, group=(store, rank, world), **options)
        direct.start_save(checkpointer, 1, state(rank, 3.0)).result()
        own = root.parent / f"own-{rank}"
        own.mkdir()
        for name in {"manifest.json", "index.cairn", "shard-00000.safetensors", f"shard-{rank:05}.safetensors"}:
            os.link(next(root.glob("step-*1")) / name, own / name)
        got = state(rank, 0.0)
        load_state(checkpointer, got, folder=str(own), strict=True, partial=False, cast=None, alone=False)
        assert got["rows"].as_subclass(torch.Tensor).tolist() == [3.0 * (rank + 1)] * 8
        assert (got["step"].item(), got["n"]) == (3.0, 3.0)
        checkpointer.close()

    with ThreadPoolExecutor(world) as ranks:
        for one in [ranks.submit(run, rank) for rank in range(world)]:
            one.result()


@pytest.mark.parametrize("ranks", [2, 4])
def test_another_number_of_ranks_finds_all_and_refuses_the_same(worlds: Worlds, ranks: int) -> None:
    """Also of tensors that are tied, whose names no index has."""
    saving = worlds(6 - ranks, "keep_last=0")
    saving.all(STATE)
    for step, state in enumerate(("state_of(1)", "state_of(2, tied=False)"), 1):
        assert saving.all(f"cairn.dcp.save({state}, storage_writer=cairn.dcp.StorageWriter(c, {step}))") == [None] * (
            6 - ranks
        )
    end(saving)

    world = worlds(ranks)
    world.all(STATE)
    for step in (1, 2):
        for planner in (None, "cairn.dcp.LoadPlanner()"):
            # Those of rank 0 are there at any number.
            state = f"{{key: one for key, one in blank(state_of({step})).items() if key[-1] not in '123'}}"
            want = f"{{name: one for name, one in digests(state_of({step})).items() if name[-1] not in '123'}}"
            got = world.all(f"got = digests(load({state}, {step}, {planner})); want = {want}; "
                            "mine = {k: got.get(k) for k in want}; mine == want or (mine, want)")  # fmt: skip
            assert got == [True] * ranks
            answers = world.answers(f"load({{**{state}, 'odd': torch.zeros(rank + 1), 'w': 1}}, {step}, {planner})")
            assert {answer["error"] for answer in answers} <= {"InvalidArgument", "CheckpointException"}
            for answer in answers:
                assert "Missing key in checkpoint state_dict: odd, w" in answer["message"], answer
    end(world)


def test_ties_that_some_shards_have_and_others_lack(worlds: Worlds) -> None:
    """Each part of a tied pair is written by one of its holders: the pair's by one rank, or by two."""
    world = worlds(4, "keep_last=0")
    world.all("""
grid = init_device_mesh("cpu", (2, 2))
def pair(value):
    a = distribute_tensor(torch.arange(40_000.0) + value, grid, [Replicate(), Shard(0)])
    mine = {f"mine{rank}": torch.zeros(1 if rank else 30_000)}
    return {"a": a, "b": a, "c": distribute_tensor(torch.arange(30_001.0) + value, grid, [Shard(0), Replicate()]), **mine}
""")
    assert world.all("cairn.dcp.save(pair(1), storage_writer=cairn.dcp.StorageWriter(c, 1))") == [None] * 4
    for planner in (None, "cairn.dcp.LoadPlanner()"):
        call = f"got = load(blank(pair(1)) | {{'b': torch.zeros(40_000)}}, 1, {planner})"
        assert world.all(f"{call}; torch.equal(got['b'], torch.arange(40_000.0) + 1)") == [True] * 4
        assert world.all(f"got = load(blank(pair(1)), 1, {planner}); digests(got) == digests(pair(1))") == [True] * 4
    end(world)


def test_a_rank_that_is_killed_while_it_loads_costs_the_others_an_error(worlds: Worlds, root: Path) -> None:
    world = worlds(2, "keep_last=0", timeout=5)
    world.all(STATE)
    assert world.all("save(state_of(1), 1)") == [None] * 2
    world[1].run(
        "import signal; cairn._dcp.loading._Load._begin = lambda self: os.kill(os.getpid(), signal.SIGKILL); None"
    )
    first, second = world.answers("load(blank(state_of(1)), 1)")
    assert second["error"] == "EOFError" and first["error"] == "DeadlineExceeded", (first, second)
    world.end()
    with cairn.Checkpointer(root, read_only=True) as reader:
        reader.verify(1)

    again = worlds(2)
    again.all(STATE)
    assert again.all("got = load(blank(state_of(1)), 1); same(got, 1)") == [True] * 2
    end(again)
