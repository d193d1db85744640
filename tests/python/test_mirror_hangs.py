"""A mirror whose target does not answer: the job beside it goes on, and neither memory nor the root's disk fill."""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
from hung_disk import FrozenDisk
from jobs import COMMAND, expect_whole, mirrors_of, until

HOST_MEMORY = {"host_memory": "16MiB", "chunk": "1MiB", "queue_depth": 2}
STATE = 4 << 20


def tree(step: int) -> dict[str, Any]:
    return {"weight": np.full(STATE // 8, float(step)), "step": step}


def save(checkpointer: cairn.Checkpointer, *steps: int) -> None:
    for step in steps:
        checkpointer.save(step, tree(step)).wait(120)


def resident(process: int) -> int:
    """Bytes of its memory."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def taken(root: Path) -> int:
    """Bytes on the disk, of each file once."""
    files = {found.st_ino: found.st_blocks for path in root.rglob("*") if (found := path.lstat())}
    return sum(files.values()) * 512


def test_a_disk_that_hangs_in_the_middle_of_a_copy(root: Path, tmp_path: Path) -> None:
    with closing(FrozenDisk(tmp_path)) as disk, cairn.Checkpointer(root, keep_last=1, **HOST_MEMORY) as checkpointer:
        target = disk.path / "mirror"
        arguments = [COMMAND, "mirror", root, target, "--json"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as beside:
            assert beside.stdout is not None
            save(checkpointer, 1)
            assert json.loads(beside.stdout.readline())["step"] == 1
            with disk.frozen():
                save(checkpointer, 2)
                disk.wait_for_hung(beside.pid)
                save(checkpointer, 3, 4)
                memory = resident(beside.pid)
                save(checkpointer, *range(5, 12))
                grown = resident(beside.pid) - memory

                assert grown < 1 << 20
                # The newest, what is held, and what the next saves write over.
                until(lambda: taken(root) < 5 * STATE)
                until(lambda: [one.name for one in root.glob("step-*")] == [f"step-{11:020}"])
            copied = json.loads(beside.stdout.readline())["step"]
            while copied != 11:
                copied = json.loads(beside.stdout.readline())["step"]
            beside.terminate()
            assert beside.wait(60) == 0
        with cairn.Checkpointer(target, read_only=True) as reader:
            assert reader.steps()[-1] == 11
            reader.verify(11)
    expect_whole(root, 11)
    assert list(root.glob(".mirrors/*/step-*")) == []


@contextmanager
def silent_fuse(folder: Path) -> Iterator[int]:
    """Mounts there a FUSE filesystem whose process answers nothing, and gives its descriptor. Skips the test where that
    is not permitted."""
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE: {error}")
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    try:
        if libc.mount(b"silent", os.fsencode(folder), b"fuse", 0, options.encode()) != 0:
            pytest.skip(f"a FUSE filesystem may not be mounted here: {os.strerror(ctypes.get_errno())}")
        try:
            # But for the first request, of the mount itself: the kernel holds all others until then.
            _, _, unique = struct.unpack_from("=IIQ", os.read(fuse, 1 << 20))
            answer = struct.pack("=IIIIHHIIHH32x", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0)
            os.write(fuse, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)
            yield fuse
        finally:
            libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH
    finally:
        os.close(fuse)  # What waits for an answer gets an error.


def wait_for_request(fuse: int, process: int) -> None:
    """Returns once the process waits for an answer."""
    while True:
        assert select.select([fuse], [], [], 60)[0]
        if struct.unpack_from("=I", os.read(fuse, 1 << 20), 32)[0] == process:
            return


def test_a_filesystem_that_never_answers_holds_nobody_else(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (silent := tmp_path / "silent").mkdir()
    options = HOST_MEMORY | {"mirrors": [cairn.Mirror(silent / "mirror")], "mirror_timeout": 0.1}
    with silent_fuse(silent) as fuse:
        checkpointer = cairn.Checkpointer(root, keep_last=1, **options)
        save(checkpointer, 1)
        (beside,) = mirrors_of(os.getpid())
        wait_for_request(fuse, beside)
        memory = resident(beside)
        save(checkpointer, *range(2, 8))
        assert resident(beside) - memory < 1 << 20
        checkpointer.close()

        assert f"is left behind (process {beside})" in caplog.text
        assert Path(f"/proc/{beside}").exists()
    until(lambda: not Path(f"/proc/{beside}").exists())  # Once there is an answer.
    expect_whole(root, 7)
