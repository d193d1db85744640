"""cairn.dcp: several async_saves in flight, and what their callbacks may call. Real processes over gloo."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from dcp_worlds import Worlds, end, worlds
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
from cairn._dcp.garbage import no_collections

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.skipif(not hasattr(state_dict_saver, "AsyncSaveResponse"), reason="async_save returns one future only"),
]
__all__ = ["worlds"]  # A fixture.
Make = Callable[..., cairn.Checkpointer]


LATE = """
import threading
begun = threading.Event()
class Begins(cairn.dcp.StorageWriter):
    def storage_meta(self):
        begun.set()
        return super().storage_meta()
class Late(cairn.dcp.SavePlanner):
    "On rank 1 the first upload waits until the second one has begun: without an order that goes first, there alone."
    def set_up_planner(self, *args, **kwargs):
        assert begun.wait(60)
        super().set_up_planner(*args, **kwargs)
def begin(step, to=None):
    state = {f"w{i}": torch.full((10,), float(step)) for i in range(100)}
    first = rank == 1 and step == 0
    writer = (Begins if rank == 1 and step == 1 else cairn.dcp.StorageWriter)(to or c, step)
    planner = Late() if first else cairn.dcp.SavePlanner()
    return dcp.async_save(state, storage_writer=writer, planner=planner, process_group=saving)
"""


def test_several_in_flight_on_one_process_group_are_uploaded_in_order(worlds: Worlds) -> None:
    world = worlds(2, "max_in_flight=4, keep_last=0")
    world.all(LATE)

    assert world.all("""
ended = []
responses = [begin(step) for step in range(6)]
for step, response in enumerate(responses):
    response.upload_completion.add_done_callback(lambda _, step=step: ended.append(step))
for response in responses: response.upload_completion.result(60)
""") == [None] * 2  # fmt: skip

    # A save in the call of dcp.save waits for them too.
    assert world.all("more = [begin(6), begin(7)]; save({'x': 8}, 8, 'sync'); None") == [None] * 2
    assert world.all("[one.upload_completion.result(60) for one in more]; c.steps()")[0] == list(range(9))
    assert world.all("got = load({'w99': torch.zeros(10)}, 7); got['w99'].tolist()") == [[7.0] * 10] * 2
    end(world)


@pytest.mark.parametrize("how", ["async", "sync"])
def test_saves_to_two_roots_on_one_process_group_are_uploaded_in_order(worlds: Worlds, root: Path, how: str) -> None:
    world = worlds(2, "keep_last=0", pg_timeout=20)
    world.all(LATE)
    assert world.all(f"a = c; open({str(root / 'b')!r}, keep_last=0); b = c; None") == [None] * 2

    world.all("first = begin(0, a)")
    if how == "async":
        assert world.all("begin(1, b).upload_completion.result(60); None") == [None] * 2
    else:
        assert world.all("""
writer = (Begins if rank else cairn.dcp.StorageWriter)(b, 1)
dcp.save({"w": torch.ones(9)}, storage_writer=writer, planner=cairn.dcp.SavePlanner(), process_group=saving); None
""") == [None] * 2  # fmt: skip

    assert world.all("first.upload_completion.result(60); [a.steps(), b.steps()]") == [[[0], [1]]] * 2
    world.all("a.close()")
    end(world)


AT_ONCE = """
import threading
class Held(cairn.dcp.SavePlanner):
    "Uploads once a reader has begun."
    def set_up_planner(self, *args, **kwargs):
        assert begun.wait(60)
        super().set_up_planner(*args, **kwargs)
class Reads(cairn.dcp.StorageReader):
    @property
    def checkpoint_id(self):
        begun.set()
        return super().checkpoint_id
def at_once(step, value, wanted, source=None, **options):
    global begun
    begun = threading.Event()
    state = {"w": torch.full((100,), float(value)), "n": value}
    writer = cairn.dcp.StorageWriter(c, step, **options)
    dcp.async_save(state, storage_writer=writer, planner=Held(), process_group=saving)
    found = {"w": torch.zeros(100), "n": 0}
    reader = Reads(source or c, wanted)
    dcp.load(found, storage_reader=reader, planner=cairn.dcp.LoadPlanner(), process_group=saving)
    return [found["n"], *found["w"].unique().tolist()]
