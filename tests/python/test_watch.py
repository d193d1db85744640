"""Memory that moves under a save: the save fails by the tensor's name, and nothing torn is committed.

A tree's state_dict() does the moving, in the middle of the call of `save`: after the tensors before it were read, and
before the engine copies them. Whoever has been told that a save is captured moves what they like.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import numpy
import pytest
import torch

Make = Callable[..., cairn.Checkpointer]
ELEMENTS = 25_600  # 100 KiB: above what the call copies, and in malloc's heap, where what is freed can still be read.


class Then:
    """Does something when its state is asked for."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def state_dict(self) -> dict[str, Any]:
        self._act()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def resize(tensor: torch.Tensor, factor: int = 1) -> None:
    """What FSDP1 does: the memory goes, and comes again."""
    size = tensor.untyped_storage().nbytes()
    tensor.untyped_storage().resize_(0)
    if factor:
        tensor.untyped_storage().resize_(size * factor)


def give_data(tensor: torch.Tensor) -> None:
    tensor.data = torch.full_like(tensor, 9)


MOVES: dict[str, Callable[[torch.Tensor], None]] = {
    "freed": lambda tensor: resize(tensor, 0),
    "grown": lambda tensor: resize(tensor, 100),
    "other data": give_data,
}


@pytest.fixture(params=["dense", "strided", "parameter", "tied"])
def tensors(request: pytest.FixtureRequest) -> dict[str, torch.Tensor]:
    """The one that moves is "moves"."""
    before, moves, after = (torch.full((ELEMENTS,), float(i)) for i in range(3))
    if request.param == "strided":
        moves = torch.zeros(160, 160).t()
    if request.param == "parameter":
        moves = torch.nn.Parameter(moves)
    tied = {"twice": moves} if request.param == "tied" else {}
    return {"before": before, "moves": moves, **tied, "after": after}


@pytest.mark.parametrize("how", MOVES)
def test_what_moves_under_a_save_fails_it_by_name(make: Make, tensors: dict[str, torch.Tensor], how: str) -> None:
    checkpointer = make()
    checkpointer.save(1, {"model": tensors}).wait()
    kept = tensors["moves"].detach() if how == "other data" else None
    pinned = tensors["moves"].data_ptr()

    save = checkpointer.save(2, {"model": tensors, "then": Then(lambda: MOVES[how](tensors["moves"]))})

    with pytest.raises(
        cairn.FailedPrecondition, match=rf'^step 2: tensor "model/moves": .* \(expected at {pinned:#x}, found at'
    ):
        save.wait()
    with pytest.raises(cairn.FailedPrecondition, match="step 2"):
        checkpointer.check()
    assert checkpointer.steps() == [1]
    del kept
    tensors.pop("twice", None)
    tensors["moves"] = torch.ones(ELEMENTS)
    checkpointer.save(2, {"model": tensors}).wait()
    assert checkpointer.steps() == [1, 2]


OTHER_MEMORY: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "data": lambda tensor, other: setattr(tensor, "data", other),
    "set_": lambda tensor, other: tensor.set_(other),  # type: ignore[call-overload]
    "swapped": torch.utils.swap_tensors,
}


def test_memory_that_a_save_reads_lives_on_when_its_tensor_gets_other(make: Make) -> None:
    checkpointer = make()
    for step, (how, give) in enumerate(OTHER_MEMORY.items(), 1):
        tensor = torch.ones(16_000_000)  # So large that it is unmapped when it is freed: reading it would be a SIGSEGV.
        with checkpointer.pause_copies(3600):
            save = checkpointer.save(step, {how: tensor})
            give(tensor, torch.zeros(16_000_000))
        with pytest.raises(cairn.FailedPrecondition, match=f'^step {step}: tensor "{how}": its memory was moved'):
            save.wait()


def test_waiting_for_the_capture_hears_of_it_in_the_end(make: Make) -> None:
    tensor = torch.ones(ELEMENTS)
    kept = tensor.detach()
    checkpointer = make()

    save = checkpointer.save(1, {"w": tensor, "then": Then(lambda: give_data(tensor))})

    with contextlib.suppress(cairn.FailedPrecondition):  # It may have been found out by then.
        save.captured()
    with pytest.raises(cairn.FailedPrecondition, match='tensor "w"'):
        save.result()
    del kept


@pytest.mark.parametrize("way", ["captured", "fence", "stats", "a protected step"])
def test_whoever_is_told_of_the_capture_may_move_everything(make: Make, way: str) -> None:
    tensors = {str(i): torch.nn.Parameter(torch.ones(ELEMENTS)) for i in range(40)}
    optimizer = torch.optim.SGD(tensors.values(), lr=1.0)
    checkpointer = make(keep_last=0)
    checkpointer.protect(optimizer)

    def told(save: cairn.Save) -> None:
        if way == "captured":
            save.captured()
        elif way == "fence":
            checkpointer.fence()
        elif way == "stats":
            while save.stats["phase"] in ("queued", "capturing"):
                pass
        else:
            optimizer.step()

    for step in range(1, 21):
        save = checkpointer.save(step, {"model": tensors})
        told(save)
        for tensor in tensors.values():
            tensor.data = torch.full_like(tensor, step)
        save.wait()

    for step in range(2, 21):
        assert all(bool((one == step - 1).all()) for one in checkpointer.load(step)["model"].values())


