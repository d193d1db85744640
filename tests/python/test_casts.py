"""Tensors that are read into another dtype: by restore, by cairn.dcp with its planner and with DCP's own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
import torch
from cairn._tree.casts import is_lossless
from cairn._tree.tensors import dtype_name, torch_dtype
from readers import Restore, Save, restore, saved
from torch.distributed.checkpoint.api import CheckpointException

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
__all__ = ["restore", "saved"]  # Fixtures.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:Casting complex")
PLAIN = [
    "BOOL",
    "U8",
    "I8",
    "U16",
    "I16",
    "U32",
    "I32",
    "U64",
    "I64",
    "F8_E4M3",
    "F8_E5M2",
    "F16",
    "BF16",
    "F32",
    "F64",
    "C64",
    "complex128",
]
WIDE = torch.arange(4.0) + 0.1


def every_value(name: str) -> torch.Tensor:
    """Of narrow dtypes; of others those at the limits."""
    dtype = torch_dtype(name)
    if dtype.itemsize == 1 and dtype is not torch.bool:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_complex or dtype.is_floating_point:
        real = torch.float64 if name in ("F64", "complex128") else torch.float32
        limits = torch.finfo(real)
        found = torch.tensor([limits.max, limits.tiny, limits.eps, 1 + limits.eps, -0.0], dtype=real)
        return torch.complex(found, found.flip(0)) if dtype.is_complex else found
    limits = torch.iinfo(dtype)
    return torch.tensor(np.array([limits.min, 1, limits.max - 1, limits.max], dtype=str(dtype)[6:]))


def numbers(tensor: torch.Tensor) -> list[Any]:
    """As Python's, which compares numbers of all kinds exactly."""
    found: list[Any] = (
        tensor.float() if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point else tensor
    ).tolist()
    return found


@pytest.mark.parametrize("stored", PLAIN)
def test_a_cast_is_lossless_if_every_value_is_kept(stored: str) -> None:
    values = every_value(stored)
    values = values[~values.isnan()]
    for given in PLAIN:
        kept = numbers(torch.empty(values.shape, dtype=torch_dtype(given)).copy_(values)) == numbers(values)
        assert is_lossless(stored, given) is kept, (stored, given)


def test_what_loses_nothing_is_done_and_logged_once(
    restore: Restore, saved: Save, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        "half": torch.arange(6.0).bfloat16().reshape(2, 3),
        "strided": torch.arange(6.0).half().reshape(2, 3),
        "small": torch.tensor([-3, 2**15 - 1], dtype=torch.int16),
        "flag": torch.tensor(True),
        "same": torch.ones(3),
    }
    path = saved(given)
    into = {
        "half": torch.nn.Parameter(torch.zeros(2, 3)),
        "strided": torch.zeros(3, 2, dtype=torch.float64).t(),
        "small": torch.zeros(2, dtype=torch.int64),
        "flag": torch.zeros((), dtype=torch.uint8),
        "same": torch.zeros(3),
    }
    tensors = dict(into)
    caplog.set_level(logging.INFO, "cairn")

    restore(path, into, None)

    for name, tensor in tensors.items():
        assert numbers(tensor) == numbers(given[name]), name
    told = [record for record in caplog.records if "another dtype" in record.message]
    assert [(one.levelname, "4 tensors" in one.message, "half (BF16 in" in one.message) for one in told] == [
        ("INFO", True, True)
    ]


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (WIDE, torch.zeros(4, dtype=torch.bfloat16)),
        (torch.tensor([2**40]), torch.zeros(1, dtype=torch.int32)),
        (torch.tensor([200], dtype=torch.uint8), torch.zeros(1, dtype=torch.int8)),
        (torch.tensor([1.9]), torch.zeros(1, dtype=torch.int64)),
        (torch.tensor([1 + 2j]), torch.zeros(1)),
        (torch.tensor([5, 0]), torch.zeros(2, dtype=torch.bool)),
        (torch.tensor(2**24 + 1, dtype=torch.int32), torch.tensor(0.0)),
        (torch.tensor([0.1, 500.0]), torch.zeros(2).to(torch.float8_e4m3fn)),
    ],
    ids=lambda one: dtype_name("", one),
)
def test_what_may_lose_something_is_refused_unless_allowed(
    restore: Restore,
    saved: Save,
    stored: torch.Tensor,
    given: torch.Tensor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = saved({"first": torch.ones(2), "model": {"w": stored}})
    into = {"first": torch.zeros(2), "model": {"w": given.clone()}}

    with pytest.raises((cairn.InvalidArgument, CheckpointException)) as refused:
        restore(path, into, None)

    told = str(refused.value)
    assert "InvalidArgument" in repr(refused.value) + told
    for word in ("step-00000000000000000001", "w", dtype_name("", stored), dtype_name("", given), 'cast="allow"'):
        assert word in told
    assert numbers(into["first"]) == [0, 0] and numbers(into["model"]["w"]) == numbers(given)

    restore(path, into, "allow")

    assert numbers(into["first"]) == [1, 1]
    assert numbers(into["model"]["w"]) == numbers(given.clone().copy_(stored))
    assert [one.levelname for one in caplog.records if "with a loss" in one.message] == ["WARNING"]


def test_restore_converts_arrays_too(root: Path) -> None:
    with cairn.Checkpointer(root) as checkpointer:
        checkpointer.save(1, {"a": np.arange(3, dtype="f4"), "b": np.array([1.5])}).result()
        into = {"a": np.zeros(3), "b": np.zeros(1, dtype="f4")}
        with pytest.raises(cairn.InvalidArgument, match=r"b: the tree has F32 \[1\], the checkpoint has F64 \[1\]"):
            checkpointer.restore(into)
        assert not into["a"].any()
        checkpointer.restore(into, cast="allow")
    assert into["a"].tolist() == [0, 1, 2] and into["b"].tolist() == [1.5]


def test_bad_arguments(root: Path) -> None:
    with cairn.Checkpointer(root) as checkpointer:
        for call in (
            lambda: checkpointer.restore({}, cast="yes"),  # type: ignore[arg-type]
            lambda: cairn.dcp.StorageReader(checkpointer, cast=True),  # type: ignore[arg-type]
            lambda: cairn.dcp.load({}, storage_reader=cairn.dcp.StorageReader(checkpointer), cast="allow"),
        ):
            with pytest.raises(cairn.InvalidArgument, match="cast"):
                call()
