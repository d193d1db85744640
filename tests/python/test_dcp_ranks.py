"""cairn.dcp with several ranks: real processes over gloo, DTensors and FSDP2, other numbers of ranks, real kills."""

from __future__ import annotations

from pathlib import Path

import cairn
import pytest
import torch
from dcp_worlds import Worlds, end, one, shards, worlds
from torch.distributed import checkpoint as dcp

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
from cairn._dcp.compare import check_tiled

__all__ = ["worlds"]  # A fixture.


@pytest.mark.parametrize("how", ["sync", "async"])
def test_fsdp2_saved_on_4_ranks_loads_on_2_8_and_1(worlds: Worlds, root: Path, how: str) -> None:
    four = worlds(4)
    four.all("net, optimizer = trained(1, 2)")
    saved = one(four.all("state = state_of(net, optimizer); digests(state)"))
    assert four.all(f'save(state, 1, "{how}")') == [None] * 4
    end(four)
    assert len(saved) > 20 and saved["/epoch"] == "7"
    # Each rank has its chunks; what is identical on all (BatchNorm's buffers, Adam's steps) is there once.
    files = shards(root, 1)
    assert len(files) == 4 and all("model.a.weight" in names for names in files)
    assert sum(names["model.a.weight"] for names in files) == 120
    assert sum("model.norm.running_mean" in names for names in files) == 1

    for ranks in (2, 8, 1):
        world = worlds(ranks)
        other = one(world.all("net, optimizer = trained(2, 1); state = state_of(net, optimizer); digests(state)"))
        assert other != saved
        planner = "cairn.dcp.LoadPlanner()" if ranks == 2 else None
        assert world.all(f"load(state, 1, {planner}); set_state_dict(net, optimizer, model_state_dict=state['model'], "
                         "optim_state_dict=state['optim']); None") == [None] * ranks  # fmt: skip
        assert one(world.all("digests(state_of(net, optimizer) | {'epoch': state['epoch']})")) == saved
        # It trains on, and saves again.
        assert world.all(f"c.protect(optimizer); save(state_of(net, optimizer), {ranks + 1})") == [None] * ranks
        end(world)


def test_small_items_of_the_same_ranks_are_written_side_by_side() -> None:
    """By one of these ranks, until it has 64 MiB of them; large ones by who has the least."""
    from cairn._dcp.shares import assign

    large = [((f"large {i}", ()), 1 << 20, "", "") for i in range(8)]
    small = [((f"small {i}", ()), 60_000, "", "") for i in range(3000)]
    mine = [assign([[*large, *small]] * 4, rank) for rank in range(4)]

    assert sum(len(keys) for keys in mine) == len(set().union(*mine)) == 3008
    assert [sum(name.startswith("large") for name, _ in keys) for keys in mine] == [2] * 4
    first = {name for name, _ in mine[0] if name.startswith("small")}
    assert len(first) == (64 << 20) // 60_000 and first == set(sorted(name for (name, _), *_ in small)[: len(first)])
    alone = [assign([large, small[:100], small[:100]], rank) for rank in range(3)]
    assert [len(keys) for keys in alone] == [8, 100, 0]


def test_ranks_of_different_versions_do_not_divide_replicas(worlds: Worlds, root: Path) -> None:
    """Each would leave out what it takes for the other's, and the checkpoint would be committed without it."""
    two = worlds(2)
    two.all("state = {f'n{i}': torch.full((100 + i,), float(i)) for i in range(20)}; None")
    # As before small tensors were written by one rank.
    two[1].run("cairn._dcp.shares._RULE, cairn._dcp.shares._SMALL = b'1', -1")

    answers = two.answers("save(state, 1)")

    assert [f"rank {1 - rank} runs another version of Cairn" in one["message"] for rank, one in enumerate(answers)] == [
        True, True,
    ]  # fmt: skip
    assert shards(root, 1) == []


