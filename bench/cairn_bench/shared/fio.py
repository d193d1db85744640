"""What the disk gives at this moment: one fio run, with the options that every benchmark here compares with."""

import contextlib
import json
import os
import subprocess

LINE = (
    "fio --name=fio --filename={file} --rw={rw} --bs=4M --iodepth=8 --ioengine=io_uring --direct=1 --size={bytes} "
    "--fallocate=native --end_fsync=1 --iomem={memory} --zero_buffers --output-format=json"
)
PAGES = "/proc/sys/vm/nr_hugepages"


def hugepages(megabytes=96):
    """Where fio's buffers are (its --iomem): in huge pages if this machine lets us reserve so many MiB of them."""
    pages = megabytes // 2
    try:
        with open(PAGES, "r+") as file:
            if int(file.read()) < pages:
                file.seek(0)
                file.write(str(pages))
        with open(PAGES) as file:
            return "shmhuge" if int(file.read()) >= pages else "malloc"
    except OSError:
        return "malloc"


@contextlib.contextmanager
def many_hugepages(megabytes):
    """The same, given back at the end. RuntimeError if they cannot be reserved."""
    with open(PAGES) as file:
        before = file.read()
    try:
        memory = hugepages(megabytes)
        if memory == "malloc":
            raise RuntimeError(f"expected {megabytes} MiB of huge pages for fio, found too few or no permission")
        yield memory
    finally:
        with contextlib.suppress(OSError), open(PAGES, "w") as file:
            file.write(before)


def fio(file, rw, memory, size, keep=False, more=()):
    """Bytes per second of one run over `size` bytes, its fsync included, and its CPU seconds.

    A "write" lays out a fresh file, and removes it again without `keep`; "overwrite" writes over the blocks of the file
    that is there. `more` are options that replace those of LINE.
    """
    if rw == "write" and os.path.exists(file):
        os.unlink(file)
        os.sync()
    command = LINE.format(file=file, rw="write" if rw == "overwrite" else rw, bytes=size, memory=memory)
    output = subprocess.run([*command.split(), *more], check=True, capture_output=True, text=True).stdout
    job = json.loads(output[output.index("{") :])["jobs"][0]
    seconds = job["job_runtime"] / 1000
    cpu_seconds = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
    if rw == "write" and not keep:
        os.unlink(file)
        os.sync()
    return size / seconds, cpu_seconds
