"""Tensors to read into that share memory: what would overwrite each other is refused, by every way to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
import torch
from dcp_worlds import Worlds, shards, worlds
from readers import Restore, Save, restore, saved
from torch.distributed.checkpoint.api import CheckpointException

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
__all__ = ["restore", "saved", "worlds"]  # Fixtures.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SIX = torch.arange(6.0)


@pytest.mark.parametrize(
    ("stored", "shape", "cut"),
    [
        ([torch.arange(12.0).reshape(3, 4)], 6, lambda x: [x.as_strided((3, 4), (1, 1))]),
        ([torch.arange(12.0).reshape(3, 4)], (3, 1), lambda x: [x.expand(3, 4)]),
        ([SIX, SIX[:2] + 9], 6, lambda x: [x, x[:2]]),
        ([SIX, SIX + 9], 6, lambda x: [x, x]),
        # The same values, but not one tensor: the next checkpoint may have others.
        ([SIX, SIX.reshape(2, 3)], 6, lambda x: [x, x.view(2, 3)]),
        ([SIX, SIX.int()], 6, lambda x: [x, x.view(torch.int32)]),
        # One of them, or both, by way of a temporary tensor.
        ([SIX, SIX[:2].half()], 6, lambda x: [x, x[1:3]]),
        ([SIX.half(), SIX.bfloat16()], 6, lambda x: [x, x]),
        ([SIX.reshape(2, 3), SIX[:2]], (2, 6), lambda x: [x[:, ::2], x[1, 3:5]]),
    ],
)
def test_targets_that_would_overwrite_each_other_are_refused(
    restore: Restore, saved: Save, stored: list[Any], shape: Any, cut: Any
) -> None:
    path = saved({"first": torch.ones(2), **dict(zip("xy", stored, strict=False))})
    into = {"first": torch.zeros(2), **dict(zip("xy", cut(torch.zeros(shape)), strict=False))}

    with pytest.raises(
        (cairn.InvalidArgument, CheckpointException), match='"x".* share|"x" and "y" are one'
    ) as refused:
        restore(path, into)

    assert "InvalidArgument" in repr(refused.value) + str(refused.value)
    assert not any(tensor.any() for tensor in into.values())


@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        ((4, 6), lambda x: [x[:, :2], x[:, 2:]]),
        ((6, 4), lambda x: [x.t()[:, :2], x.t()[:, 3:], x.t()[1:, 2]]),
        ((3, 2), lambda x: torch.view_as_complex(x).real.split(2)),
        (3, lambda x: [x, x, x[:0]]),
    ],
)
def test_views_that_interleave_and_tied_tensors_are_read(restore: Restore, saved: Save, shape: Any, cut: Any) -> None:
    into = dict(zip("xyz", cut(torch.zeros(shape)), strict=False))
    want = {name: torch.randn(tensor.shape) for name, tensor in into.items()}
    if into["x"] is into["y"]:
        want["y"] = want["x"]
    tensors = dict(into)

    restore(saved(want), into)

    for name, tensor in tensors.items():
        assert torch.equal(tensor, want[name]), name


def test_arrays_count_too(root: Path) -> None:
    memory = np.zeros(6)
    with cairn.Checkpointer(root) as checkpointer:
        checkpointer.save(1, {"a": np.ones(6), "b": torch.ones(2, dtype=torch.float64)}).result()
        with pytest.raises(cairn.InvalidArgument, match=r'step-\d+1: tensors "b" and "a" of the tree share memory'):
            checkpointer.restore({"a": memory, "b": torch.from_numpy(memory)[2:4]})
    assert not memory.any()


def test_tied_tensors_that_two_ranks_wrote_are_compared(worlds: Worlds, root: Path) -> None:
    """Where several ranks hold both, each may be written by another one, and the checkpoint does not say that they were
    one tensor."""
    two = worlds(2)
    two.all(
        "def tied(value): t = torch.full((40_000,), value); return {'a': t, 'b': t, 'w': torch.zeros(4)}\n"
        "save(tied(3.0), 1)\n"
        "save({**tied(3.0), 'b': torch.full((40_000,), 4.0)}, 2)\n"
        "into = tied(0.0)\n"
        "def refused():\n"
        "    try: load(into, 2)\n"
        "    except BaseException as error: return 'share memory' in str(error), float(into['a'].sum())"
    )
    files = shards(root, 1)
    assert [("a" in names) + ("b" in names) for names in files] == [1, 1]
    assert two.all("refused()") == [[True, 0.0]] * 2
    assert two.all("load(into, 1); float(into['b'].sum())") == [120_000.0] * 2


def test_one_object_does_not_get_the_states_of_two(root: Path) -> None:
    """State that it makes anew shares no memory."""

    def job(rate: float, steps: int) -> torch.optim.Optimizer:
        parameter = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.AdamW([parameter], lr=rate)
        for _ in range(steps):
            parameter.grad = torch.full((3,), rate)
            optimizer.step()
        return optimizer

    with cairn.Checkpointer(root, host_memory="64MiB") as checkpointer:
        one = job(0.1, 2)
        checkpointer.save(1, {"a": one, "b": one}).result()
        checkpointer.save(2, {"a": one, "b": job(0.2, 2)}).result()
        other = job(0.2, 2)
        other.param_groups[0]["lr"] = 0.1
        checkpointer.save(3, {"a": one, "b": other}).result()
        into = job(0.3, 0)
        checkpointer.restore({"a": into, "b": into}, 1)
        into = job(0.3, 0)
        for step in (2, 3):  # Unlike in plain values, and in tensors alone.
            with pytest.raises(cairn.InvalidArgument, match="b.*(the object of a|are one object in the tree, and two)"):
                checkpointer.restore({"a": into, "b": into}, step)
        assert not into.state and into.param_groups[0]["lr"] == 0.3