@pytest.mark.parametrize(
    ("state", "said"),
    [
        # Only ranks that need what they had written could restore the first, and nobody the second.
        ("DTensor.from_local(torch.ones(2, 4, dtype=(torch.float32, torch.bfloat16)[rank]), mesh, [Shard(0)])",
         "a part of float32 [4, 4] on rank 0 and a part of bfloat16 [4, 4] on rank 1"),
        ("DTensor.from_local(torch.ones(2, 4), mesh, [Shard(0)]) if rank == 0 else torch.ones(4, 4)",
         "a part of float32 [4, 4] on rank 0 and float32 [4, 4] on rank 1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["save(state, 1)", "save(state, 1, 'sync')", "direct.start_save(c, 1, state).wait()"])
def test_parts_of_different_tensors_under_one_name_are_refused(
    worlds: Worlds, root: Path, state: str, said: str, how: str
) -> None:
    two = worlds(2)
    two.all(f"from cairn._dcp import direct; state = {{'d': {state}}}; None")

    for answer in two.answers(how):
        assert f'"d" is {said}' in answer.get("message", ""), answer
    assert shards(root, 1) == []


def test_parts_that_do_not_make_the_whole_are_refused(worlds: Worlds, root: Path) -> None:
    whole = "float32 [{}] of [8, 2]".format
    for second, shape in (((2, 0), "4, 2"), ((4, 0), "2, 2"), ((4, 1), "4, 1"), ((4, 0), "0, 2")):
        with pytest.raises(cairn.InvalidArgument, match='"w": expected parts that make the whole of '):
            check_tiled([[(("w", (0, 0)), whole("4, 2"))], [(("w", second), whole(shape))]])
    halves = [[(("w", (row, column)), whole("4, 1")) for row in (0, 4)] for column in (0, 1)]
    check_tiled([*halves, halves[0], [(("w", (8, 0)), whole("0, 2")), (("v", ()), "int64 [3]")]])

    world = worlds(2)
    part = "{'w': distribute_tensor(torch.ones(8, 1), mesh, [Shard(0)]), 'x': 1}"
    for answer in world.answers(
        f"s = {part}; s.pop('w') if rank else 0; cairn.dcp.save(s, storage_writer=cairn.dcp.StorageWriter(c, 1))"
    ):
        assert answer["error"] == "InvalidArgument" and "8 elements, found 4 in 1 parts" in answer["message"], answer
    # A process that saves alone what others have a part of.
    for how in ("cairn.dcp.save", "dcp.save"):
        alone = (
            f"{how}({{'w': distribute_tensor(torch.ones(8, 1), mesh, [Shard(0)])}}, no_dist=True, storage_writer=to)"
        )
        opened = f"d = cairn.Checkpointer({str(root / how)!r} + str(rank)); to = cairn.dcp.StorageWriter(d, 1)"
        for answer in world.answers(f"{opened}\n{alone}"):
            assert "8 elements, found 4 in 1 parts" in answer["message"], answer
    # The same memory, read in two ways.
    got = world.all("""
z = torch.tensor([[1 + 2j, 3 + 4j]], dtype=torch.complex64)
x, y = (DTensor.from_local(one, mesh, [Shard(0)], run_check=False) for one in (z, z.conj()))
cairn.dcp.save({"x": x, "y": y}, storage_writer=cairn.dcp.StorageWriter(c, 2))
got = load({"x": torch.zeros_like(x), "y": torch.zeros_like(x)}, 2)
[torch.equal(got["x"].to_local(), z), torch.equal(got["y"].to_local(), z.conj())]
""")
    assert got == [[True, True]] * 2
    end(world)


LOADS = {
    "DCP's planner": "dcp.load(into, storage_reader=cairn.dcp.StorageReader(c))",
    "by reader": "cairn.dcp.load(into, storage_reader=cairn.dcp.StorageReader(c))",
    "a plug's": "direct.load_into(c, into)",
    "all of it": "direct.load_all(c)",
}


@pytest.mark.parametrize("tells", [False, True])
def test_a_hole_that_was_saved_is_refused_by_loads_that_want_it(worlds: Worlds, tells: bool) -> None:
    """As checkpoints may have it that were saved before holes were refused. In these shard 0 `tells` nothing of others."""
    world = worlds(2)
    world.all(f"""
from cairn._dcp import direct, shares
shares.check_tiled = lambda _: None
if not {tells}: shares.WriteShares._rest = lambda *_: None
""")
    world.all("""
parts = {n: distribute_tensor(torch.arange(12.0).reshape(6, 2), mesh, [Shard(0)]) for n in ("w", "x")}
if rank: parts.pop("w")
cairn.dcp.save(parts | {"y": 1}, storage_writer=cairn.dcp.StorageWriter(c, 1))
def fresh(placed=Shard(0)): return {n: distribute_tensor(torch.full((6, 2), -1.0), mesh, [placed]) for n in ("w", "x")}
""")
    for what, load in LOADS.items():
        for of in ("fresh(Shard(1))", "{'w': torch.full((6, 2), -1.0)}"):
            said = '"w" was saved with a hole, or parts that overlap: expected'
            if tells and what != "DCP's planner":  # Nobody reads all headers.
                said = 'found no part of "w" with '
            for answer in world.answers(f"into = {of}; {load}"):
                assert said in answer["message"], (what, answer)
            if what != "DCP's planner":  # With which each rank refuses just before it reads.
                assert world.all("float(max(getattr(one, '_local_tensor', one).max() for one in into.values()))") == [
                    -1.0, -1.0,
                ]  # fmt: skip
    # Who wants none of what is not there gets what is.
    assert world.all("into = {'x': fresh()['x']}; load(into); into['x'].full_tensor().sum().item()") == [66.0] * 2
    world.all("into = fresh(); into = {'y': 0} if rank else {'w': into['w']}; load(into)")
    assert world.all("into['y'] if rank else into['w'].to_local().sum().item()") == [15.0, 1]


def test_every_cutting_of_dtensors_loads_into_every_other(worlds: Worlds, root: Path) -> None:
    cuttings = """
        torch.manual_seed(3)
        grid = init_device_mesh("cpu", (world // 2, 2)) if world > 1 else None
        half = init_device_mesh("cpu", (1,)) if world == 1 else None
        whole = {"even": torch.randn(8, 6), "uneven": torch.randn(5, 3, 2), "thin": torch.randn(1, 9),
                 "scalar": torch.randn(()), "ints": torch.arange(35).reshape(7, 5), "empty": torch.zeros(0, 4),
                 "bf16": torch.randn(9, 9).bfloat16()}
        def cut(how):
            found = {}
            for name, tensor in whole.items():
                dims = tensor.dim()
                if dims == 0 or how == "replicated":
                    found[name] = distribute_tensor(tensor, mesh, [Replicate()])
                elif how == "rows":
                    found[name] = distribute_tensor(tensor, mesh, [Shard(0)])
                elif how == "columns":
                    found[name] = distribute_tensor(tensor, mesh, [Shard(1)])
                elif how == "grid":
                    found[name] = distribute_tensor(tensor, grid, [Shard(0), Shard(1)])
                elif how == "hybrid":
                    found[name] = distribute_tensor(tensor, grid, [Replicate(), Shard(0)])
                else:
                    found[name] = tensor.clone()
            return found
        want = digests(whole)
        """
    cuttings = "\n".join(line[8:] for line in cuttings.splitlines())
    kinds = ["rows", "columns", "grid", "hybrid", "replicated", "plain"]
    four = worlds(4, "keep_last=0")
    assert four.all(cuttings) == [None] * 4
    for step, kind in enumerate(kinds):
        assert four.all(f'save(cut("{kind}"), {step}, "{"async" if step % 2 else "sync"}")') == [None] * 4
    elements = 48 + 30 + 9 + 1 + 35 + 0 + 81
    for step in range(len(kinds)):
        assert sum(sum(names.values()) for names in shards(root, step)) == elements, kinds[step]
    end(four)

    for ranks in (6, 1):
        world = worlds(ranks)
        assert world.all(cuttings) == [None] * ranks
        for step, saved in enumerate(kinds):
            for kind in kinds if ranks > 1 else ["rows", "plain"]:
                for planner in (None, "cairn.dcp.LoadPlanner()"):
                    call = f'load(blank(cut("{kind}")), {step}, {planner})'
                    assert world.all(f"got = digests({call}); got == want or got") == [True] * ranks, (saved, kind)
        end(world)
    # And alone, without torch.distributed, from the folder.
    torch.manual_seed(3)
    want = torch.randn(8, 6)
    for step in range(len(kinds)):
        state = {"even": torch.zeros(8, 6)}
        dcp.load(state, storage_reader=cairn.dcp.StorageReader(root, step), no_dist=True)
        assert torch.equal(state["even"], want)


def test_what_all_hold_alike_is_shared_out_by_size_and_anew_when_it_changes(worlds: Worlds, root: Path) -> None:
    world = worlds(3, "keep_last=0")
    world.all("state = {'all': {f'w{i}': torch.full((20_000 * (i + 1),), float(i)) for i in range(6)}, 'n': 5}")
    assert world.all("save(state, 1)") == [None] * 3
    assert world.all("save(state, 2)") == [None] * 3  # As agreed on before.
    world.all("state['all'].pop('w0'); state.update({f'mine{rank}': torch.full((10,), float(rank))} if rank else {})")
    assert world.all("save(state, 3)") == [None] * 3

    for step in (1, 2):
        assert [sum(names.values()) for names in shards(root, step)] == [140_000] * 3
    third = shards(root, 3)
    assert sorted(name for names in third for name in names) == ["all.w1", "all.w2", "all.w3", "all.w4", "all.w5",
                                                                 "mine1", "mine2"]  # fmt: skip
    assert [name in names for name, names in (("mine1", third[1]), ("mine2", third[2]))] == [True, True]
    got = world.all("got = load(blank(state), 3); [got['n'], got['all']['w5'][0].item()] + ([got[f'mine{rank}'][0].item()] if rank else [])")  # fmt: skip
    assert got == [[5, 5.0], [5, 5.0, 1.0], [5, 5.0, 2.0]]


def test_names_that_look_like_other_names_come_back(worlds: Worlds, root: Path) -> None:
    world = worlds(2)
    world.all("""
import numpy
one, two = torch.ones(2, dtype=torch.float64), numpy.full(2, 2.0)
whole = {"v/0": one} if rank else {"v": (two,), "w": two}
state = {**whole, "x": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]), "x~1": torch.full((3,), 5.0)}
target = lambda: {"v": None, "v/0": torch.zeros_like(one), "w": None, "x": torch.zeros(8), "x~1": torch.zeros(3)}
""")
    for step, how in enumerate(("sync", "async")):
        assert world.all(f'save(state, {step}, "{how}")') == [None] * 2
        got = world.all(f"got = load(target(), {step}); [got['v'][0].tolist(), got['v/0'].tolist(), got['w'].tolist(), "
                        "got['x'].tolist(), got['x~1'].tolist()]")  # fmt: skip
        assert got == [[[2.0] * 2, [1.0] * 2, [2.0] * 2, list(map(float, range(8))), [5.0] * 3]] * 2


@pytest.mark.parametrize("how", ["sync", "async"])
def test_what_a_collective_has_yet_to_fill_is_waited_for(worlds: Worlds, how: str) -> None:
    world = worlds(2)
    got = world.all(f"""
import torch.distributed._functional_collectives as later
a = later.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
d = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)]).redistribute(mesh, [Replicate()], async_op=True)
kinds = {{type(one).__name__ for one in (a, d._local_tensor)}}
save({{"a": a, "d": d}}, 1, "{how}")
got = load({{"a": torch.zeros(3), "d": torch.zeros(4)}}, 1)
[*kinds, got["a"].tolist(), got["d"].tolist()]
""")
    assert got == [["AsyncCollectiveTensor", [2.0] * 3, [0.0, 1.0, 2.0, 3.0]]] * 2
    partial = "DTensor.from_local(torch.ones(4), mesh, [Partial()])"  # Which a collective has yet to sum up.
    for call in (f"save({{'m': {{'d': {partial}}}}}, 2, '{how}')", f"load({{'d': {partial}}}, 1)"):
        for answer in world.answers(call):
            assert 'd": torch.distributed.checkpoint cannot plan' in answer["message"], answer
            assert "redistribute it first" in answer["message"]


@pytest.mark.parametrize("planner", ["", ", planner=cairn.dcp.{}Planner()"], ids=["no plan", "planned"])
def test_a_dtensor_of_scattered_rows_is_refused(worlds: Worlds, planner: str) -> None:
    """DCP would read rows 2 to 5 of 8 for 2, 3, 6 and 7, without a word."""
    world = worlds(2)
    kept = "distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])"
    scattered = "distribute_tensor(torch.arange(8.0).view(2, 4), mesh, [Shard(1)]).flatten()"
    world.all(f"kept = {kept}; flat = {scattered}; call = dict(process_group=saving)")
    if not world.all("any(getattr(one, 'split_factor', 1) > 1 for one in flat.placements)")[0]:
        pytest.skip("this torch gathers what it flattens")
    world.all("cairn.dcp.save({'w': kept}, storage_writer=cairn.dcp.StorageWriter(c, 1))")
    save, load = planner.format("Save"), planner.format("Load")
    for call in (
        f"cairn.dcp.save({{'w': flat}}, storage_writer=cairn.dcp.StorageWriter(c, 2), **call{save})",
        f"cairn.dcp.load({{'w': flat}}, storage_reader=cairn.dcp.StorageReader(c), **call{load})",
    ):
        for answer in world.answers(call):
            assert (
                '"w": its placements (_StridedShard(dim=0, sf=2),) over the mesh [0, 1] do not' in answer["message"]
            ), answer
    assert world.all("flat.to_local().tolist()") == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_dtensors_over_a_mesh_whose_ranks_torch_has_in_another_order_are_refused(worlds: Worlds) -> None:
    """Rank 0 has the first part, by torch's scatter, and the second, by the mesh, of which DCP asks."""
    world = worlds(2)
    world.all("from torch.distributed.device_mesh import DeviceMesh; back = DeviceMesh('cpu', torch.tensor([1, 0]))")
    world.all("odd, even = (distribute_tensor(torch.arange(4.0), back, [how]) for how in (Shard(0), Replicate()))")
    world.all("state = {'w': torch.arange(4.0)}; save(state, 1)")
    for call in ("save({'w': odd}, 2, 'sync')", "save({'w': odd}, 2)", "load({'w': odd}, 1)"):
        for answer in world.answers(call):
            assert "over the mesh [1, 0] do not give each rank a block" in answer["message"], answer
    world.all("save({'w': even}, 2); even.zero_(); load({'w': even}, 2)")
    assert world.all("even.to_local().tolist()") == [[0, 1, 2, 3]] * 2


def test_dtensors_that_shard_in_an_order_of_their_own_are_refused_and_fsdp_within_tensor_parallelism_is_not(
    worlds: Worlds,
) -> None:
    world = worlds(1)
    assert world.all("""
from types import SimpleNamespace
from cairn._dcp import blocks
from torch.distributed.tensor.placement_types import _StridedShard

def held(rows, coordinates, sizes, *placements):
    mesh = SimpleNamespace(size=sizes.__getitem__, get_local_rank=coordinates.__getitem__)
    return SimpleNamespace(device_mesh=mesh, shape=(rows,), placements=placements)

strided = _StridedShard(0, split_factor=2)
[blocks._own_indices(held(10, (row, column), (2, 2), strided, Shard(0)), 0).tolist()
 for row in (0, 1) for column in (0, 1)] + [blocks._own_indices(held(8, (1,), (2,), strided), 0).tolist()]
""") == [[[0, 1, 2], [5, 6, 7], [3, 4], [8, 9], [2, 3, 6, 7]]]
    world.all("""
mesh2 = init_device_mesh("cpu", (1, 1))
odd = distribute_tensor(torch.ones(4), mesh2, [Shard(0), Shard(0)])
if hasattr(odd._spec, "shard_order"):
    odd._spec.shard_order = (type(odd._spec.shard_order[0])(tensor_dim=0, mesh_dims=(1, 0)),)
""")
    if world.all("hasattr(odd._spec, 'shard_order')")[0]:
        for call in ("save({'w': odd}, 1, 'sync')", "save({'w': odd}, 1, 'async')"):
            (answer,) = world.answers(call)
            assert "do not give each rank a block of the whole" in answer["message"], answer


def test_a_target_whose_parts_are_copies_is_filled_as_a_whole_or_not_at_all(worlds: Worlds) -> None:
    """DCP plans a read for each part of the checkpoint's."""
    world = worlds(2)
    world.all("""
class Wrapping(torch.Tensor):
    @classmethod
    def of(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls.of(args[0].inner)
        if func is torch.ops.aten.copy_.default:
            return args[0].inner.copy_(args[1])
        return func(args[0].inner.clone(), *args[1:], **(kwargs or {}))
target = Wrapping.of(torch.zeros(4))
save({'w': distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])}, 1)
""")
    for answer in world.answers("load({'w': target}, 1, cairn.dcp.LoadPlanner())"):
        assert "Wrapping has no memory of its own, and would be filled in parts" in answer["message"], answer
    world.all("_ = load({'w': target}, 1)")
    assert world.all("target.inner.tolist()") == [[0, 1, 2, 3]] * 2


def test_a_plan_that_fails_on_one_rank_is_no_checkpoint(worlds: Worlds, root: Path) -> None:
    world = worlds(2)
    world.all("state = {'w': torch.ones(4), 'x': 1}")
    assert world.all("save(state, 1)") == [None] * 2
    world.all("""
class Bad(cairn.dcp.SavePlanner):
    def create_local_plan(self):
        if rank == 1: raise RuntimeError("no plan of mine")
        return super().create_local_plan()
writer = cairn.dcp.StorageWriter(c, 2)
""")
    for how in ("sync", "async"):
        for answer in world.answers(f'save(state, 2, "{how}", Bad())'):
            assert answer["error"] == "CheckpointException" and "no plan of mine" in answer["message"]
    world.all("import gc; gc.collect()")

    assert world.all("save(state, 3)") == [None] * 2
    world.all("c.close()")
    with cairn.Checkpointer(root, read_only=True) as reader:
        assert reader.steps() == [1, 3]


def test_a_value_that_one_rank_cannot_keep_fails_all_by_name(worlds: Worlds) -> None:
    world = worlds(2)
    for how in ("sync", "async"):
        answers = world.answers(f'save({{"w": torch.ones(4), "v": object() if rank else 1}}, 1, "{how}")')
        # Staging does not know the planner, and compares first.
        said = (
            "v: a value of type object cannot be kept"
            if how == "sync"
            else '"v": rank 0 has 1, rank 1 has a value of type object'
        )
        assert all(said in answer["message"] for answer in answers), answers
    assert world.all('save({"w": torch.ones(4)}, 1)') == [None] * 2


def test_what_a_plug_cannot_keep_fails_all_by_name_and_is_not_pickled(worlds: Worlds) -> None:
    world = worlds(2)
    world.all(
        """
        from cairn._dcp import direct
        class Refused:
            def __reduce__(self):
                raise AssertionError("pickled")
        def start(state, values):
            return direct.start_save_of(c, 1, lambda: (state, values))
    """.replace("\n        ", "\n")
    )
    for state, values in (('{"v": Refused()}', "{}"), ("{}", '{"v": [Refused()]}')):
        answers = world.answers(f'start({{"w": torch.ones(4)}} | ({state} if rank == 0 else {{}}), {values})')
        assert all("Refused cannot be kept" in answer.get("message", "") for answer in answers), answers
        assert answers[0]["error"] == "InvalidArgument", answers
        assert answers[1]["message"].startswith("rank 0: "), answers
    assert world.all('start({"w": torch.ones(4)}, {"v": [1]}).wait()') == [None] * 2


def test_a_tensor_that_cannot_be_staged_fails_all_at_once(worlds: Worlds) -> None:
    world = worlds(2, timeout=600)
    answers = world.answers(
        'save({"w": torch.ones(4), "s": torch.ones(4).to_sparse()} if rank else {"w": torch.ones(4)}, 1)'
    )
    assert "sparse" in answers[1]["message"]
    assert "rank 1: " in answers[0]["message"]

    assert world.all('save({"w": torch.ones(4)}, 1)') == [None] * 2


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("torch.ones(4)", "torch.ones(5)", "float32 [4] on rank 0 and float32 [5] on rank 1"),
        ("torch.ones(4)", "torch.ones(2, 2)", "float32 [4] on rank 0 and float32 [2, 2] on rank 1"),
        ("torch.ones(4)", "torch.ones(4).int()", "float32 [4] on rank 0 and int32 [4] on rank 1"),
        ("torch.ones(4)", "1", "float32 [4] on rank 0 and a plain value on rank 1"),
    ],
)
def test_unlike_replicas_fail_alike(worlds: Worlds, first: str, second: str, told: str) -> None:
    world = worlds(2)
    for how in ("sync", "async"):
        answers = world.answers(f'save({{"v": 1, "w": {second} if rank else {first}}}, 1, "{how}")')
        assert all(f'"w" is {told}: what ranks hold' in answer["message"] for answer in answers), answers
    assert world.all('save({"v": 1, "w": torch.ones(4)}, 1)') == [None] * 2


def test_a_save_that_fails_on_one_rank_before_the_plan_is_told_to_all_and_costs_the_group_nothing(
    worlds: Worlds,
) -> None:
    world = worlds(2, pg_timeout=600)
    world.all(
        "import resource\ndef limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))"
    )
    world.all("state = {'w': distribute_tensor(torch.arange(6_000_000.0), mesh, [Shard(0)]), 'x': torch.ones(3)}")
    world[1].run("limit(1 << 20)")

    answers = world.answers("save(state, 1)")

    assert all("RLIMIT_FSIZE allows 1048576" in answer["message"] for answer in answers), answers
    world[1].run("limit(resource.RLIM_INFINITY)")
    assert world.all("save(state, 1)") == [None] * 2
    # In the call, after the ranks have agreed on who writes what.
    world[0].run(
        "import cairn._tree.tensors as given; streams = given.current_streams; given.current_streams = lambda _: 1 / 0"
    )
    answers = world.answers("save(state, 2)")
    assert all("division by zero" in answer["message"] for answer in answers), answers
    world[0].run("given.current_streams = streams; None")
    assert world.all("save(state, 2)") == [None] * 2


def test_a_save_that_a_rank_left_out_shifts_nothing_and_the_group_lives(worlds: Worlds) -> None:
    world = worlds(2, timeout=3)
    assert world.all("state = {'w': torch.ones(4)}; save(state, 1)") == [None] * 2
    assert world.answers("save(state, 2) if rank == 0 else None")[0]["error"] == "DeadlineExceeded"

    assert world.all("save(state, 3); c.steps()") == [[1, 3]] * 2
    assert world.all("dist.barrier()") == [None] * 2


def test_a_rank_with_another_step_or_none_fails_the_save_of_all_at_once(worlds: Worlds) -> None:
    world = worlds(2, timeout=600)
    save = "cairn.dcp.save({{'w': torch.ones(4)}}, storage_writer=cairn.dcp.StorageWriter(c, {}))".format
    for step, said in (
        ("5 + rank", "step 6"),
        ("None if rank else 5", "missing"),
        ("5 if rank else None", "missing"),
    ):
        for answer in world.answers(save(step)):
            assert answer["error"] == "InvalidArgument" and said in answer["message"], answer
    assert world.all(save(7)) == [None] * 2


def test_groups_that_differ_are_refused(worlds: Worlds, root: Path) -> None:
    world = worlds(2)
    alone = "dcp.save({'w': torch.ones(4)}, storage_writer=cairn.dcp.StorageWriter(d, 1), no_dist=NO)"
    opened = f'd = cairn.Checkpointer({str(root / "other")!r} + str(rank), host_memory="8MiB", chunk="1MiB")'
    world.all(opened)
    for answer in world.answers(alone.replace("NO", "False")):
        assert "give both the same group" in answer["message"]
    for answer in world.answers(
        'dcp.save({"w": torch.ones(4)}, storage_writer=cairn.dcp.StorageWriter(c, 1), no_dist=True)'
    ):
        assert "give both the same group" in answer["message"]
    assert world.all(alone.replace("NO", "True") + "\nNone") == [None] * 2


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("message", ["dcp", "attempt", "prepared"])
def test_a_rank_that_is_killed_leaves_the_earlier_checkpoint_and_the_others_an_error(
    worlds: Worlds, root: Path, victim: int, message: str
) -> None:
    world = worlds(2, timeout=6, pg_timeout=6)
    world.all("state = {'w': distribute_tensor(torch.arange(5000.0), mesh, [Shard(0)]), 'x': torch.ones(3)}")
    assert world.all("save(state, 1)") == [None] * 2
    other = world[1 - victim]
    world[victim].run(f'hold("{message}")')
    world[victim].start("save(state, 2)")
    other.start("save(state, 2)")
    if message == "prepared":
        assert other.rank == 1 - victim

    world[victim].kill()

    answer = other.answer()
    assert "error" in answer, answer
    with cairn.Checkpointer(root, read_only=True) as reader:
        assert reader.steps() == [1]
        reader.verify(1)


def test_ranks_that_see_different_newest_checkpoints_are_told(worlds: Worlds, root: Path) -> None:
    world = worlds(2)
    assert world.all("save({'w': torch.ones(4)}, 1)") == [None] * 2
    assert world.all("save({'w': torch.ones(4)}, 2)") == [None] * 2
    for answer in world.answers("load({'w': torch.zeros(4)}, rank + 1, cairn.dcp.LoadPlanner())"):
        assert "ranks found different checkpoints, rank 0 step 1 and rank 1 step 2" in answer["message"]
    for answer in world.answers("load({'w': torch.zeros(4)}, rank + 1)"):
        assert "restore: expected step 1, as on rank 0; found step 2" in answer["message"]
