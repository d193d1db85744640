"""The commonest mistake: tensors that are overwritten while a save still reads them. It is loud, and never cries wolf.

A save here is not checked before the test says so, however quickly it is captured: see `start`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cairn
import numpy
import pytest
import torch
from jobs import until

Make = Callable[..., cairn.Checkpointer]
ELEMENTS = 4_000_000  # 16 MB, twice the pool.
CURE = r"was overwritten after save\(\) with no fence in between, .*: call protect\(optimizer\), or fence\(\)"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True}, "fused": {"fused": True}, "one by one": {"foreach": False},
}  # fmt: skip


def a_model() -> torch.nn.Module:
    return torch.nn.ParameterDict({f"w{i}": torch.zeros(ELEMENTS // 4) for i in range(4)})


def backward(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def start(checkpointer: cairn.Checkpointer, step: int, tree: Any) -> cairn.Save:
    """A save that nobody checks before a fence, the end of an optimizer's step, or a call that waits for saves. With
    when_full="wait" the save itself would be such a call."""
    checkpointer._engine.core.begin_step()
    return checkpointer.save(step, tree)


def expect_torn(checkpointer: cairn.Checkpointer, save: cairn.Save, name: str) -> None:
    with pytest.raises(cairn.FailedPrecondition, match=rf'^step 1: tensor "{name}"( \(and \d+ more\))? {CURE}'):
        save.wait()
    assert checkpointer.steps() == []


# What is found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_that_nobody_fenced_fails_the_save(make: Make, kind: str) -> None:
    model = a_model()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZERS[kind])
    backward(model)
    optimizer.step()
    backward(model)
    checkpointer = make(when_full="skip")

    save = start(checkpointer, 1, {"model": model, "optimizer": optimizer})
    optimizer.step()

    expect_torn(checkpointer, save, "model/w0")
    backward(model)
    checkpointer.save(2, {"model": model, "optimizer": optimizer}).wait()
    assert checkpointer.steps() == [2]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("by", ["hook", "step", "closure"])
def test_a_step_that_takes_its_gradients_away_is_found(make: Make, by: str) -> None:
    """Fused steps are counted nowhere, and this one leaves the ends of the tensor as they are."""

    class Clearing(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            loss = super().step(closure)
            self.zero_grad()
            return loss

    weight = torch.nn.Parameter(torch.zeros(ELEMENTS))
    optimizer = (Clearing if by != "hook" else torch.optim.Adam)([weight], fused=True)

    def closure() -> torch.Tensor:
        weight.grad = torch.zeros(ELEMENTS)
        weight.grad[1000:2000] = 1
        return torch.zeros(())

    closure()
    optimizer.step()
    if by == "hook":
        optimizer.register_step_post_hook(lambda one, *_: one.zero_grad())
    checkpointer = make(when_full="skip")
    if by != "closure":
        closure()

    save = start(checkpointer, 1, {"w": weight, "state": optimizer.state[weight]})
    optimizer.step(closure if by == "closure" else None)

    expect_torn(checkpointer, save, "w")


def test_a_tied_tensor_that_counts_on_its_own_is_asked(make: Make) -> None:
    weight = torch.nn.Parameter(torch.zeros(ELEMENTS))
    checkpointer = make(when_full="skip")

    save = start(checkpointer, 1, {"a": weight.data, "b": weight, "c": weight.detach().numpy()})
    with torch.no_grad():
        weight[5:10] = 1

    expect_torn(checkpointer, save, "a")
    checkpointer.save(2, {"a": weight.detach().numpy(), "b": weight, "c": weight.data}).wait()


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda tensor: tensor[:1].add_(1),
    "an item": lambda tensor: tensor.__setitem__(5, 1.0),
    "copied into": lambda tensor: tensor[:10].copy_(torch.ones(10)),
    "in inference mode": torch.inference_mode()(lambda tensor: tensor[:1].add_(1)),
    "foreach": lambda tensor: torch._foreach_add_([tensor[:8]], [torch.ones(8)]),  # Not lerp: docs/python.md says why.
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("of", ["tensor", "state dict"])
def test_a_write_that_nobody_fenced_fails_the_save_by_name(make: Make, how: str, of: str) -> None:
    model = torch.nn.ParameterDict({"w": torch.zeros(ELEMENTS), "x": torch.zeros(ELEMENTS)}).requires_grad_(False)
    checkpointer = make(when_full="skip")

    save = start(checkpointer, 1, {"model": dict(model) if of == "tensor" else model.state_dict()})
    WRITES[how](model["x"])

    expect_torn(checkpointer, save, "model/x")
    with pytest.raises(cairn.FailedPrecondition, match='tensor "model/x"'):
        checkpointer.check()


UNCOUNTED: dict[str, Callable[[torch.Tensor], object]] = {
    "data": lambda tensor: tensor.data.add_(1),
    "numpy": lambda tensor: numpy.add(tensor.numpy(), 1, out=tensor.numpy()),
    "the last": lambda tensor: tensor.numpy().__setitem__((-1, -1), 1),
    "dlpack": lambda tensor: numpy.from_dlpack(tensor).fill(1),
    "storage": lambda tensor: tensor.untyped_storage().fill_(1),
    "in inference mode": lambda tensor: tensor.fill_(-1),
}


@pytest.mark.parametrize("how", UNCOUNTED)
def test_a_write_that_torch_does_not_count_is_found_by_the_ends_of_cpu_tensors(make: Make, how: str) -> None:
    with torch.inference_mode(how == "in inference mode"):
        tensor = torch.zeros(4, ELEMENTS // 2)[:, ::2]  # Rows of two numbers, of which one is not the tensor's.
        others = {f"o{i}": torch.zeros(ELEMENTS // 100) for i in range(100)}
        checkpointer = make(when_full="skip")

        save = start(checkpointer, 1, {"w": tensor, "array": numpy.zeros(ELEMENTS), **others})
        UNCOUNTED[how](tensor)
        expect_torn(checkpointer, save, "w")

        save = start(checkpointer, 2, {"w": tensor, **others})
        checkpointer.fence()
        UNCOUNTED[how](tensor)
        save.wait()


def test_one_of_many_tensors_is_looked_at(make: Make) -> None:
    """An average of a model's weights that is written through .data: it is found, whatever else the tree holds."""
    size = 20_000  # Too large to be copied within the call.
    average = {f"a{i}": torch.zeros(size) for i in range(60)}
    checkpointer = make(when_full="skip")

    save = start(checkpointer, 1, {"m": {f"m{i}": torch.zeros(size) for i in range(240)}, "average": average})
    for one in average.values():
        one.data.add_(1)

    with pytest.raises(cairn.FailedPrecondition, match=CURE):
        save.wait()


