"""Measures the root in memory (`memory=`): states of the CPU, one process.

In adjacent pairs, in turns with a copy of as many bytes by as many threads into memory that was touched before:
a save until it is kept, in steady state; and the restore of 4 GiB, verified, in a new process, after the one that kept
them was killed by SIGKILL. Then a disk that hangs for a minute (an ext4 of its own is frozen): how many steps take more
than 10 ms longer than the same loop's slowest one before. And the memory that a process takes above its slots.
Needs root, 17 GiB of memory and 2 GiB of disk. Takes about four minutes (an estimate).
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from .shared import filesystems
from .shared.files import begun
from .shared.measures import Measure
from .shared.options import add_directory, add_record, add_repetitions, positive
from .shared.report import Report

TENSORS, THREADS = 16, 2
KEPT = "save to kept, steady, of a copy by as many threads"
RESTORED = "restore of {} GiB after SIGKILL, verified, of a copy by as many threads"
HUNG, ABOVE = "steps while the disk hangs", "host memory above the slots"
RATE = ("cairn bytes/s", "copy bytes/s")
MEASURES = (
    Measure(KEPT, *RATE, goal=0.8, more_is_better=True),
    Measure(RESTORED.format(".*"), *RATE, goal=0.4, more_is_better=True),
    Measure(HUNG, "delayed", goal=0),
    Measure(HUNG, "steps"),
    Measure(ABOVE, "MiB", goal=64, unit=" MiB"),
)


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 15, "--pairs")
    parser.add_argument("--gib", type=positive(int), default=4, help="of the state that is restored; default: 4")
    parser.add_argument("--hang", type=positive(int), default=60, help="seconds; default: 60")


def run(args):
    report, head = Report(args.folder), begun(args.dir)
    with report.kept("memory", head), tempfile.TemporaryDirectory(dir=filesystems.MEMORY) as memory:
        for what in (kept, above, restored, hung):
            with tempfile.TemporaryDirectory(dir=args.dir) as root:
                what(report, args, root, os.path.join(memory, what.__name__))
            report.judge(MEASURES)
    print(report.text())
    report.write("memory", head)


def state(size):
    """Every page is touched."""
    import torch

    return {f"w{at}": torch.rand(size // TENSORS // 4) for at in range(TENSORS)}


def opened(root, memory, **options):
    import cairn

    os.makedirs(memory, exist_ok=True)
    return cairn.Checkpointer(root, memory=memory, max_in_flight=1, keep_last=1, worker_threads=THREADS, **options)


def timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def copy_by_threads(targets, sources):
    """Seconds; the sources may be fewer, and are then copied again."""

    def part(first):
        for at in range(first, len(targets), THREADS):
            source = sources[at % len(sources)]
            ctypes.memmove(
                targets[at].data_ptr(), source.data_ptr(), targets[at].nbytes
            )  # Without the interpreter's lock.

    threads = [threading.Thread(target=part, args=(first,)) for first in range(THREADS)]
    return timed(lambda: ([one.start() for one in threads], [one.join() for one in threads]))


def beside_a_copy(report, measure, pair, size, ours, copies):
    seconds = {}
    for name, work in (("cairn", ours), ("copy", copies))[:: 1 if pair % 2 else -1]:
        seconds[name] = work()
    for name, took in seconds.items():
        report.single(measure, pair, f"{name} bytes/s", size / took)


def kept(report, args, root, memory):
    size = 512 << 20
    tree = state(size)
    targets = [value.clone() for value in tree.values()]
    with opened(root, memory) as checkpointer:

        def save(step):
            return timed(lambda: checkpointer.save(step, tree).kept())

        for step in range(1, 6):  # From then on each slot was written before.
            save(step)
            checkpointer.drain()
        for pair in range(args.pairs):
            ours, copies = lambda: save(10 + pair), lambda: copy_by_threads(targets, list(tree.values()))  # noqa: B023
            beside_a_copy(report, KEPT, pair, size, ours, copies)
            checkpointer.drain()


def above(report, args, root, memory):
    """In a process of its own, at the end of ten saves that are drained."""
    for pair in range(3):
        found = child("take", pair, root, memory)
        report.single(ABOVE, pair, "MiB", json.loads(found.stdout.readline()))
        found.stdin.close()
        found.wait()


def restored(report, args, root, memory):
    size = args.gib << 30
    saver = child("keep", args.gib, root, memory)
    assert saver.stdout.readline() == "kept\n"
    saver.send_signal(signal.SIGKILL)
    saver.wait()
    sources = list(state(1 << 30).values())
    tree = state(size)
    measure = RESTORED.format(args.gib)
    with opened(root, memory, read_only=True) as reader:
        for pair in range(max(3, args.pairs // 3)):
            copies = lambda: copy_by_threads(
                [part for value in tree.values() for part in value.chunk(args.gib)], sources
            )
            beside_a_copy(report, measure, pair, size, lambda: timed(lambda: reader.restore(tree)), copies)


def hung(report, args, root, memory):
    size = 64 << 20
    tree = state(size)
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(filesystems.fresh("ext4", os.path.dirname(root), 1 << 30))
        checkpointer = stack.enter_context(opened(disk, memory, stall_timeout=5))

        def steps(first, seconds):
            taken, end = [], time.perf_counter() + seconds
            while time.perf_counter() < end:
                taken.append(timed(lambda: checkpointer.save(first + len(taken), tree).kept()))
            return taken

        steps(1, 5)
        checkpointer.drain()
        before = steps(10_000, 5)
        subprocess.run(["fsfreeze", "--freeze", disk], check=True)
        try:
            during = steps(20_000, args.hang)
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)
        report.single(HUNG, 0, "steps", len(during))
        report.single(HUNG, 0, "delayed", sum(took > max(before) + 0.010 for took in during))
        report.single(HUNG, 0, "slowest before, ms", 1e3 * max(before))
        report.single(HUNG, 0, "slowest, ms", 1e3 * max(during))


def child(what, number, root, memory):
    command = [sys.executable, "-c", f"from cairn_bench import memory\nmemory.{what}({number}, {root!r}, {memory!r})"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def keep(gib, root, memory):
    """Says that a save is kept, and waits to be killed."""
    with opened(root, memory) as checkpointer:
        checkpointer.save(1, state(gib << 30)).kept()
        print("kept", flush=True)
        sys.stdin.read()


def take(pair, root, memory):
    """Prints how many MiB this process takes more than before it opened, less its slots in memory."""
    import cairn  # noqa: F401

    tree = state(512 << 20)
    before = resident()
    with opened(os.path.join(root, str(pair)), os.path.join(memory, str(pair))) as checkpointer:
        for step in range(1, 11):
            checkpointer.save(step, tree).kept()
            checkpointer.drain()
        print((resident() - before) / (1 << 20), flush=True)


def resident():
    """Bytes that are no file's: slots are files."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))
