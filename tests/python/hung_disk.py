"""Disks that stop answering, for real processes.

`Gate` works everywhere: a library that the processes preload holds chosen calls until they are let on. Their
checkpointers need io_queue="threads", because what io_uring does is no call of theirs. `FrozenDisk` is a filesystem
that hangs by itself, in the kernel: what waits for it cannot be killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import until

# What a gate can hold. "create" is an open that creates, "open" any other; "allocate" is truncate too, and "unlink" is
# rmdir too.
CALLS = ("create", "open", "read", "write", "fsync", "allocate", "rename", "unlink", "mkdir")


class Gate:
    """Holds system calls of processes that run in `environment`. Skips the test where there is no C compiler.

    A held call has not reached the kernel. `folder` gets the library, and must not be what is held.
    """

    def __init__(self, folder: Path) -> None:
        if (compiler := shutil.which("cc")) is None:
            pytest.skip("no C compiler for the library that holds calls")
        library, word = folder / "hung_disk.so", folder / "hung_disk.gate"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._calls = ctypes.CDLL(str(library))
        word.write_bytes(bytes(self._calls.GateBytes()))
        self._calls.GateMap(os.fsencode(word))
        self.environment = {"LD_PRELOAD": str(library), "CAIRN_GATE": str(word)}

    @contextmanager
    def hold(self, *calls: str, path: object) -> Iterator[None]:
        """Within it, these calls (of CALLS; none: all) wait, on paths that contain `path`. At its end they go on."""
        self._calls.GateHold(_bits(calls), os.fsencode(str(path)))
        try:
            yield
        finally:
            self.open()

    def open(self) -> None:
        """Lets all calls on."""
        self._calls.GateOpen()

    def waiting(self, *calls: str) -> int:
        """How many of these calls (none: all) wait now."""
        return int(self._calls.GateWaiting(_bits(calls)))

    def wait_for(self, *calls: str, count: int = 1, seconds: int = 30) -> None:
        """Returns once so many of these calls (none: all) wait. Fails after so many seconds."""
        found = self._calls.GateAwait(_bits(calls), count, seconds)
        now = self.waiting(*calls)
        assert found, f"expected {count} held calls of {calls or CALLS} within {seconds} s, found {now}"


def _bits(calls: tuple[str, ...]) -> int:
    return sum(1 << CALLS.index(call) for call in calls or CALLS)


# Keeps the mount. Whatever becomes of the test, the end of its stdin thaws and unmounts.
_KEEPER = """
mount -o loop,discard "$1" "$2" && echo mounted || exit
while read -r word; do fsfreeze "$word" "$2" && echo "$word"; done
fsfreeze --unfreeze "$2" 2>/dev/null
umount --lazy "$2"
"""


class FrozenDisk:
    """A filesystem of its own, "ext4" or "xfs", on a loop device, mounted at `path`. Skips the test where that is not
    permitted.

    While it is frozen, whoever writes, creates, renames or removes there waits, and cannot be killed; reads go on.
    Close it after the processes that use it have ended. The end of the test's process closes it too.
    """

    def __init__(self, folder: Path, filesystem: str = "ext4", mebibytes: int = 320) -> None:
        self.path = folder / "disk"
        self.path.mkdir(parents=True)
        image = folder / "disk.image"
        with image.open("wb") as file:
            file.truncate(mebibytes << 20)
        quiet = {"ext4": ["-q", "-E", "nodiscard"], "xfs": ["-q", "-K"]}[filesystem]
        try:
            subprocess.run([f"mkfs.{filesystem}", *quiet, image], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no {filesystem} for a disk that hangs: {error}")
        self._keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "sh", image, self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C and a killed process group do not end it.
        )
        assert self._keeper.stdout is not None and self._keeper.stderr is not None
        if self._keeper.stdout.readline() != "mounted\n":
            pytest.skip(f"a loop device may not be mounted here: {self._keeper.stderr.read().strip()}")
        image.unlink()

    def freeze(self) -> None:
        """Returns when no more writes reach the disk."""
        self._tell("--freeze")

    def thaw(self) -> None:
        self._tell("--unfreeze")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def wait_for_hung(self, pid: int) -> None:
        """Returns once a thread of this process waits for the disk."""
        until(lambda: any(_waits_for_disk(task) for task in Path(f"/proc/{pid}/task").iterdir()))

    def close(self) -> None:
        """Thaws and unmounts. What still has files open there keeps them."""
        self._keeper.communicate(timeout=60)

    def _tell(self, word: str) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None and self._keeper.stderr is not None
        self._keeper.stdin.write(word + "\n")
        self._keeper.stdin.flush()
        if self._keeper.stdout.readline() != word + "\n":
            raise OSError(f"fsfreeze {word} of {self.path}: {self._keeper.stderr.readline().strip()}")


def _waits_for_disk(task: Path) -> bool:
    """Whether nothing but a disk can wake a thread, given by its folder in /proc. io_uring's workers are among them."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "D"