@pytest.mark.usefixtures("device")
def test_it_is_found_by_the_fence_that_comes_too_late(make: Make) -> None:
    tensor = torch.zeros(ELEMENTS)
    checkpointer = make(when_full="skip")

    save = start(checkpointer, 1, {"w": tensor})
    tensor[0] = 1
    checkpointer.fence()

    expect_torn(checkpointer, save, "w")


@pytest.mark.usefixtures("device")
def test_the_earlier_checkpoint_stays(make: Make) -> None:
    tensor = torch.zeros(ELEMENTS)
    checkpointer = make(keep_last=1, when_full="skip")
    checkpointer.save(1, {"w": tensor}).wait()

    start(checkpointer, 2, {"w": tensor})
    tensor[0] = 1

    with pytest.raises(cairn.FailedPrecondition, match='step 2: tensor "w"'):
        checkpointer.drain()
    assert checkpointer.steps() == [1]


@pytest.mark.usefixtures("device")
def test_a_held_save_is_not_released_either(make: Make) -> None:
    """As cairn.dcp's are."""
    tensor = torch.zeros(ELEMENTS)
    checkpointer = make(when_full="skip")

    checkpointer._engine.core.begin_step()
    save = checkpointer._engine.start(1, lambda sink: sink.add("w", tensor) or [], hold=60.0)
    tensor[0] = 1
    save._release()

    expect_torn(checkpointer, save, "w")


