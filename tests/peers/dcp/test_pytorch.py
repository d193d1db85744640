"""What PyTorch's own tests of torch.distributed.checkpoint (test/distributed/checkpoint) ask of a storage, over cairn.dcp.

Their tests are not in torch's wheel, and most want GPUs or DCP's own files. So what each asks is asked here, in our words,
of four real processes over gloo; the name of the file that it comes from stands above each test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from dcp_worlds import PRELUDE
from ranks import World

Ask = Callable[[str], None]
RANKS = 4
MORE = """
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, set_model_state_dict,
                                                     set_optimizer_state_dict)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import io

step = 0
def next_step():
    global step
    step += 1
    return step

def through(state, target, planner=None, load_planner=None, how="sync"):
    "Saves a state and loads it into another."
    at = next_step()
    save(state, at, how, planner)
    return load(target, at, load_planner)

def fails(call, message):
    try:
        call()
    except BaseException as error:
        return message in str(error) or str(error)
    return "no error"

class Sequence(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.net1, self.net2, self.net3 = (torch.nn.Linear(a, b) for a, b in ((8, 16), (16, 32), (32, 8)))
    def forward(self, x):
        return self.net3(self.net2(self.net1(x).relu()).relu())

def train(model, optimizer, steps=2):
    torch.manual_seed(0)
    for _ in range(steps):
        loss = model(torch.rand(8, 8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()

def sharded(seed, how="fsdp"):
    model = Sequence(seed)
    if how == "tp":
        model = parallelize_module(model, mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()})
    elif how == "2d":
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, grid["tp"], {"net1": ColwiseParallel(), "net2": RowwiseParallel()})
        fully_shard(model, mesh=grid["dp"])
    elif how == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    else:
        fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(RANKS, tmp_path_factory.mktemp("dcp") / "run")
    world.open("keep_last=0", 120)
    assert world.all(PRELUDE.replace("PG_TIMEOUT", "120") + MORE) == [None] * RANKS
    yield world
    world.end()


@pytest.fixture
def ask(four: World) -> Ask:
    """Runs it on each rank: its last line must be True."""

    def run(code: str) -> None:
        assert four.all("\n".join(line[8:] for line in code.splitlines())) == [True] * RANKS

    return run


# e2e/test_e2e_save_and_load.py


@pytest.mark.parametrize("kind", ["fsdp", "hsdp", "tp", "2d"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_training_goes_on_as_if_never_interrupted(ask: Ask, kind: str, how: str) -> None:
    ask(f"""
        model, optimizer = sharded(1, "{kind}")
        train(model, optimizer)
        a, b = get_state_dict(model, optimizer)
        other, other_optimizer = sharded(2, "{kind}")
        train(other, other_optimizer, 1)
        e, f = get_state_dict(other, other_optimizer)
        got = through({{"model": a, "optim": b}}, {{"model": e, "optim": f}}, how="{how}")
        set_state_dict(other, other_optimizer, model_state_dict=got["model"], optim_state_dict=got["optim"])
        one, two = train(model, optimizer, 1), train(other, other_optimizer, 1)
        one == two and digests(get_state_dict(model, optimizer)[0]) == digests(get_state_dict(other, other_optimizer)[0])
        """)


def test_objects_are_loaded_in_place_and_values_are_replaced(ask: Ask) -> None:
    ask("""
        class Counter(Stateful):
            def __init__(self): self.n, self.loads = 3 * rank, 0
            def state_dict(self): return {"n": 7}
            def load_state_dict(self, state): self.n, self.loads = state["n"], self.loads + 1
        counter = Counter()
        state = {"counter": counter, "plain": {"t": torch.ones(2, 3), "list": [1, 2, 3]}}
        got = through({"counter": counter, "plain": {"t": torch.ones(2, 3), "list": [4, 5, 6]}}, state)
        got["counter"] is counter and (counter.n, counter.loads) == (7, 1) and got["plain"]["list"] == [4, 5, 6]
        """)


def test_a_train_state_with_a_stream_of_bytes(ask: Ask) -> None:
    ask("""
        losses = io.BytesIO()
        torch.save([0.5, 0.25], losses)
        got = through({"step": torch.tensor(3), "losses": losses}, {"step": torch.tensor(0), "losses": io.BytesIO()})
        got["losses"].seek(0)
        got["step"].item() == 3 and torch.load(got["losses"]) == [0.5, 0.25]
        """)


def test_a_part_of_the_state_is_loaded(ask: Ask) -> None:
    ask("""
        model, optimizer = sharded(1)
        train(model, optimizer)
        a, b = get_state_dict(model, optimizer)
        at = next_step()
        save({"model": a, "optim": b}, at)
        other, _ = sharded(2)
        got = load({"model": get_model_state_dict(other)}, at)
        set_model_state_dict(other, got["model"])
        digests(get_model_state_dict(other)) == digests(a)
        """)


def test_a_part_is_built_from_its_key_alone(ask: Ask) -> None:
    ask("""
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
        at = next_step()
        save({"model": {"w": torch.arange(6.0)}, "optim": {"m": torch.ones(3), "lr": 0.5}}, at)
        reader = cairn.dcp.StorageReader(c, at)
        got = _load_state_dict_from_keys("optim", storage_reader=reader)
        list(got) == ["optim"] and got["optim"]["lr"] == 0.5 and got["optim"]["m"].tolist() == [1.0] * 3
        """)


def test_keys_in_another_order_on_each_rank_do_not_hang(ask: Ask) -> None:
    ask("""
        keys = [f"k{(i + rank) % 4}" for i in range(4)]
        got = through({key: torch.full((2,), float(key[1:])) for key in keys}, {key: torch.zeros(2) for key in keys[::-1]})
        all(value.tolist() == [float(key[1:])] * 2 for key, value in got.items())
        """)


def test_a_checkpoint_is_overwritten(ask: Ask) -> None:
    ask("""
        at = next_step()
        save({"w": torch.zeros(4)}, at)
        save({"w": torch.ones(4)}, at, "sync", replace=True)
        load({"w": torch.full((4,), 9.0)}, at)["w"].tolist() == [1.0] * 4
        """)


def test_an_empty_state(ask: Ask) -> None:
    ask("""
        through({}, {}) == {}
        """)


def test_what_was_staged_does_not_change_with_the_model(ask: Ask) -> None:
    ask("""
        weights, at = torch.full((100_000,), float(1 + rank)), next_step()
        writer = cairn.dcp.StorageWriter(c, at)
        response = dcp.async_save({f"w{rank}": weights}, storage_writer=writer, process_group=saving)
        getattr(response, "staging_completion", response).result()
        weights.zero_()
        getattr(response, "upload_completion", response).result()
        bool((load({f"w{rank}": torch.zeros(100_000)}, at)[f"w{rank}"] == 1 + rank).all())
        """)


# test_checkpoint.py


@pytest.mark.parametrize("where", ["set_up_storage_writer", "prepare_local_plan"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_failure_on_one_rank_of_a_save_is_told_to_all(ask: Ask, where: str, victim: int) -> None:
    ask(f"""
        class Faulty(cairn.dcp.StorageWriter):
            def {where}(self, *args, **kwargs):
                if rank == {victim}: raise ValueError("rank {victim} fails")
                return super().{where}(*args, **kwargs)
        at = next_step()
        told = fails(lambda: dcp.save({{"w": torch.ones(3)}}, storage_writer=Faulty(c, at)), "rank {victim} fails")
        told if told is not True else at not in c.steps()
        """)


def test_a_write_that_fails_on_one_rank_is_told_to_all(ask: Ask) -> None:
    ask("""
        class Odd(dcp.DefaultSavePlanner):
            def resolve_data(self, item):
                if rank == 2: raise ValueError("rank 2 fails")
                return super().resolve_data(item)
        at = next_step()
        told = fails(lambda: save({f"w{rank}": torch.ones(3)}, at, "sync", Odd()), "rank 2 fails")
        told if told is not True else at not in c.steps()
        """)


def test_a_global_plan_that_fails_is_told_to_all(ask: Ask) -> None:
    ask("""
        class Faulty(cairn.dcp.StorageWriter):
            def prepare_global_plan(self, plans): raise ValueError("no plan")
        at = next_step()
        told = fails(lambda: dcp.save({"w": torch.ones(3)}, storage_writer=Faulty(c, at)), "no plan")
        told if told is not True else at not in c.steps()
        """)


@pytest.mark.parametrize("where", ["set_up_storage_reader", "prepare_local_plan", "read_data"])
def test_a_failure_on_one_rank_of_a_load_is_told_to_all(ask: Ask, where: str) -> None:
    ask(f"""
        class Faulty(cairn.dcp.StorageReader):
            def {where}(self, *args, **kwargs):
                if rank == 1: raise ValueError("rank 1 fails")
                return super().{where}(*args, **kwargs)
        at = next_step()
        save({{"w": torch.ones(3)}}, at)
        told = fails(lambda: dcp.load({{"w": torch.zeros(3)}}, storage_reader=Faulty(c, at)), "rank 1 fails")
        told if told is not True else load({{"w": torch.zeros(3)}}, at)["w"].tolist() == [1.0] * 3
        """)


def test_the_metadata_names_chunks_and_values(ask: Ask) -> None:
    ask("""
        at = next_step()
        save({"d": distribute_tensor(torch.rand(8, 4), mesh, [Shard(0)]), "r": torch.rand(4), "b": [1, 2]}, at)
        found = cairn.dcp.StorageReader(c, at).read_metadata().state_dict_metadata
        d, r = found["d"], found["r"]
        ([len(d.chunks), list(d.size), len(r.chunks), r.properties.dtype] == [4, [8, 4], 1, torch.float32]
         and isinstance(r, TensorStorageMetadata) and isinstance(found["b.0" if "b.0" in found else "b"], BytesStorageMetadata))
        """)


# test_file_system_checkpoint.py, test_file_system_checkpoint_cpu.py


def test_sharded_tensors_change_their_sharding(ask: Ask) -> None:
    ask("""
        def spec(dim, order): return ChunkShardingSpec(dim, [f"rank:{one}/cpu" for one in order])
        def filled(at):
            made = sharded_tensor.zeros(at, 10, 12)
            for shard in made.local_shards():
                rows, columns = shard.metadata.shard_offsets
                shard.tensor.copy_(whole[rows : rows + shard.tensor.size(0), columns : columns + shard.tensor.size(1)])
            return made
        whole = torch.arange(120.0).reshape(10, 12)
        grid = EnumerableShardingSpec([ShardMetadata([row, column], [5, 6], f"rank:{2 * (row > 0) + (column > 0)}/cpu")
                                       for row in (0, 5) for column in (0, 6)])
        specs, same = [spec(0, range(4)), spec(0, [3, 2, 1, 0]), spec(1, range(4)), grid], True
        for one in specs:
            at = next_step()
            save({"s": filled(one)}, at)
            for other in specs:
                got = load({"s": sharded_tensor.zeros(other, 10, 12)}, at)["s"]
                same &= all(torch.equal(a.tensor, b.tensor) for a, b in zip(got.local_shards(), filled(other).local_shards()))
            same &= torch.equal(load({"s": torch.zeros(10, 12)}, at)["s"], whole)
        same
        """)


# test_dtensor_checkpoint.py, test_dtensor_resharding.py


def test_dtensors_on_a_part_of_the_ranks(ask: Ask) -> None:
    ask("""
        half = DeviceMesh("cpu", [1, 3])
        def made(value): return DTensor.from_local(torch.full((2, 3), value), half, [Shard(0)], run_check=False)
        got = through({"sub": made(1.0 + rank), "all": torch.ones(2)}, {"sub": made(0.0), "all": torch.zeros(2)})
        got["all"].tolist() == [1.0, 1.0] and (rank % 2 == 0 or got["sub"].to_local().tolist() == [[1.0 + rank] * 3] * 2)
        """)


def test_dtensors_from_one_dimension_to_two_and_back(ask: Ask) -> None:
    ask("""
        grid = init_device_mesh("cpu", (2, 2))
        whole = torch.arange(16 * 6.0).reshape(16, 6)
        cuts = [(mesh, [Shard(0)]), (mesh, [Shard(1)]), (mesh, [Replicate()]), (grid, [Shard(0), Shard(1)]),
                (grid, [Shard(1), Shard(0)]), (grid, [Replicate(), Shard(0)]), (grid, [Shard(0), Shard(0)])]
        same = True
        for cut in cuts:
            at = next_step()
            save({"t": distribute_tensor(whole, *cut)}, at)
            for other in cuts:
                got = load({"t": distribute_tensor(torch.zeros_like(whole), *other)}, at)["t"]
                same &= torch.equal(got.full_tensor(), whole)
        same
        """)


def test_dtensors_with_fewer_rows_than_ranks(ask: Ask) -> None:
    ask("""
        whole = torch.arange(6.0).reshape(2, 3)
        got = through({"t": distribute_tensor(whole, mesh, [Shard(0)])}, {"t": distribute_tensor(whole * 0, mesh, [Shard(1)])})
        torch.equal(got["t"].full_tensor(), whole)
        """)


# test_planner.py


def test_a_missing_key_fails_unless_partial_loads_are_allowed(ask: Ask) -> None:
    ask("""
        at = next_step()
        save({"w": torch.ones(2)}, at)
        class Partial(cairn.dcp.LoadPlanner):
            def __init__(self): super().__init__(allow_partial_load=True)
        told = fails(lambda: load({"w": torch.zeros(2), "new": torch.zeros(2)}, at), "Missing key in checkpoint state_dict: new")
        got = load({"w": torch.zeros(2), "new": torch.full((2,), 5.0)}, at, Partial())
        told if told is not True else (got["w"].tolist(), got["new"].tolist()) == ([1.0, 1.0], [5.0, 5.0])
        """)


def test_another_size_fails(ask: Ask) -> None:
    ask("""
        fails(lambda: through({"w": torch.ones(2)}, {"w": torch.zeros(3)}), "Size mismatch")
        """)


# test_nested_dict.py, test_traverse.py


def test_nested_containers_come_back(ask: Ask) -> None:
    ask("""
        def nested(value): return {"a": [torch.full((2,), value), {"b": [value, torch.full((1,), value)]}], "c": {"d": {}}, "e": ()}
        got = through(nested(3.0), nested(0.0))
        digests({"x": got["a"][0], "y": got["a"][1]["b"][1]}) == digests({"x": torch.full((2,), 3.0), "y": torch.full((1,), 3.0)}) and got["a"][1]["b"][0] == 3.0
        """)


# e2e/test_pipeline.py


def test_each_stage_of_a_pipeline_saves_its_own_and_reads_anothers(ask: Ask) -> None:
    ask("""
        other = (rank + 1) % world
        got = through({f"stage{rank}": {"w": torch.full((3,), float(rank))}}, {f"stage{other}": {"w": torch.zeros(3)}})
        got[f"stage{other}"]["w"].tolist() == [float(other)] * 3
        """)


# e2e/test_fine_tuning.py


def test_a_pretrained_body_is_loaded_below_a_new_head(ask: Ask) -> None:
    ask("""
        model, _ = sharded(1)
        at = next_step()
        save({"model": get_model_state_dict(model)}, at)
        tuned, _ = sharded(2)
        before = digests(get_model_state_dict(tuned))
        body = {key: value for key, value in get_model_state_dict(tuned).items() if not key.startswith("net3")}
        load({"model": body}, at)
        after, want = digests(get_model_state_dict(tuned)), digests(get_model_state_dict(model))
        all(after[key] == (before if key.startswith("/net3") else want)[key] for key in after)
        """)


# test_optimizer_frozen_state.py, test_optimizer_partial_state.py


def test_an_optimizer_whose_parameters_are_frozen_in_part(ask: Ask) -> None:
    ask("""
        def made(seed):
            model = Sequence(seed)
            model.net1.requires_grad_(False)
            fully_shard(model, mesh=mesh)
            optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
            train(model, optimizer)
            return model, optimizer
        model, optimizer = made(1)
        other, other_optimizer = made(2)
        a, b = get_state_dict(model, optimizer)
        e, f = get_state_dict(other, other_optimizer)
        got = through({"model": a, "optim": b}, {"model": e, "optim": f})
        set_state_dict(other, other_optimizer, model_state_dict=got["model"], optim_state_dict=got["optim"])
        digests(get_state_dict(other, other_optimizer)[0]) == digests(a) and train(model, optimizer, 1) == train(other, other_optimizer, 1)
        """)


# test_hsdp_checkpoint.py, test_fsdp_tp_checkpoint_conversion.py


@pytest.mark.parametrize(("saved", "loaded"), [("hsdp", "fsdp"), ("fsdp", "2d"), ("2d", "tp"), ("tp", "hsdp")])
def test_a_model_changes_how_it_is_parallel(ask: Ask, saved: str, loaded: str) -> None:
    ask(f"""
        model, _ = sharded(1, "{saved}")
        other, _ = sharded(2, "{loaded}")
        got = through({{"model": get_model_state_dict(model)}}, {{"model": get_model_state_dict(other)}})
        set_model_state_dict(other, got["model"])
        digests(get_model_state_dict(other)) == digests(get_model_state_dict(model))
        """)