def test_what_the_call_copies_may_move_at_once(make: Make) -> None:
    small = torch.ones(1000)
    checkpointer = make()

    save = checkpointer.save(1, {"small": small, "large": torch.ones(ELEMENTS)})
    resize(small)

    save.wait()
    assert bool((checkpointer.load()["small"] == 1).all())


def test_what_is_copied_for_the_save_may_move(make: Make) -> None:
    tensor = torch.ones(ELEMENTS, dtype=torch.complex64)
    checkpointer = make()

    save = checkpointer.save(1, {"w": tensor.conj(), "then": Then(lambda: resize(tensor))})

    save.wait()
    assert bool((checkpointer.load()["w"] == 1).all())


def test_every_dtype_stays_where_it_is(make: Make) -> None:
    names = ("bool", "uint8", "uint16", "int64", "float16", "bfloat16", "complex64", "float8_e4m3fn", "float8_e8m0fnu")
    dtypes = [getattr(torch, name) for name in names if hasattr(torch, name)]
    tree = {str(dtype): torch.zeros(1 << 17, dtype=dtype) for dtype in dtypes}
    arrays = {"dense": numpy.ones((300, 300)), "strided": numpy.ones((300, 600))[:, ::2], "empty": numpy.ones((0, 3))}

    make().save(1, {"torch": tree, "numpy": arrays, "empty": torch.ones(0)}).wait()


def test_a_held_save_that_was_moved_is_not_released(make: Make) -> None:
    checkpointer = make()
    tensor = torch.ones(ELEMENTS)
    kept = tensor.detach()

    def fill(sink: Any) -> list[tuple[str, str]]:
        sink.add("w", tensor)
        give_data(tensor)
        return []

    save = checkpointer._engine.start(1, fill, hold=60.0)  # As cairn.dcp does.
    save._release()

    with pytest.raises(cairn.FailedPrecondition, match='tensor "w"'):
        save.wait()
    assert checkpointer.steps() == []
    del kept


def test_released_before_it_is_captured_it_is_looked_at_all_the_same(make: Make) -> None:
    checkpointer = make()
    tensors = {str(i): torch.ones(1 << 20) for i in range(16)}  # Eight times the pool: it is captured late.
    kept = [tensor.detach() for tensor in tensors.values()]

    def fill(sink: Any) -> list[tuple[str, str]]:
        for name, tensor in tensors.items():
            sink.add(name, tensor)
        return []

    save = checkpointer._engine.start(1, fill, hold=60.0)
    save._release()
    give_data(tensors["15"])

    with pytest.raises(cairn.FailedPrecondition, match='tensor "15"'):
        save.wait()
    del kept


def test_a_checkpointer_that_is_dropped_commits_what_is_in_flight(make: Make, root: Path) -> None:
    def save_and_drop() -> None:
        cairn.Checkpointer(root, host_memory="64MiB").save(1, {"w": torch.ones(1 << 22)})

    save_and_drop()
    gc.collect()  # It is part of a cycle.

    assert make().steps() == [1]


def test_an_exit_that_is_interrupted_aborts_nothing(root: Path) -> None:
    """Ctrl-C while the first of two is drained: no thread wants the interpreter after its end."""
    program = f"""
import signal, threading, cairn, torch
one, two = (cairn.Checkpointer({str(root)!r} + name, host_memory="64MiB") for name in "12")
for checkpointer in (one, two):
    checkpointer.save(1, {{"w": torch.ones({1 << 24})}})
    close = checkpointer.close
    def interrupted(*_):
        raise KeyboardInterrupt
    checkpointer.close = interrupted
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode in (0, 1), ended.stderr  # No SIGABRT.


def test_a_save_commits_while_python_is_busy_elsewhere(root: Path) -> None:
    """Nobody fences it, nobody waits for it."""
    program = f"""
import os, cairn, torch
checkpointer = cairn.Checkpointer({str(root)!r}, host_memory="64MiB")
checkpointer.save(1, {{"w": torch.ones({ELEMENTS})}})
while checkpointer.latest() is None:
    pass
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    assert cairn.Checkpointer(root, read_only=True).steps() == [1]


@pytest.mark.parametrize("make_tensor", [torch.zeros, lambda size: torch.zeros(size, dtype=torch.complex64).conj()])
def test_what_a_save_was_given_is_let_go_once_it_is_captured(make: Make, make_tensor: Callable[..., Any]) -> None:
    """A gathered state dict is as large as the model: it must not stay until the next call. Also what is saved as a
    copy."""
    checkpointer = make()
    gone = threading.Event()
    tensor = make_tensor(ELEMENTS)
    weakref.finalize(tensor, gone.set)

    save = checkpointer.save(1, {"gathered": tensor})
    del tensor

    assert gone.wait(10)
    save.wait()
