"""What jobs of several ranks save in tests, what must be on the disk afterwards, and what other tests share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn

COMMAND = next(
    (path for path in (Path(cairn.__file__).parents[1] / "bin/cairn", Path(sys.prefix) / "bin/cairn") if path.exists()),
    Path("cairn"),
)
# c10d's store asks a name server who each client is, in its only thread. One answer that is lost holds all ranks for
# 5 s: nobody is asked. The resolver reads this once, when a process first looks up a name.
os.environ.setdefault("RES_OPTIONS", "attempts:0")
# Of a child that imports what this process does.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

# Runs in a rank.
TREE = """
def tree(step, rank):
    return {
        "mine": torch.full((3 + rank, 1000), 10.0 * step + rank),
        "shared": {f"w{i}": torch.full((500 * (i + 1),), 1.0 * step + i) for i in range(6)},
        "rank": rank, "step": step,
    }
def blank(rank):
    return {"mine": torch.zeros(3 + rank, 1000), "shared": {f"w{i}": torch.zeros(500 * (i + 1)) for i in range(6)},
            "rank": None, "step": None}
def same(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
"""
SHARED = 'replicated=["shared/*", "step"]'


def alone(root: Path, **options: Any) -> cairn.Checkpointer:
    return cairn.Checkpointer(root, host_memory="8MiB", chunk="1MiB", queue_depth=2, read_only=True, **options)


def expect_whole(root: Path, *steps: int) -> None:
    """These checkpoints, each good in every byte, and nothing else."""
    with alone(root) as reader:
        assert reader.steps() == list(steps)
        for one in reader.checkpoints():
            assert one.damage is None
            reader.verify(one.step)


def take(root: Path, *steps: int) -> None:
    """These steps' names are taken by something else: the commit's rename fails."""
    for step in steps:
        (root / f"step-{step:020}").mkdir(parents=True)
        (root / f"step-{step:020}" / "theirs").write_text("")


def mirrors_of(process: int) -> list[int]:
    """Its child processes that are mirrors."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    found = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in found if "mirror" in Path(f"/proc/{child}/cmdline").read_text()]


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Returns once the condition holds. Fails after so many seconds, instead of hanging."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so within {seconds:g} s"
