"""A fence in a CUDA graph would order the capture, which runs nothing, and no replay. So it is an error.

Captures need a GPU. Where there is none, torch says of a stream what it would say of a captured one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cairn
import pytest
import torch

Make = Callable[..., cairn.Checkpointer]


@pytest.fixture
def compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr("torch._inductor.config.cpp_cache_precompile_headers", False, raising=False)  # For one file.
    torch._dynamo.reset()


@contextmanager
def captured() -> Iterator[None]:
    """Work inside is captured in a CUDA graph."""
    if torch.cuda.is_available():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        yield


def trained() -> torch.optim.Optimizer:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.nn.Parameter(torch.ones(1000, device=device))
    weight.grad = torch.ones(1000, device=device)
    return torch.optim.SGD([weight], lr=1.0)


def test_fence_within_a_capture_is_refused(make: Make) -> None:
    checkpointer = make()

    with (
        pytest.raises(cairn.FailedPrecondition, match=r"Call Checkpointer\.fence\(stream\) before each replay"),
        captured(),
    ):
        checkpointer.fence()


def test_step_of_a_protected_optimizer_within_a_capture_is_refused(make: Make) -> None:
    optimizer = trained()
    checkpointer = make()
    checkpointer.protect(optimizer)

    with pytest.raises(cairn.FailedPrecondition, match="cannot be captured in a CUDA graph"), captured():
        optimizer.step()


def test_optimizer_that_was_captured_cannot_be_protected_later(make: Make) -> None:
    optimizer = trained()
    checkpointer = make()
    with captured():
        optimizer.step()

    with pytest.raises(cairn.FailedPrecondition, match=r"a step of torch.optim.sgd.SGD was captured in a CUDA graph"):
        checkpointer.protect(optimizer)
    checkpointer.protect(trained())


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize(("mode", "partition"), [("reduce-overhead", False), ("max-autotune", True)])
def test_fence_in_code_that_is_compiled_into_cuda_graphs_is_refused(make: Make, mode: str, partition: bool) -> None:
    checkpointer = make()
    weight = torch.ones(1000)

    @torch.compile(mode=mode)
    def step(weight: torch.Tensor) -> None:
        checkpointer.fence()
        weight.sub_(1)

    with (
        torch._inductor.config.patch(graph_partition=partition),
        pytest.raises(Exception, match=r'mode="max-autotune-no-cudagraphs", or call Checkpointer\.fence\(\) before it'),
    ):
        step(weight)

    assert bool((weight == 1).all())


@pytest.mark.usefixtures("compiled_anew")
def test_fence_before_code_that_is_compiled_into_cuda_graphs_works(make: Make) -> None:
    checkpointer = make(keep_last=0)
    weight = torch.ones(4_000_000)

    @torch.compile(mode="reduce-overhead")
    def step(weight: torch.Tensor) -> None:
        weight.sub_(1)

    for number in range(3):
        checkpointer.save(number, {"weight": weight})
        checkpointer.fence()
        step(weight)
    checkpointer.drain()

    for number in range(3):
        assert bool((checkpointer.load(number)["weight"] == 1 - number).all())
