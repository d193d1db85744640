"""cairn.dcp in one process; test_dcp_ranks.py has the others. Real torch.distributed.checkpoint throughout."""

from __future__ import annotations

import enum
import gc
import json
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cairn
import numpy
import pytest
import safetensors
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
Make = Callable[..., cairn.Checkpointer]
Saver = Callable[..., None]
PLANNERS = {"typed": (cairn.dcp.SavePlanner, cairn.dcp.LoadPlanner), "default": (None, None)}


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: Any
    y: Any


class Custom:
    """What no typed JSON holds."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)

    __hash__ = None  # type: ignore[assignment]


def captured(response: Any) -> None:
    """Waits until what async_save reads may change: before torch 2.9 it may once async_save has returned."""
    if hasattr(state_dict_saver, "AsyncSaveResponse"):
        assert response.staging_completion.result(60) is None


def uploaded(response: Any) -> None:
    """Waits for async_save's end; before torch 2.9 it returns that future alone."""
    getattr(response, "upload_completion", response).result(60)


def sync(checkpointer: cairn.Checkpointer, step: int, state: Any, planner: Any = None) -> None:
    dcp.save(state, storage_writer=cairn.dcp.StorageWriter(checkpointer, step), planner=planner)


def asynchronous(checkpointer: cairn.Checkpointer, step: int, state: Any, planner: Any = None) -> None:
    writer = cairn.dcp.StorageWriter(checkpointer, step)
    response = dcp.async_save(state, storage_writer=writer, planner=planner)
    captured(response)
    uploaded(response)


def load(source: Any, state: Any, step: int | None = None, planner: Any = None) -> Any:
    dcp.load(state, storage_reader=cairn.dcp.StorageReader(source, step), planner=planner)
    return state


@pytest.fixture(params=[sync, asynchronous], ids=["sync", "async"])
def save(request: pytest.FixtureRequest) -> Iterator[Saver]:
    yield request.param


def state() -> dict[str, Any]:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optim": optimizer.state_dict(),
        "epoch": 3,
        "nested": {"inf": math.inf, "long": 2**80, "text": "é", "none": None, "list": [1, (2, b"3")],
                   "many": [*range(-5, 2000)]},
        "numpy": numpy.random.default_rng(1).normal(size=(3, 4)),
        "rng": numpy.random.get_state(),
        "views": {"t": torch.arange(12.0).reshape(3, 4).t(), "one": torch.tensor(2.5), "empty": torch.zeros(0, 3),
                  "bf16": torch.ones(3).bfloat16(), "expanded": torch.ones(1, 3).expand(4, 3)},
    }  # fmt: skip


def blank(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: blank(child) for key, child in value.items()}
    return torch.full_like(value, 9).contiguous() if isinstance(value, torch.Tensor) else "?"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and numpy.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("loader", PLANNERS)
@pytest.mark.parametrize("saver", PLANNERS)
def test_everything_comes_back(make: Make, root: Path, save: Saver, saver: str, loader: str) -> None:
    save_planner, load_planner = PLANNERS[saver][0], PLANNERS[loader][1]
    want = state()
    # What DCP flattens, lists among it, it wants to find in the state that it loads into.
    got = blank(want)
    got["optim"]["param_groups"] = [{**group, "lr": 1.0} for group in want["optim"]["param_groups"]]
    got["nested"]["list"], got["rng"] = want["nested"]["list"], want["rng"]
    checkpointer = make()

    save(checkpointer, 1, want, save_planner and save_planner())
    load(checkpointer, got, planner=load_planner and load_planner())

    assert same(got, want)
    checkpointer.verify(1)
    shard = next(root.glob("step-*/shard-*"))
    with safetensors.safe_open(shard, "pt") as file:
        assert torch.equal(file.get_tensor("model.0.weight"), want["model"]["0.weight"].cpu())
        # No pickle, whatever the planner.
        assert json.loads(json.loads(file.metadata()["cairn.values"])["dcp"]["json"])["pickled"] == []


@pytest.mark.usefixtures("device")
def test_the_tensors_themselves_are_read_and_may_change_once_captured(make: Make) -> None:
    checkpointer = make()
    weights = torch.arange(6_000_000.0)  # 24 MB, three times the pool.
    want = weights.clone()

    response = dcp.async_save({"w": weights}, storage_writer=cairn.dcp.StorageWriter(checkpointer, 1))
    captured(response)
    weights.zero_()
    uploaded(response)

    assert torch.equal(load(checkpointer, {"w": weights})["w"], want)


