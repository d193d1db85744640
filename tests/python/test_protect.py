"""The fence that users cannot forget: no step changes what a save still reads.

Each save is larger than the pool, so that it is under way while the next step begins.
"""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cairn
import pytest
import torch
from cairn._held import Held
from cairn._protect import Hook

pytestmark = pytest.mark.usefixtures("device")
Make = Callable[..., cairn.Checkpointer]
ELEMENTS = 4_000_000  # 16 MB, twice the pool.


class Ones(torch.nn.Module):
    """Weights of one, and a loss whose gradient is one: each step of SGD with lr=1 takes one away."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(ELEMENTS))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def expect_each_step_as_it_was(checkpointer: cairn.Checkpointer, train: Callable[[], None], model: Ones) -> None:
    for step in range(1, 5):
        checkpointer.save(step, {"model": model})
        train()
    checkpointer.drain()
    for step in range(1, 5):
        weight = checkpointer.load(step)["model"]["weight"]
        assert bool((weight == 2 - step).all()), f"step {step}: {weight.unique()}"


def trained_by(optimizer: Any, model: Ones) -> Callable[[], None]:
    def train() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    return train


def test_plain(make: Make) -> None:
    model = Ones()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    checkpointer = make(keep_last=0)
    checkpointer.protect(optimizer)
    expect_each_step_as_it_was(checkpointer, trained_by(optimizer, model), model)


def test_several_optimizers(make: Make) -> None:
    first, second = Ones(), Ones()
    one, two = (torch.optim.SGD(model.parameters(), lr=1.0) for model in (first, second))
    checkpointer = make(keep_last=0)
    checkpointer.protect(one, two)

    def train() -> None:
        trained_by(two, second)()
        trained_by(one, first)()

    expect_each_step_as_it_was(checkpointer, train, second)


def test_under_a_scheduler_that_wraps_step(make: Make) -> None:
    model = Ones()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    checkpointer = make(keep_last=0)
    checkpointer.protect(optimizer)

    def train() -> None:
        trained_by(optimizer, model)()
        scheduler.step()

    expect_each_step_as_it_was(checkpointer, train, model)


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(make: Make, device: str, fused: bool) -> None:
    model = Ones()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=fused)
    scaler = torch.amp.GradScaler(device, init_scale=2.0)
    checkpointer = make(keep_last=0)
    checkpointer.protect(optimizer)

    def train() -> None:
        optimizer.zero_grad()
        scaler.scale(model()).backward()
        scaler.step(optimizer)
        scaler.update()

    expect_each_step_as_it_was(checkpointer, train, model)


def test_optimizer_in_backward(make: Make) -> None:
    apply = pytest.importorskip("torch.distributed.optim")._apply_optimizer_in_backward
    model = Ones()
    apply(torch.optim.SGD, model.parameters(), {"lr": 1.0})
    checkpointer = make(keep_last=0)
    checkpointer.protect(model)
    expect_each_step_as_it_was(checkpointer, lambda: model().backward(), model)


def test_accelerate(make: Make, device: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = Ones()
    accelerator = accelerate.Accelerator(cpu=device == "cpu")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    checkpointer = make(keep_last=0)
    checkpointer.protect(optimizer)
    expect_each_step_as_it_was(checkpointer, trained_by(optimizer, model), model)


def test_a_state_dict_that_is_loaded_meanwhile(make: Make) -> None:
    model, other = Ones(), Ones()
    checkpointer = make(keep_last=0)
    checkpointer.protect(model)

    def train() -> None:
        with torch.no_grad():
            other.weight.sub_(1)
        model.load_state_dict(other.state_dict())

    expect_each_step_as_it_was(checkpointer, train, model)


def test_an_optimizer_state_that_is_loaded_meanwhile(make: Make) -> None:
    model = Ones()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    checkpointer = make(keep_last=0)
    checkpointer.protect(optimizer)
    trained_by(optimizer, model)()
    held = {"of": [torch.full((ELEMENTS,), float(step)) for step in range(4)]}
    for step in range(4):
        state = optimizer.state_dict()
        state["state"][0]["momentum_buffer"] = held["of"][step]
        optimizer.load_state_dict(state)
        checkpointer.save(step, {"optimizer": optimizer})
    checkpointer.drain()
    for step in range(4):
        loaded = checkpointer.load(step)["optimizer"]["state"][0]["momentum_buffer"]
        assert bool((loaded == step).all()), step


@pytest.fixture
def compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run has compiled says nothing of the fence that is tested now."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr("torch._inductor.config.cpp_cache_precompile_headers", False, raising=False)  # For one file.


@pytest.mark.usefixtures("compiled_anew")
def test_compiled_step(make: Make) -> None:
    model = Ones()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(1.0, device="cpu"))
    checkpointer = make(keep_last=0)
    checkpointer.protect(optimizer)
    step = torch.compile(optimizer.step)

    def train() -> None:
        optimizer.zero_grad()
        model().backward()
        step()

    expect_each_step_as_it_was(checkpointer, train, model)


@pytest.mark.usefixtures("compiled_anew")
def test_compiled_whole(make: Make) -> None:
    model = Ones()
    checkpointer = make(keep_last=0)

    @torch.compile(fullgraph=True)
    def train(weight: torch.Tensor) -> None:
        checkpointer.fence()
        weight.sub_(1)

    def run() -> None:
        with torch.no_grad():
            train(model.weight)

    expect_each_step_as_it_was(checkpointer, run, model)


@pytest.mark.parametrize(
    ("devices", "fenced"), [([set()], [(-1, 0)]), ([{1}, {0, 1}, set()], [(0, 100), (1, 101)]), ([], [])]
)
def test_a_fence_holds_the_current_stream_of_each_device_that_saves_read_from(
    make: Make, monkeypatch: pytest.MonkeyPatch, devices: list[set[int]], fenced: list[tuple[int, int]]
) -> None:
    checkpointer = make()
    called = []

    class Core:
        def fence(self, device: int, stream: int, timeout: float | None) -> None:
            called.append((device, stream))
            assert timeout == 7.0

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=100 + device))
        patch.setattr(checkpointer._engine, "core", Core())
        checkpointer._engine.held.extend(Held([], cuda) for cuda in devices)
        checkpointer.fence(timeout=7.0)
        checkpointer._engine.held.clear()

    assert called == fenced


def test_buffers_that_forward_writes(make: Make) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(20_000, momentum=1.0), torch.nn.Flatten())  # 80 kB each
    ballast = torch.zeros(ELEMENTS)
    checkpointer = make(keep_last=0)
    for step in range(1, 5):
        model(torch.full((2, 20_000), float(step)))
        checkpointer.save(step, {"before": ballast, "model": model})
        model(torch.full((2, 20_000), -1.0))
    checkpointer.drain()
    for step in range(1, 5):
        assert bool((checkpointer.load(step)["model"]["0.running_mean"] == step).all()), step


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "averaged"])
def test_a_copy_takes_nothing_of_cairn_along(make: Make, copied: str) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    checkpointer = make()
    checkpointer.protect(model, optimizer)
    model.register_forward_pre_hook(Hook(checkpointer.fence))
    if copied == "pickle":
        pickled = pickle.dumps((model, optimizer))
        assert b"cairn" not in pickled
        other, stepped = pickle.loads(pickled)
    elif copied == "deepcopy":
        other, stepped = copy.deepcopy((model, optimizer))
    else:
        other, stepped = torch.optim.swa_utils.AveragedModel(model).module, copy.deepcopy(optimizer)
    checkpointer.close()
    other.load_state_dict(model.state_dict())
    other(torch.ones(1, 2)).sum().backward()
    stepped.step()


def test_what_calls_no_hooks_is_refused_by_type(make: Make) -> None:
    class Homemade:
        def step(self) -> None: ...

    class NeverInitialised(torch.optim.Optimizer):
        def __init__(self) -> None: ...
        def step(self, closure: Any = None) -> None: ...

    checkpointer = make()
    for unfit in (Homemade(), NeverInitialised(), None):
        with pytest.raises(cairn.InvalidArgument, match=rf"{type(unfit).__name__} never calls torch's step hooks"):
            checkpointer.protect(unfit)