@pytest.mark.usefixtures("device")
def test_through_dcp(make: Make) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from cairn.dcp import SavePlanner, StorageWriter

    tensor = torch.zeros(ELEMENTS)
    checkpointer = make()

    answer = dcp.async_save({"w": tensor}, storage_writer=StorageWriter(checkpointer, 1), planner=SavePlanner())
    tensor[0] = 1

    with pytest.raises(BaseException, match=f'tensor "w" {CURE}'):  # CheckpointException is no Exception.
        getattr(answer, "upload_completion", answer).result()
    assert checkpointer.steps() == []


def a_restore(folder: Path, tree: Any) -> Callable[[], object]:
    with cairn.Checkpointer(folder, host_memory="32MiB") as other:
        other.save(1, tree).wait()
    return lambda: cairn.Checkpointer(folder, read_only=True, host_memory="32MiB").restore(tree)


def a_dcp_load(folder: Path, tree: Any) -> Callable[[], object]:
    dcp = pytest.importorskip("cairn.dcp", exc_type=ImportError)
    dcp.save(tree, checkpoint_id=folder / "1", no_dist=True)
    return lambda: dcp.load(tree, checkpoint_id=folder / "1", no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("reading", [a_restore, a_dcp_load])
def test_what_is_read_from_elsewhere_into_a_tensor_is_such_a_write(make: Make, tmp_path: Path, reading: Any) -> None:
    tree = {"w": torch.zeros(ELEMENTS)}
    read = reading(tmp_path / "elsewhere", tree)
    checkpointer = make(when_full="skip")

    save = start(checkpointer, 1, tree)
    read()

    expect_torn(checkpointer, save, "w")


def test_autograd_knows_what_a_restore_has_written(checkpointer: cairn.Checkpointer) -> None:
    tree = {"w": torch.ones(3, requires_grad=True)}
    checkpointer.save(1, tree).wait()
    loss = tree["w"].exp().sum() + (tree["w"] * torch.ones(3, requires_grad=True)).sum()

    checkpointer.restore(tree)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# While another thread waits


WAITS: dict[str, Callable[[cairn.Checkpointer, cairn.Save], object]] = {
    "captured": lambda _, save: save.captured(),
    "wait": lambda _, save: save.wait(),
    "fence": lambda checkpointer, _: checkpointer.fence(),
    "drain": lambda checkpointer, _: checkpointer.drain(),
    "stats": lambda _, save: until(lambda: save.stats["phase"] in ("durable", "failed")),
}


@pytest.mark.parametrize("how", [how for how in WAITS if how != "fence"])  # Which waits for 0.1 s.
def test_an_operation_that_has_not_ended_is_waited_for(make: Make, how: str) -> None:
    tensor = torch.ones(ELEMENTS)
    checkpointer = make()

    with ThreadPoolExecutor(1) as pool:
        save = checkpointer.save(1, {"w": tensor})
        waited = pool.submit(WAITS[how], checkpointer, save)
        tensor.polygamma_(3)  # Takes far longer than the capture.
        if how == "stats":
            waited.result(20)
        else:
            with pytest.raises(cairn.FailedPrecondition, match=CURE):
                waited.result(20)

    expect_torn(checkpointer, save, "w")


def test_a_thread_that_does_something_else_holds_no_save_back(make: Make) -> None:
    checkpointer = make()
    ready, end = threading.Lock(), threading.Lock()
    ready.acquire()
    end.acquire()
    saves: list[cairn.Save] = []

    def trains() -> None:
        saves.append(checkpointer.save(1, {"w": torch.zeros(ELEMENTS)}))
        ready.release()
        end.acquire()  # Waits in C code, as an operation computes.

    with ThreadPoolExecutor(1) as pool:
        pool.submit(trains)
        ready.acquire()
        try:
            saves[0].wait(5)
        finally:
            end.release()
    assert checkpointer.steps() == [1]


SAVES = 2000
AT_ONCE = 50


@pytest.mark.cases
@pytest.mark.parametrize("part", range(SAVES // AT_ONCE))
def test_many_saves_with_threads_that_wait(make: Make, part: int) -> None:
    """Odd steps are overwritten at once: each fails, or was read before. The others after a wait: none may fail."""
    operations: list[Callable[[torch.Tensor], object]] = [
        lambda tensor: tensor.copy_(torch.full_like(tensor, -1)),
        lambda tensor: torch._foreach_copy_([tensor], [torch.full_like(tensor, -1)]),
        lambda tensor: torch._foreach_mul_([tensor], -1),
        lambda tensor: tensor.lgamma_(),
        lambda tensor: torch.digamma(tensor, out=tensor),
    ]
    tensor = torch.zeros(1_000_000)
    checkpointer = make(keep_last=1)
    with ThreadPoolExecutor(len(WAITS)) as pool:
        for step in range(1, AT_ONCE + 1):
            save = checkpointer.save(step, {"w": tensor.fill_(step)})
            waiting = [pool.submit(wait, checkpointer, save) for wait in WAITS.values()]
            if step % 2 == 0:
                save.captured()
            operations[(part + step) % len(operations)](tensor)
            failures = [one.exception() for one in waiting]

            try:
                save.wait()
            except cairn.FailedPrecondition as error:
                assert step % 2, error
                continue
            assert step % 2 or not any(failures), failures
            assert bool((checkpointer.load(step)["w"] == step).all()), f"step {step} is torn"


# The option


def test_it_can_be_a_warning(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    tensor = torch.zeros(ELEMENTS)
    checkpointer = make(unfenced_writes="warn", when_full="skip")

    with caplog.at_level(logging.WARNING, "cairn"):
        save = start(checkpointer, 1, {"w": tensor})
        tensor[0] = 1
        save.wait()
        checkpointer.check()

    assert [record.levelname for record in caplog.records if 'tensor "w"' in record.getMessage()] == ["WARNING"]
    assert checkpointer.steps() == [1]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_can_be_ignored(make: Make, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    model = a_model()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZERS[kind])
    backward(model)
    checkpointer = make(unfenced_writes="ignore", when_full="skip")

    with caplog.at_level(logging.WARNING, "cairn"):
        save = start(checkpointer, 1, {"model": model})
        optimizer.step()
        save.wait()
        checkpointer.check()

    assert not caplog.records
    assert checkpointer.steps() == [1]


def test_another_word_is_refused(make: Make) -> None:
    with pytest.raises(cairn.InvalidArgument, match='unfenced_writes: expected one of "fail", "warn", "ignore"'):
        make(unfenced_writes="error")


# What is no mistake


@pytest.fixture
def checkpointer(make: Make) -> Iterator[cairn.Checkpointer]:
    """Each save must be durable in the end."""
    made = make(keep_last=0)
    yield made
    made.close()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_protected_steps(checkpointer: cairn.Checkpointer, kind: str) -> None:
    model = a_model()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZERS[kind])
    checkpointer.protect(optimizer)

    for step in range(1, 6):
        backward(model)
        optimizer.step()
        checkpointer.save(step, {"model": model, "optimizer": optimizer})

    backward(model)
    optimizer.step()
    checkpointer.drain()
    assert checkpointer.steps() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fence_within_a_step(checkpointer: cairn.Checkpointer, kind: str) -> None:
    """As Lightning's loop has it: the closure computes the gradients, and then its hooks run."""
    model = a_model()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZERS[kind])

    def closure() -> float:
        backward(model)
        checkpointer.fence()
        return 0.0

    for step in range(1, 4):
        checkpointer.save(step, {"model": model})
        optimizer.step(closure)

    checkpointer.drain()


def test_steps_after_the_capture_and_an_average_after_a_fence(checkpointer: cairn.Checkpointer) -> None:
    model = a_model()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters())

    for step in range(1, 4):
        save = checkpointer.save(step, {"model": model, "average": average})
        backward(model)
        save.captured()
        optimizer.step()
        average.update_parameters(model)
        checkpointer.save(10 * step, {"model": model, "average": average}, replace=True)
        checkpointer.fence()
        average.update_parameters(model)
        checkpointer.drain()
        checkpointer.restore({"model": model, "average": average}, step)


def test_what_was_captured_may_be_written_without_a_word(checkpointer: cairn.Checkpointer) -> None:
    """Whoever asks nothing, and writes when the save is durable."""
    tensor = torch.zeros(ELEMENTS)
    save = checkpointer.save(1, {"w": tensor})
    until(checkpointer.latest)

    tensor[0] = 1

    save.wait()
    assert float(checkpointer.load(1)["w"][0]) == 0


def test_what_the_call_copies_may_be_written_at_once(checkpointer: cairn.Checkpointer) -> None:
    large = torch.zeros(ELEMENTS)
    small = torch.zeros(100)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(50_000))  # Its buffers are above what is small.
    checkpointer.save(1, {"large": large, "small": small, "model": model})

    small.add_(1)
    model(torch.ones(2, 50_000))

    checkpointer.drain()
    assert float(checkpointer.load(1)["small"].sum()) == 0
    assert float(checkpointer.load(1)["model"]["0.running_var"].sum()) == 50_000


