"""Tensors that are not as they lie in memory: read in chunks through the pool, or copied in the call and counted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import numpy
import pytest
import torch
from cairn import InvalidArgument

Make = Callable[..., cairn.Checkpointer]


def test_what_shares_memory_or_runs_backwards_takes_no_memory_beside_the_pool(root: Path) -> None:
    code = """
        import sys, cairn, numpy, torch
        def peak():
            return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) >> 10
        rows, n = torch.ones(10_000), 30_000_000
        backwards = numpy.ones(n, numpy.float32)[::-1]
        state = {
            "expanded": torch.ones(1).expand(n), "rows": rows.expand(3000, 10_000), "windows": rows.as_strided((n // 5000, 5000), (0, 1)),
            "backwards": backwards, "broadcast": numpy.broadcast_to(rows.numpy(), (3000, 10_000)),
        }
        with cairn.Checkpointer(sys.argv[1], host_memory="32MiB", keep_last=1) as checkpointer:
            checkpointer.save(1, {"first": torch.ones(n // 10)}).wait()
            open("/proc/self/clear_refs", "w").write("5")  # The peak is counted from here.
            before = peak()
            for step, (name, tensor) in enumerate(state.items(), 2):
                checkpointer.save(step, {name: tensor}).wait()
                grown = peak() - before
                assert grown < 60, f"{name}: {grown} MiB of 114"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(root)], check=True)


COPIED: dict[str, Any] = {
    "conjugated": (lambda n: torch.ones(n // 8, dtype=torch.complex64).conj(), "lazily conjugated or negated"),
    "negated": (lambda n: torch.ones(n // 4, dtype=torch.complex64).conj().imag, "lazily conjugated or negated"),
    "packed": (lambda n: numpy.ones(n // 4, [("a", "u1"), ("b", "<f4")])["b"], "its elements lie at odd distances"),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_must_be_copied_is_counted(make: Make, name: str) -> None:
    of, why = COPIED[name]
    checkpointer, small, large = make(), of(2 << 20), of((2 << 20) + 64)

    checkpointer.save(1, {"a": small, "b": small}).wait()
    with pytest.raises(InvalidArgument, match=rf'^tensor "b": .*{why}; such tensors are copied .* 4 MiB in all'):
        checkpointer.save(2, {"a": small, "b": large})

    assert numpy.array_equal(
        checkpointer.load()["b"], small.resolve_conj().resolve_neg() if name != "packed" else small
    )
