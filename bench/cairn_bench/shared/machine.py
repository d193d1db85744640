"""The machine: what a result was measured on, and how its memory is made ready before each measurement."""

import atexit
import contextlib
import mmap
import multiprocessing
import os
import platform
import random
import subprocess

from . import ROOT, WORK

_SPARSE = 1 << 40  # Bytes: many times what a machine has of memory.
_BLOCK = 4 << 20


def machine(directory):
    """Cores, processor, kernel, and the filesystem that `directory` is on, in one line."""
    with open("/proc/cpuinfo") as file:
        models = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    model = " and ".join(sorted(models)) or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores, {model}; Linux {platform.release()}; {words(directory)}"


def mounted_at(directory):
    """(type, name of the device) of the filesystem that `directory` is on."""
    device = os.stat(directory).st_dev
    here = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    for mount in mounts:
        if mount[2] == here:
            return mount[mount.index("-") + 1], os.path.basename(os.path.realpath(f"/sys/dev/block/{here}"))
    return "an unknown filesystem", ""


def words(directory):
    """The directory's filesystem, whether it has a journal, and whether a loop device is below it."""
    kind, device = mounted_at(directory)
    loop = f", on a loop device in a file on {_below(device)}" if device.startswith("loop") else ""
    return kind + {"ext4": _journal(device), "xfs": " with a journal"}.get(kind, "") + loop


def _journal(device):
    # The kernel lists a mode of data only if there is a journal.
    try:
        with open(f"/proc/fs/ext4/{device}/options") as file:
            mode = next((line.strip() for line in file if line.startswith("data=")), None)
    except OSError:
        return ""
    return f" with a journal ({mode})" if mode else " without a journal"


def _below(device):
    try:
        with open(f"/sys/block/{device}/loop/backing_file") as file:
            above = os.path.dirname(file.read().removesuffix(" (deleted)\n"))
        return mounted_at(above)[0]
    except OSError:
        return "an unknown filesystem"


def commit():
    """The commit that is checked out; "-dirty" if anything but documents and results has changed since. On a machine to
    which the checkout did not travel CAIRN_COMMIT names it."""
    if given := os.environ.get("CAIRN_COMMIT"):
        return given

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    try:
        ran = git("describe", "--always", "--exclude=*", "--abbrev=7")
    except FileNotFoundError:
        return "unknown (no git)"
    if ran.returncode != 0:
        return "unknown (no git checkout)"
    changed = git("diff", "--quiet", "HEAD", "--", ".", ":!bench/results", ":!*.md").returncode != 0
    return ran.stdout.strip() + ("-dirty" if changed else "")


def drop_caches():
    """Drops the page cache. Needs root."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def drop_pages(folder):
    """Writes back what is in that folder's files, and drops their pages from the page cache."""
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def memory():
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _remove(file):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file)


def fill_page_cache(size):
    """Makes `size` bytes of the page cache, or of free memory, pages of a sparse file.

    A virtual machine may have given free memory back to its host. To get it again takes seconds per GB, and only those
    pay that who write or read through the page cache. On a machine that has long been in use nobody does: the page cache
    has all memory, and gives up the pages that nobody has used for longest. With the whole memory's size, once, then
    with some times what is measured before each measurement, it is so here. The file goes when the program ends.
    """
    os.makedirs(WORK, exist_ok=True)
    with open(os.path.join(WORK, "sparse"), "ab") as file:
        file.truncate(_SPARSE)
    if multiprocessing.parent_process() is None:  # Others still use it, or will.
        atexit.register(_remove, file.name)
    with open(file.name, "rb", buffering=0) as file, mmap.mmap(-1, _BLOCK) as block:
        file.seek(random.randrange(_SPARSE - size) & -_BLOCK)  # Pages that are not there yet, almost surely.
        for _ in range(size // _BLOCK):
            file.readinto(block)