def test_what_other_tensors_do_is_their_own(checkpointer: cairn.Checkpointer) -> None:
    model, other = a_model(), a_model()
    optimizer = torch.optim.AdamW(other.parameters(), fused=True)
    checkpointer.save(1, {"model": model})

    backward(other)
    backward(model)  # Gradients are not in the tree.
    optimizer.step()

    checkpointer.drain()


def test_frozen_parameters_are_not_written(checkpointer: cairn.Checkpointer) -> None:
    frozen, trained = torch.nn.Parameter(torch.zeros(ELEMENTS)), torch.nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.AdamW([frozen, trained], fused=True)
    checkpointer.save(1, {"frozen": frozen})

    trained.grad = torch.ones(10)
    optimizer.step()

    checkpointer.drain()


def test_a_restore_waits_for_the_capture(checkpointer: cairn.Checkpointer) -> None:
    tensors = {"w": torch.zeros(ELEMENTS)}
    checkpointer.save(1, tensors).wait()
    tensors["w"].fill_(2)

    checkpointer.save(2, tensors)
    checkpointer.restore(tensors, 1)

    checkpointer.drain()
    assert bool((checkpointer.load(2)["w"] == 2).all())
    assert bool((tensors["w"] == 0).all())


# Steps that end badly, and what nobody can see


def test_a_step_that_raises_holds_no_save_back(checkpointer: cairn.Checkpointer) -> None:
    model = a_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def closure() -> float:
        raise ZeroDivisionError

    save = checkpointer.save(1, {"model": model})
    with pytest.raises(ZeroDivisionError):
        optimizer.step(closure)

    save.wait(60)


def test_what_has_no_version_is_not_seen_within_a_tensor(checkpointer: cairn.Checkpointer) -> None:
    """docs/python.md says so: numpy's arrays, inference tensors, writes through .data. Their ends are: see above."""
    with torch.inference_mode():
        inference = torch.zeros(ELEMENTS)
    data, array = torch.zeros(ELEMENTS), numpy.zeros(ELEMENTS, numpy.float32)
    checkpointer.save(1, {"inference": inference, "data": data, "array": array})

    data.data[5] = 1
    array[5] = 1
    with torch.inference_mode():
        inference[5] = 1

    checkpointer.drain()
    assert checkpointer.steps() == [1]
