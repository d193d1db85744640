"""The machine's memory, brought into the same condition before each measurement."""

import ctypes
import mmap


def drop_caches():
    """Needs root."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def touch(size):
    """Touches that much fresh memory and frees it, so that the next to need some (the page cache too) finds it there.

    A virtual machine may have given free memory back to its host, which costs seconds per GB to get again.
    """
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    size = min(size, available // 2)
    block = mmap.mmap(-1, size)
    first = ctypes.c_char.from_buffer(block)
    ctypes.memset(ctypes.addressof(first), 1, size)
    del first
    block.close()
