"""Strided CUDA tensors go to the engine as they are, also where there is no GPU to make them on.

What the engine does with them: tests/checkpointer/cuda_strides_test.cc."""

from __future__ import annotations

from typing import Any

import cairn.dcp
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn._dcp.reads import Views
from cairn._dcp.targets import goal_of
from cairn._tree.tensors import describe, target_view


class OnGpu(torch.Tensor):
    """A tensor that is on a GPU as far as torch tells, but has no memory there: every operation on it fails."""

    def data_ptr(self) -> int:
        return 4096

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


def on_gpu(like: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        OnGpu, like.shape, strides=like.stride(), dtype=like.dtype, device="cuda:1"
    )
    return made


LAYOUTS = {
    "channels_last": torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": torch.empty(2, 3, 4, 5, 6, dtype=torch.bfloat16).to(memory_format=torch.channels_last_3d),
    "transposed": torch.empty(7, 300).t(),
    "columns": torch.empty(7, 300)[:, 3:50],
    "contiguous": torch.empty(7, 300),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_cuda_tensor_is_saved_and_restored_in_place_whatever_its_strides(name: str) -> None:
    tensor = LAYOUTS[name]

    view = describe("t", on_gpu(tensor))

    dtype = {torch.float32: "F32", torch.bfloat16: "BF16"}[tensor.dtype]
    assert view[2:6] == (dtype, tuple(tensor.shape), tensor.stride(), 1)
    assert target_view("t", on_gpu(tensor)) == view


def test_a_tensor_of_a_rocm_gpu_is_refused_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.1")

    with pytest.raises(
        cairn.Unsupported, match=r'tensor "t": .* found cuda:1: this torch is built for ROCm \(6\.4\.1\)'
    ):
        describe("t", on_gpu(LAYOUTS["contiguous"]))

    assert describe("t", torch.zeros(3))[4:6] == ((1,), -1)


def test_elements_that_share_memory_cannot_be_restored_in_place() -> None:
    with pytest.raises(Exception, match=r"tensor .t. cannot be restored in place: its elements share memory"):
        target_view("t", torch.zeros(3, 1).expand(3, 4))


# A load used to read it into a temporary tensor on the host.
def test_dcp_loads_into_a_strided_cuda_tensor_in_place(make: Any) -> None:
    checkpointer = make()
    tensor = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dcp.save({"t": tensor}, storage_writer=cairn.dcp.StorageWriter(checkpointer, 1))
    reader = cairn.dcp.StorageReader(checkpointer)
    reader.read_metadata()
    assert reader._stored is not None
    views = Views(reader._stored)

    temporary = views.fill(goal_of("t", on_gpu(tensor), reader._stored.find("t", None)))

    assert temporary is None
    assert views.views[0][3:6] == ((2, 3, 4, 5), tensor.stride(), 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_round_trip_on_a_gpu(name: str, make: Any) -> None:
    checkpointer = make()
    saved = torch.rand_like(LAYOUTS[name], device="cuda")
    checkpointer.save(1, {"t": saved}).wait()
    target = torch.zeros_like(saved)

    checkpointer.restore({"t": target})

    assert target.stride() == saved.stride() and torch.equal(target, saved)
