"""The disks of hung_disk.py hang, and answer again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hung_disk import FrozenDisk, Gate
from jobs import ENVIRONMENT, expect_whole

SAVE = """
import sys, cairn, numpy
small = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, "keep_last": 2}
with cairn.Checkpointer(sys.argv[1], io_queue=sys.argv[2], **small) as c:
    for line in sys.stdin:
        print(c.save(int(line), {"x": numpy.ones(1 << 20)}).result(), flush=True)
"""


@contextmanager
def saver(root: Path, io_queue: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that saves the steps whose numbers it reads, and prints those that are durable."""
    child = subprocess.Popen(
        [sys.executable, "-c", SAVE, root, io_queue],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | environment,
    )
    try:
        yield child
        child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()


def ask(child: subprocess.Popen[str], step: int) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{step}\n")
    child.stdin.flush()


def answer(child: subprocess.Popen[str]) -> int:
    assert child.stdout is not None
    return int(child.stdout.readline())


def test_a_gate_holds_a_call_until_it_opens(tmp_path: Path, root: Path) -> None:
    gate = Gate(tmp_path)
    calls = ["create", "write", "fsync", "allocate", "rename", "mkdir"]
    with saver(root, "threads", **gate.environment) as child:
        for step, call in enumerate(calls):
            with gate.hold(call, path=root):
                ask(child, step)
                gate.wait_for(call)
                assert not (root / f"step-{step:020}").exists()
            assert answer(child) == step
        assert gate.waiting() == 0
    expect_whole(root, 4, 5)


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_a_frozen_disk_holds_a_save_until_it_thaws(tmp_path: Path, filesystem: str) -> None:
    with closing(FrozenDisk(tmp_path, filesystem)) as disk:
        with saver(disk.path / "run", "auto") as child:
            ask(child, 1)
            assert answer(child) == 1
            with disk.frozen():
                ask(child, 2)
                disk.wait_for_hung(child.pid)
                assert [folder.name for folder in disk.path.glob("run/step-*")] == [f"step-{1:020}"]
            assert answer(child) == 2
        expect_whole(disk.path / "run", 1, 2)