def test_what_was_saved_is_let_go_once_it_is_durable(make: Make, save: Saver) -> None:
    checkpointer = make()
    weights = torch.ones(100_000)
    alive = weakref.ref(weights)
    save(checkpointer, 1, {"w": weights})
    del weights
    for thread in threading.enumerate():
        if thread.name.startswith(("AsyncCheckpointExecutor", "cairn-stage")):
            thread.join(60)
    gc.collect()
    assert alive() is None


class Late(cairn.dcp.SavePlanner):
    """Plans once it may, as DCP's thread on a busy machine."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        assert self.may.wait(60)
        super().set_up_planner(state_dict, storage_meta, is_coordinator)


def test_the_state_dict_itself_may_change_once_captured(make: Make) -> None:
    checkpointer = make()
    inner = {"exp": torch.ones(3), "step": 1, "list": [1, 2]}  # As optimizers whose state_dict() is their state.
    planner = Late()
    response = dcp.async_save(
        {"optim": {"state": inner}}, storage_writer=cairn.dcp.StorageWriter(checkpointer, 1), planner=planner
    )
    response.staging_completion.result(60)
    inner.update(exp=torch.zeros(3), step=2, more=torch.zeros(3))
    inner["list"].append(3)  # type: ignore[attr-defined]
    planner.may.set()
    response.upload_completion.result(60)

    got = load(checkpointer, {"optim": {"state": {"exp": torch.zeros(3), "step": 0, "list": []}}})
    assert same(got, {"optim": {"state": {"exp": torch.ones(3), "step": 1, "list": [1, 2]}}})


@torch.no_grad()
def test_a_module_is_asked_at_each_save(make: Make, save: Saver) -> None:
    module = torch.nn.Linear(30, 30)
    module.register_buffer("buf", torch.zeros(3))
    changes: dict[str, Callable[[], object]] = {
        "assign": lambda: module.load_state_dict({n: t + 1 for n, t in module.state_dict().items()}, assign=True),
        "swapped": lambda: torch.utils.swap_tensors(module.weight, torch.nn.Parameter(module.weight + 1)),
        "data": lambda: setattr(module.weight, "data", module.weight.data + 1),
        "new": lambda: setattr(module, "weight", torch.nn.Parameter(module.weight + 1)),
        "buffer": lambda: setattr(module, "buf", module.buf + 1),
        "dtype": lambda: module.to(torch.bfloat16),
    }
    checkpointer, held = make(keep_last=0), {"m": module}
    for step, (how, change) in enumerate(changes.items()):
        change()
        wanted = dict(module.state_dict())
        save(checkpointer, 2 * step, held)
        assert same(load(checkpointer, {"m": blank(wanted)}, 2 * step), {"m": wanted}), how
        checkpointer.save(2 * step + 1, held)
        assert same(dict(checkpointer.load()["m"]), wanted), how


def test_protect_fences_what_async_save_reads(make: Make) -> None:
    checkpointer = make()
    weights = torch.nn.Parameter(torch.arange(6_000_000.0))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    checkpointer.protect(optimizer)
    for step in range(3):
        want = weights.detach().clone()
        response = dcp.async_save({"w": weights}, storage_writer=cairn.dcp.StorageWriter(checkpointer, step))
        weights.grad = torch.ones_like(weights)
        optimizer.step()
        uploaded(response)
        assert torch.equal(load(checkpointer, {"w": torch.zeros_like(want)})["w"], want)


def test_the_step_may_be_the_checkpoint_id(make: Make) -> None:
    checkpointer = make()
    for step in (4, "5"):
        dcp.save({"x": 1}, checkpoint_id=step, storage_writer=cairn.dcp.StorageWriter(checkpointer))
    assert checkpointer.steps() == [4, 5]
    got = {"x": 0}
    dcp.load(got, checkpoint_id=4, storage_reader=cairn.dcp.StorageReader(checkpointer))
    assert got == {"x": 1}

    with pytest.raises(cairn.InvalidArgument, match="expected the step, a number of 0 or more, found 'run/step-4'"):
        dcp.save({"x": 1}, checkpoint_id="run/step-4", storage_writer=cairn.dcp.StorageWriter(checkpointer))
    if torch.torch_version.TorchVersion(torch.__version__) < "2.10":
        # There async_save gives the writer the checkpoint_id before it stages.
        for step, writer in ((6, cairn.dcp.StorageWriter(checkpointer)), (7, cairn.dcp.StorageWriter(checkpointer, 6))):
            uploaded(dcp.async_save({"x": 1}, checkpoint_id=step, storage_writer=writer))
            assert checkpointer.latest() == step
    else:
        with pytest.raises(cairn.InvalidArgument, match=r"the step is missing: StorageWriter\(checkpointer, step\)"):
            dcp.async_save({"x": 1}, checkpoint_id=6, storage_writer=cairn.dcp.StorageWriter(checkpointer))
        response = dcp.async_save({"x": 1}, checkpoint_id=7, storage_writer=cairn.dcp.StorageWriter(checkpointer, 6))
        with pytest.raises(cairn.InvalidArgument, match="checkpoint_id: step 7, but step 6 has been staged"):
            uploaded(response)
    assert cairn.dcp.StorageWriter.validate_checkpoint_id("12")
    assert not cairn.dcp.StorageWriter.validate_checkpoint_id("/mnt/12")


def test_a_committed_step_is_refused_or_replaced(make: Make, save: Saver) -> None:
    checkpointer = make()
    save(checkpointer, 1, {"x": 1})
    with pytest.raises((cairn.AlreadyExists, CheckpointException), match="step 1"):
        save(checkpointer, 1, {"x": 2})
    dcp.save({"x": 3}, storage_writer=cairn.dcp.StorageWriter(checkpointer, 1, replace=True))
    assert load(checkpointer, {"x": 0}) == {"x": 3}


def test_what_typed_json_does_not_keep_is_refused_by_ours_and_pickled_by_dcps(make: Make, save: Saver) -> None:
    checkpointer = make()
    with pytest.raises(CheckpointException, match="odd: a value of type test_dcp.Custom cannot be kept"):
        save(checkpointer, 1, {"fine": 1, "odd": Custom()}, cairn.dcp.SavePlanner())
    assert checkpointer.steps() == []

    save(checkpointer, 1, {"fine": 1, "odd": Custom()})

    assert load(checkpointer, {"fine": 0, "odd": None}) == {"fine": 1, "odd": Custom()}
    with pytest.raises(CheckpointException, match='"odd" was pickled by the planner that saved it'):
        load(checkpointer, {"fine": 0, "odd": None}, planner=cairn.dcp.LoadPlanner())
    assert load(checkpointer, {"fine": 0}, planner=cairn.dcp.LoadPlanner()) == {"fine": 1}


def test_a_cached_plan_lets_nothing_be_pickled_that_ours_refuses(make: Make, save: Saver) -> None:
    checkpointer = make(keep_last=0)
    for step in range(3):
        save(checkpointer, step, {"w": torch.full((3,), step), "x": step}, CachedPlanner(enable_plan_caching=True))
        got = load(checkpointer, {"w": torch.zeros(3, dtype=torch.int64), "x": 9})
        assert same(got, {"w": torch.full((3,), step), "x": step})

    with pytest.raises(CheckpointException, match="x: a value of type test_dcp.Custom cannot be kept"):
        save(checkpointer, 3, {"w": torch.zeros(3), "x": Custom()}, CachedPlanner(enable_plan_caching=True))
    assert checkpointer.steps() == [0, 1, 2]


class CachedPlanner(cairn.dcp.SavePlanner):
    """DCP caches plans by the class's name."""