"""


def test_a_load_beside_an_upload_on_one_process_group_waits_for_it(worlds: Worlds) -> None:
    world = worlds(2, "max_in_flight=4, keep_last=0", pg_timeout=20)
    world.all(AT_ONCE)

    assert world.all("at_once(1, 1, 1)") == [[1, 1.0]] * 2
    assert world.all("at_once(2, 2, None)") == [[2, 2.0]] * 2
    assert world.all("at_once(2, 3, 2, replace=True)") == [[3, 3.0]] * 2
    assert world.all("at_once(3, 4, None, c.root)") == [[4, 4.0]] * 2
    end(world)


class Waits(cairn.dcp.SavePlanner):
    """Plans once it may, or raises `failure` instead."""

    def __init__(self, failure: str = "") -> None:
        super().__init__()
        self.may = threading.Event()
        self.failure = failure

    def create_local_plan(self) -> Any:
        assert self.may.wait(60)
        if self.failure:
            raise RuntimeError(self.failure)
        return super().create_local_plan()


def begin(checkpointer: cairn.Checkpointer, step: int, planner: Any = None) -> Any:
    writer = cairn.dcp.StorageWriter(checkpointer, step)
    return dcp.async_save({"w": torch.ones(9)}, storage_writer=writer, planner=planner)


def call_back(response: Any, planner: Waits, call: Callable[[], object]) -> None:
    """Lets the upload go on, and calls it in a done-callback, on the upload's thread; raises what it raises."""
    ended: list[BaseException | None] = []
    done = threading.Event()

    def callback(_: Any) -> None:
        try:
            assert threading.current_thread() is not threading.main_thread()
            call()
            ended.append(None)
        except BaseException as error:  # noqa: BLE001 (concurrent.futures would only log it)
            ended.append(error)
        done.set()

    response.upload_completion.add_done_callback(callback)
    planner.may.set()
    assert done.wait(60), "the callback waits for itself"
    if ended[0] is not None:
        raise ended[0]


@pytest.mark.parametrize("failure", ["", "no such plan"])
@pytest.mark.parametrize("how", ["drain", "close"])
def test_a_callback_of_an_upload_may_wait_for_all_saves(make: Make, how: str, failure: str) -> None:
    checkpointer = make(max_in_flight=4, keep_last=0, group_timeout=600)
    planner = Waits(failure)
    first, second = begin(checkpointer, 1, planner), begin(checkpointer, 2)

    def wait_for_all() -> None:
        with contextlib.suppress(cairn.Cancelled):  # The first, whose plan failed.
            getattr(checkpointer, how)()

    call_back(first, planner, wait_for_all)

    second.upload_completion.result(60)
    if failure:
        with pytest.raises(CheckpointException, match=failure):
            first.upload_completion.result(60)


def test_a_callback_of_an_upload_may_save(make: Make) -> None:
    checkpointer = make(max_in_flight=4, keep_last=0)

    def again() -> None:
        dcp.save({"w": torch.ones(9)}, storage_writer=cairn.dcp.StorageWriter(checkpointer, 2))
        begin(checkpointer, 3).upload_completion.result(60)

    planner = Waits()
    call_back(begin(checkpointer, 1, planner), planner, again)

    assert checkpointer.steps() == [1, 2, 3]


def test_a_save_whose_upload_never_begins_holds_up_no_other(make: Make) -> None:
    checkpointer = make(max_in_flight=4, keep_last=0, group_timeout=600)
    staged = cairn.dcp.StorageWriter(checkpointer, 1)
    staged.stage({"w": torch.ones(9)})
    second = begin(checkpointer, 2)

    staged.close()

    second.upload_completion.result(60)
    assert checkpointer.steps() == [2]


def test_a_load_that_waits_too_long_for_an_upload_names_it(make: Make) -> None:
    checkpointer = make(close_timeout=0.1)
    planner, target = Waits(), {"w": torch.zeros(9)}
    response = begin(checkpointer, 1, planner)

    def load() -> None:
        dcp.load(target, storage_reader=cairn.dcp.StorageReader(checkpointer, 1), planner=cairn.dcp.LoadPlanner())

    with pytest.raises(cairn.DeadlineExceeded, match=r"step 1: expected DCP to be done with its async_save .* 0.1 s"):
        load()
    assert not target["w"].any()

    call_back(response, planner, load)  # On the upload's thread, which waits for itself no longer.
    assert target["w"].all()


