"""Directories on fresh filesystems: ext4 with its journal, and XFS; on the disk or in memory.

A fresh filesystem lies in a file without a name, on a loop device that ends with its last user, mounted in a mount
namespace of this process. So nothing of it is left when the process ends, even by SIGKILL, but an empty directory.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import tempfile
import time

from .machine import words
from .options import some_of
from .report import short

MACHINE = "machine"  # The directory as it is.
MEMORY = "/dev/shm"
# 4 KiB sectors, which direct I/O to the outer file can pass on as they are. No discard: it would give back the file's
# blocks. Nothing is left to be initialised while something is measured.
MAKE = {
    "ext4": "mkfs.ext4 -q -F -b 4096 -O has_journal -E nodiscard,lazy_itable_init=0,lazy_journal_init=0",
    "xfs": "mkfs.xfs -q -f -K -s size=4096",
}
PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
LEAST_BYTES = 320 << 20  # mkfs.xfs makes none below 300 MiB.
FLUSHES, BLOCK = 20, 4096
CHUNK = 4 << 20
END_SECONDS = 60
CONTROL = "/dev/loop-control"

# From linux/loop.h, linux/inotify.h, linux/mount.h and linux/sched.h.
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO = 0x4C82, 0x4C0A, 4, 16
LOOP_CONFIG = struct.Struct("II52xI240x")  # fd, block size; info.lo_flags
IN_CLOEXEC, IN_DELETE_SELF = 0o2000000, 0x400
MS_REC, MS_SLAVE, MNT_DETACH = 1 << 14, 1 << 19, 2
CLONE_NEWNS = 0x20000

libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """A fresh filesystem cannot be made here. The message says what is missing."""


def add_filesystems(parser):
    about = "by comma: machine (--dir as it is; the default), and ext4 and xfs, made in files in --dir"
    parser.add_argument("--filesystems", type=some_of((MACHINE, *MAKE)), default=[MACHINE], help=about)


@contextlib.contextmanager
def places(names, directory, size):
    """{name: a directory}: `directory` itself, and fresh filesystems of `size` bytes. Unavailable if one cannot be."""
    with contextlib.ExitStack() as stack:
        yield {
            name: directory if name == MACHINE else stack.enter_context(fresh(name, directory, size)) for name in names
        }


def lines(found):
    """What a CSV's head says of places(): one line for each, which `flushes` reads again."""
    return [
        f"filesystem {name}: {words(directory)}; a flush takes {short(1000 * flush_seconds(directory))} ms"
        for name, directory in found.items()
    ]


def flushes(head):
    """{filesystem: (words, milliseconds of a flush)} of a CSV's head."""
    matches = (re.fullmatch(r"filesystem (\S+): (.*); a flush takes (\S+) ms", line) for line in head)
    return {found[1]: (found[2], float(found[3])) for found in matches if found}


def flush_seconds(directory):
    """The median of 20 fdatasyncs, each after a block of 4 KiB was overwritten past the page cache."""
    seconds = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file, mmap.mmap(-1, BLOCK) as block:
        file.write(block)
        os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # A filesystem in memory may have no direct I/O.
            _direct(file.fileno())
        for _ in range(FLUSHES):
            os.pwrite(file.fileno(), block, 0)
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


@contextlib.contextmanager
def in_memory(directory, gigabytes):
    """A directory on a fresh ext4 of that size in memory; `directory` itself if the size is None."""
    if gigabytes is None:
        yield directory
    else:
        with fresh("ext4", MEMORY, int(gigabytes * 1e9)) as where:
            yield where


@contextlib.contextmanager
def fresh(kind, directory, size):
    """A directory on a new filesystem of `kind`, of about `size` bytes, in a file in `directory`.

    The file's blocks were all written before, so that a write to it allocates none. Unavailable if it cannot be made.
    When this ends, mount, loop device and file are gone; also after an exception or SIGINT. TimeoutError if a process
    still uses the filesystem a minute later: then it is gone when that process ends.
    """
    command = _required(kind)
    with _interrupts_held_back() as interruptible:
        where = tempfile.mkdtemp(prefix="filesystem-", dir=directory)
        try:
            try:
                end = _mount(command, kind, where, size, interruptible)
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", None) or error
                raise Unavailable(f"a fresh {kind} filesystem in {directory}: {str(said).strip()}") from error
            try:
                with interruptible():
                    yield where
            finally:
                _unmount(where, end)
        finally:
            os.rmdir(where)