class Halved(dcp.DefaultSavePlanner):
    """Writes something else than the state dict holds."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        object = super().transform_object(write_item, object)
        return object / 2 if isinstance(object, torch.Tensor) else object


class Renumbered(dcp.DefaultSavePlanner):
    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        super().set_up_planner({**state_dict, "x": 7}, storage_meta, is_coordinator)


def test_a_planner_that_changes_what_is_written_saves_synchronously_alone(make: Make) -> None:
    checkpointer = make()
    sync(checkpointer, 1, {"w": torch.ones(3), "x": 1}, Halved())
    assert load(checkpointer, {"w": torch.zeros(3), "x": 0})["w"].tolist() == [0.5] * 3

    with pytest.raises(CheckpointException, match='"w": async_save staged the tensor of the state dict, but Halved'):
        asynchronous(checkpointer, 2, {"w": torch.ones(3)}, Halved())
    with pytest.raises(CheckpointException, match='"x": Halved writes bytes of its own: use dcp.save'):
        asynchronous(checkpointer, 2, {"x": 1}, Halved())
    with pytest.raises(CheckpointException, match='"x": async_save staged the value of the state dict, but Renumbered'):
        asynchronous(checkpointer, 2, {"x": 1}, Renumbered())
    with pytest.raises(
        CheckpointException, match=r"this planner writes in addition 1 \(a\) and leaves out 2 \(a.b, a.c\)"
    ):
        asynchronous(checkpointer, 2, {"a": {"b": 1, "c": 2}}, dcp.DefaultSavePlanner(flatten_state_dict=False))
    assert checkpointer.steps() == [1]
    sync(checkpointer, 2, {"a": {"b": 1, "c": 2}}, dcp.DefaultSavePlanner(flatten_state_dict=False))
    for kind in (dcp.DefaultLoadPlanner, cairn.dcp.LoadPlanner):
        for sharded in (False, True):  # With True DCP's planner loads into a copy, and the caller gets nothing.
            unflattened = kind(flatten_state_dict=False, flatten_sharded_tensors=sharded)
            got = load(checkpointer, {"a": None}, planner=unflattened)
            assert got == {"a": {"b": 1, "c": 2}}


def test_what_was_staged_for_a_plan_that_failed_is_no_checkpoint(make: Make) -> None:
    class Bad(dcp.DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            raise RuntimeError("no such plan")

    checkpointer = make()
    writer = cairn.dcp.StorageWriter(checkpointer, 1)
    response = dcp.async_save({"w": torch.ones(9)}, storage_writer=writer, planner=Bad())
    with pytest.raises(CheckpointException, match="no such plan"):
        uploaded(response)
    assert checkpointer.steps() == []

    asynchronous(checkpointer, 1, {"w": torch.ones(9)})
    assert checkpointer.steps() == [1]


def test_a_step_whose_save_failed_can_be_saved_again_at_once(make: Make, save: Saver) -> None:
    class Bad(dcp.DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            raise RuntimeError("no such plan")

    checkpointer = make(keep_last=0)
    for step in range(10):
        with pytest.raises(CheckpointException, match="no such plan"):
            asynchronous(checkpointer, step, {"w": torch.ones(9)}, Bad())
        save(checkpointer, step, {"w": torch.ones(9)})
    assert checkpointer.steps() == list(range(10))


def test_what_would_come_back_as_something_else_is_no_plain_value(make: Make, save: Saver) -> None:
    checkpointer = make()
    model = torch.nn.Linear(2, 2)
    hint = r"v/0: .*Linear cannot be kept; DCP takes apart .* put its state_dict\(\) there"
    with pytest.raises(CheckpointException, match=hint):
        save(checkpointer, 1, {"v": (model,)}, cairn.dcp.SavePlanner())

    save(checkpointer, 1, {"e": [Color.RED], "p": Point(torch.ones(2), 3), "app": {"model": model}})
    got = load(checkpointer, {"e": None, "p": None, "app": {"model": None}})
    assert same([got["e"], got["p"]], [[Color.RED], Point(torch.ones(2), 3)])
    assert same(got["app"]["model"].state_dict(), model.state_dict())


def test_an_array_whose_dtype_no_file_holds_is_pickled_or_refused(make: Make, save: Saver) -> None:
    checkpointer = make()
    array = numpy.full(3, 1.5, dtype=numpy.longdouble)
    with pytest.raises(CheckpointException, match="files cannot hold its dtype, float128"):
        save(checkpointer, 1, {"a": (array,)}, cairn.dcp.SavePlanner())
    save(checkpointer, 1, {"a": (array,)})
    assert same(load(checkpointer, {"a": None}), {"a": (array,)})


def test_names_that_look_like_other_names_come_back(make: Make, save: Saver) -> None:
    checkpointer = make()
    array = numpy.arange(2.0)
    want = {
        "v": (array, (array + 1,)),
        "v/0": torch.ones(2, dtype=torch.float64),
        "v/1": (array + 2,),
        "v/1/0": array + 3,
        "v/~v/0": torch.zeros(2),
        "v/~v/~v/0": torch.ones(2),
        "v/~w/0": torch.ones(3),
        "v/~v": (array + 4,),
        "~v": torch.tensor(3.0),
        **{
            key: torch.full((2,), float(i)) for i, key in enumerate(["a/b", "a~1b", "~", "~t", "0", "True", "é", "x~1"])
        },
    }
    save(checkpointer, 1, want, cairn.dcp.SavePlanner())
    got = {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for key, value in want.items()}
    assert same(load(checkpointer, got, planner=cairn.dcp.LoadPlanner()), want)

    for name in ("", "lone \ud800"):
        with pytest.raises((cairn.InvalidArgument, CheckpointException), match="cannot be the name of a tensor"):
            save(checkpointer, 2, {name: torch.ones(3)})
    assert checkpointer.steps() == [1]


def test_process_based_async_save_is_refused(make: Make) -> None:
    checkpointer = make()
    with pytest.raises((cairn.Unsupported, AssertionError, ValueError)):
        response = dcp.async_save(
            {"w": torch.ones(9)},
            storage_writer=cairn.dcp.StorageWriter(checkpointer, 1),
            async_checkpointer_type=state_dict_saver.AsyncCheckpointerType.PROCESS,
        )
        uploaded(response)
    import pickle

    with pytest.raises(cairn.Unsupported, match="process-based async_save is not supported"):
        pickle.dumps(cairn.dcp.StorageWriter(checkpointer, 1))
    assert checkpointer.steps() == []


def test_tied_weights_are_written_once(make: Make, root: Path, save: Saver) -> None:
    checkpointer = make()
    tied = torch.arange(400_000.0)
    save(checkpointer, 1, {"a": tied, "b": tied, "c": tied[10:]})
    assert next(root.glob("step-*/shard-*")).stat().st_size < 2.1 * 4 * 400_000

    got = load(checkpointer, {name: torch.zeros(n) for name, n in (("a", 400_000), ("b", 400_000), ("c", 399_990))})
    assert torch.equal(got["a"], tied) and torch.equal(got["b"], tied) and torch.equal(got["c"], tied[10:])
    one = torch.zeros(400_000)
    load(checkpointer, {"a": one, "b": one})
    assert torch.equal(one, tied)
    save(checkpointer, 2, {"a": tied, "b": tied.clone()})
    load(checkpointer, {"a": one, "b": one})
    assert torch.equal(one, tied)


def test_targets_of_another_dtype_or_layout_are_filled_as_dcp_does(make: Make, save: Saver) -> None:
    checkpointer = make()
    save(checkpointer, 1, {"w": torch.arange(12.0).reshape(3, 4)})
    base = torch.zeros(4, 6)
    for target in (torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4, 3).t(), base[:3, 1:5]):
        assert torch.equal(load(checkpointer, {"w": target})["w"].float(), torch.arange(12.0).reshape(3, 4))
    assert base[3].sum() == 0 and base[:, 0].sum() == 0 and base[:, 5].sum() == 0


def test_a_flipped_bit_fails_the_load(make: Make, root: Path, save: Saver) -> None:
    checkpointer = make()
    save(checkpointer, 1, {"w": torch.arange(1000.0)})
    shard = next(root.glob("step-*/shard-*"))
    data = bytearray(shard.read_bytes())
    data[-2000] ^= 4
    shard.write_bytes(data)
    with pytest.raises(CheckpointException, match="Corrupt"):
        load(root, {"w": torch.zeros(1000)})


def test_what_is_not_there_is_told(make: Make, root: Path, save: Saver) -> None:
    checkpointer = make()
    with pytest.raises(CheckpointException, match="NotFound|no checkpoint"):
        load(checkpointer, {"w": torch.zeros(3)})
    save(checkpointer, 1, {"w": torch.zeros(3)})
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: v"):
        load(checkpointer, {"v": torch.zeros(3)})
    with pytest.raises(CheckpointException, match="Size mismatch"):
        load(checkpointer, {"w": torch.zeros(4)})
    many = {f"v{number}": torch.zeros(3) for number in range(7)} | {"w": torch.zeros(4)}
    with pytest.raises(
        CheckpointException, match=r"v3, v4 and 2 more; Size mismatch: w \(saved \[3\], current \[4\]\)"
    ):
        load(checkpointer, many, planner=cairn.dcp.LoadPlanner())
    with pytest.raises(cairn.InvalidArgument, match="was saved through cairn.dcp"):
        checkpointer.restore({"w": torch.zeros(3)})

    checkpointer.save(2, {"w": torch.zeros(3)}).wait()
    with pytest.raises(CheckpointException, match="was not saved through cairn.dcp"):
        load(checkpointer, {"w": torch.zeros(3)})
    assert load(checkpointer, {"w": torch.ones(3)}, 1)["w"].tolist() == [0.0] * 3


def test_loading_an_older_step_starts_a_new_line_unless_it_is_a_look(make: Make, root: Path) -> None:
    checkpointer = make(keep_last=0)
    for step in (1, 2):
        sync(checkpointer, step, {"x": step})
    assert load(root, {"x": 0}, 1) == {"x": 1}
    with pytest.raises(CheckpointException, match="step 2"):
        sync(checkpointer, 2, {"x": 22})

    load(checkpointer, {"x": 0}, 1)

    sync(checkpointer, 2, {"x": 22})
    assert load(checkpointer, {"x": 0}) == {"x": 22}


def test_a_state_made_from_the_metadata_alone(make: Make, save: Saver) -> None:
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    checkpointer = make()
    want = {"model": {"w": torch.arange(5), "deep": {"v": torch.ones(2, 2)}}, "n": [1, {"k": "v"}]}
    save(checkpointer, 1, want)

    got: dict[str, Any] = {}
    _load_state_dict(got, cairn.dcp.StorageReader(checkpointer), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert same(got, want)