WRITTEN = """
made = 0
def wrap(value):
    return DTensor.from_local(torch.full((40_000,), value), mesh, [Shard(0)], run_check=False)
def save_and_write(write, tries=5):
    "What is said of the first save that is not yet read where the write comes. What is committed has nothing of the write."
    global made
    for _ in range(tries):
        made += 1
        state = {f"w{i:03}": wrap(1.0) for i in range(400)}
        c._engine.core.begin_step()  # The save is not checked before that step ends, or somebody waits for it.
        response = cairn.dcp.async_save(state, storage_writer=cairn.dcp.StorageWriter(c, made))
        with torch.no_grad():
            write(state)
        try:
            response.upload_completion.result()
        except BaseException as error:
            return str(error)
        found = load({"w095": wrap(0.0), "w096": wrap(0.0), "w097": wrap(0.0), "w098": wrap(0.0)})
        assert all(bool((one.to_local() == 1).all()) for one in found.values())
    return "committed"
"""


def test_a_dtensor_that_is_overwritten_too_early_fails_the_save(worlds: Worlds) -> None:
    """What writes into a DTensor is counted there, and not at its local tensor; on lists of them it is counted nowhere."""
    world = worlds(2, "host_memory='8MiB', chunk='1MiB', queue_depth=2, worker_threads=1")
    world.all(WRITTEN)
    writes = ["state['w095'].mul_(3)", "state['w096'].copy_(state['w001'] * 5)", "state['w097'].to_local().add_(1)",
              "torch._foreach_mul_([state['w098']], 3)"]  # fmt: skip
    for number, write in enumerate(writes, 95):
        for said in world.all(f"save_and_write(lambda state: {write} if rank == 1 else None)"):
            assert f'tensor "w0{number}" was overwritten after save()' in said, (write, said)
    assert world.all("save_and_write(lambda state: None, 1)") == ["committed"] * 2
    end(world)


HELD = """
from torch.distributed.checkpoint.state_dict import get_model_state_dict

def save_and_write(step, of, write):
    layer = torch.nn.Linear(200, 200)
    fully_shard(layer, mesh=mesh)
    if of == "state dict":  # Its DTensors are others than the module's, which an optimizer holds.
        optimizer = torch.optim.SGD(layer.parameters())
        layer(torch.ones(2, 200)).sum().backward()
        optimizer.step()
        state = {"layer": get_model_state_dict(layer)}
    elif of == "module":
        state = {"layer": layer}
    else:  # Two DTensors of one memory.
        other = DTensor.from_local(layer.weight._local_tensor, mesh, [Shard(0)], run_check=False)
        state = {"a": other, "b": layer.weight}
    with c.pause_copies(at_most=60), torch.no_grad():
        response = cairn.dcp.async_save(state, storage_writer=cairn.dcp.StorageWriter(c, step))
        write(layer.weight)
    try:
        response.upload_completion.result()
    except BaseException as error:
        return str(error)
    return "committed"
"""


def test_a_write_that_another_tensor_of_the_memory_counts_fails_the_save(worlds: Worlds) -> None:
    """Not at the first or last number, which is compared in CPU memory."""
    world = worlds(1)
    world.all(HELD)
    writes = {"module": "layer.weight", "state dict": "layer.weight", "tied": "a"}
    for step, (of, name) in enumerate(writes.items(), 1):
        write = "weight[50:60].add_(1)" if of == "tied" else "weight.to_local()[50:60].add_(1)"
        (said,) = world.all(f"save_and_write({step}, {of!r}, lambda weight: {write})")
        assert f'tensor "{name}" was overwritten after save()' in said, (of, said)
        assert world.all(f"save_and_write({step}, {of!r}, lambda weight: None)") == ["committed"]
    end(world)


def test_garbage_is_collected_again_after_a_save_in_a_forked_child_and_as_the_caller_has_it() -> None:
    with no_collections(), no_collections():
        assert not gc.isenabled()
        if (child := os.fork()) == 0:
            os._exit(not gc.isenabled())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