def _required(kind):
    """The command that makes the filesystem. Unavailable if this machine or user cannot."""
    if os.geteuid() != 0:
        raise Unavailable(f"a fresh {kind} filesystem needs root: it is mounted on a loop device")
    if not os.path.exists(CONTROL):
        raise Unavailable(f"a fresh {kind} filesystem needs loop devices: there is no {CONTROL}")
    name, *options = MAKE[kind].split()
    program = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        raise Unavailable(f"a fresh {kind} filesystem needs {name}, of Debian's package {PACKAGES[kind]}")
    return [program, *options]


@contextlib.contextmanager
def _interrupts_held_back():
    """SIGINT waits until this ends, but within the context that it gives."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    @contextlib.contextmanager
    def interruptible():
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield interruptible
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _mount(command, kind, where, size, interruptible):
    """Makes the filesystem and mounts it. Returns what becomes readable once its file is gone."""
    _own_mounts()
    size = -(-max(size, LEAST_BYTES) // CHUNK) * CHUNK
    with tempfile.TemporaryFile(dir=os.path.dirname(where), buffering=0) as file:
        end = _end_of(file.fileno())
        os.posix_fallocate(file.fileno(), 0, size)
        with _loop_device(file.fileno()) as device:
            with interruptible():
                subprocess.run([*command, device.name], check=True, capture_output=True, text=True)
                os.fsync(device.fileno())
                _write_again(file.fileno(), size)
            _call("mount", libc.mount, device.name.encode(), where.encode(), kind.encode(), 0, None)
    return end


@functools.cache
def _own_mounts():
    """From now on what this process mounts is seen only here and by its children, and ends with the last of them."""
    _call("unshare", libc.unshare, CLONE_NEWNS)
    _call("mount", libc.mount, b"none", b"/", None, MS_REC | MS_SLAVE, None)


def _end_of(file):
    events = os.fdopen(_call("inotify_init1", libc.inotify_init1, IN_CLOEXEC), "rb", buffering=0)
    path = f"/proc/self/fd/{file}".encode()
    _call("inotify_add_watch", libc.inotify_add_watch, events.fileno(), path, IN_DELETE_SELF)
    return events


@contextlib.contextmanager
def _loop_device(file):
    """The device, opened. It lets go of the file when it is closed and not mounted."""
    config = LOOP_CONFIG.pack(file, BLOCK, LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO)
    with open(CONTROL, "r+b", buffering=0) as control:
        while True:
            number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
            with open(f"/dev/loop{number}", "r+b", buffering=0) as device:
                try:
                    fcntl.ioctl(device, LOOP_CONFIGURE, config)
                except OSError as error:
                    if error.errno == errno.EBUSY:  # Another process was faster.
                        continue
                    raise
                with open(f"/sys/block/loop{number}/loop/dio") as direct:
                    if direct.read().strip() != "1":
                        raise OSError(errno.EINVAL, "the filesystem below has no direct I/O for a loop device")
                yield device
                return


def _write_again(file, size):
    """Writes what is there. Blocks that were only reserved, or set to zero by mkfs, are written from then on."""
    _direct(file)
    with mmap.mmap(-1, CHUNK) as chunk:
        for at in range(0, size, CHUNK):
            if os.preadv(file, [chunk], at) != CHUNK or os.pwrite(file, chunk, at) != CHUNK:
                raise OSError(errno.EIO, "a short read or write")
    os.fsync(file)


def _unmount(where, end):
    """Returns when the filesystem has ended and its file is gone.

    A process that was just killed may still have writes in flight, and then a plain umount fails with EBUSY. No event
    says when to try again; but there is one for the end of all, when the file without a name is deleted.
    """
    _call("umount", libc.umount2, where.encode(), MNT_DETACH)
    with end:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        if not poll.poll(1000 * END_SECONDS):
            raise TimeoutError(f"{where}: a process still uses it after {END_SECONDS} s")


def _direct(file):
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)


def _call(what, function, *arguments):
    if (result := function(*arguments)) < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
