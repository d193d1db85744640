"""Measures Cairn against fio on the same disk, in one run, in adjacent pairs.

Prints a table: the median of the pairs' ratios with a bootstrap 95 % interval, and whether the goal is met, missed, or
not resolved. Without --only it also writes every single value to roofline.csv.
Restores drop the page cache, and `peers` reserves 640 MiB of huge pages: both need root. Needs 16 GiB of disk and 7 GiB
of memory. Takes about half an hour at 1 GB/s (an estimate), with --pairs 5 a third of that.
"""

import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

from .shared import program
from .shared.files import begun
from .shared.fio import LINE, fio, hugepages, many_hugepages
from .shared.machine import drop_caches
from .shared.measures import Measure
from .shared.options import add_directory, add_only, add_record, add_repetitions
from .shared.report import Report

BYTES = 4 << 30
FRESH = "write to durable, 4 GiB, checksums on, fresh files, of fio fresh"
STEADY = "write to durable, 4 GiB, steady state, recycled files, of fio over the same blocks"
ALIKE, UNSUMMED, POOLED = (f"{STEADY}, {what}" for what in (
    "32 MiB of buffers both", "32 MiB of buffers both, checksums off", "512 MiB of buffers both"))  # fmt: skip
CHUNKS = "8 MiB chunks, recycled files, of 4 MiB chunks"
PINNED_CPU, TENSORS_CPU = (f"CPU s/GB, {what}" for what in (
    "pinned, recycled files, checksums off", "CPU tensors, recycled files, checksums on"))  # fmt: skip
RESTORE = "restore, verified, cold, of fio read"
# Some disks read a working set that a cache holds faster. So Cairn gets the host memory of fio's 8 blocks of 4 MiB, and
# fio that of Cairn's pool, which it uses in full with as many blocks under way.
AS_FIO = ("--chunk", str(4 << 20), "--pool", str(32 << 20))
AS_THE_POOL = ("--bs=8M", "--iodepth=64")

RATE = ("cairn bytes/s", "fio bytes/s")
TURNS = ("one bytes/s", "other bytes/s")
MEASURES = (
    Measure(FRESH, *RATE, goal=0.9, more_is_better=True),
    *(Measure(name, *RATE, goal=0.95, more_is_better=True) for name in (STEADY, ALIKE, UNSUMMED, POOLED)),
    Measure(r"fio .*", *TURNS),
    Measure(CHUNKS, "8 MiB of fio", "4 MiB of fio", goal=1, more_is_better=True),
    Measure(CHUNKS, "8 MiB cpu s/GB", "4 MiB cpu s/GB", goal=1, title="CPU time, {}"),
    Measure(STEADY, "cairn cpu s/GB", goal=0.09, title="CPU s/GB, pinned, recycled files, checksums on"),
    Measure(PINNED_CPU, "cairn cpu s/GB", goal=0.005),
    Measure(TENSORS_CPU, "cairn cpu s/GB", goal=0.16),
    Measure(RESTORE, *RATE, goal=0.9, more_is_better=True),
    Measure("Save call, 1000 tensors", "us", goal=200, unit=" us"),
    Measure("Save call, 100000 tensors", "us", goal=20_000, unit=" us"),
    Measure("peak RSS over the cap", "ratio", goal=1.05, title="peak RSS less RSS before Open, of the cap"),
    Measure("older of two", "older s", "alone s", goal=1.02,
            title="older of two saves on a rate-limited queue, of alone"),
    Measure("thread_queue of uring_queue", "threads bytes/s", "uring bytes/s", goal=0.9, more_is_better=True,
            title="thread_queue against uring_queue"),
    *(Measure(f"busy loops, {source}", "lost", minus="cpu_share", goal=2, factor=100, unit=" %",
              title=f"busy loops: speed lost less CPU share of saving, {source}") for source in ("pinned", "cpu")),
)  # fmt: skip


class Bench:
    """One bench_roofline process: its memory is touched once, then it runs the benchmarks that it is asked for."""

    def __init__(self, directory, *options):
        self.root = tempfile.mkdtemp(prefix="cairn-", dir=directory)
        command = [program("bench_roofline"), "--root", self.root, "--bytes", str(BYTES), "--asked", *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench_roofline failed at: {name}")
        answer = json.loads(line)
        if "bytes" in answer:
            answer["rate"] = answer["bytes"] / answer["seconds"]
            answer["cpu s/GB"] = answer["cpu_seconds"] / answer["bytes"] * 1e9
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.root)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Recycling(Bench):
    """Saves over recycled files in steady state, each beside fio over the very blocks that it is written to: files at
    other places of a disk may be half as fast."""

    def __init__(self, directory, *options):
        super().__init__(directory, "--recycle", "1", *options)
        self.pairs = 0
        self("write"), self("write")  # Steady: the third save finds what the first one left.

    def pair(self, *more):
        """One save's answer, and fio's rate over the same file: in turns before and after the save."""
        self.pairs += 1
        rate = over(self.shard(".spare-*"), *more) if self.pairs % 2 else None
        answer = self("write")
        if not answer["recycled"]:
            sys.exit("bench_roofline: the file was not recycled; is the root's filesystem ext4 or XFS?")
        return answer, rate or over(self.shard("step-*"), *more)

    def shard(self, folder):
        (shard,) = glob.glob(os.path.join(self.root, folder, "shard-00000.safetensors"))
        return shard


def over(shard, memory, *more):
    """fio's rate over the blocks of a shard."""
    return fio(shard, "overwrite", memory, BYTES, more=more)[0]


@contextlib.contextmanager
def spinning():
    """One core computes in its registers."""
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def beside_fio(report, name, pair, rate, ours):
    report.single(name, pair, "fio bytes/s", rate)
    report.single(name, pair, "cairn bytes/s", ours["rate"])
    report.single(name, pair, "cairn cpu s/GB", ours["cpu s/GB"])


def in_turns(pairs, *named):
    """(pair, (name, what)...) with the order changed in every other pair."""
    for pair in range(pairs):
        yield pair, named if pair % 2 == 0 else named[::-1]


def write(report, args, memory):
    with Bench(args.dir) as bench:
        bench("write")
        for pair in range(args.pairs):
            rate, _ = fio(args.fio, "write", memory, BYTES)
            ours = bench("write")
            os.sync()
            beside_fio(report, FRESH, pair, rate, ours)


def overwrite(report, args, memory):
    for name, options in ((STEADY, ()), (ALIKE, AS_FIO), (UNSUMMED, (*AS_FIO, "--checksums", "0"))):
        with Recycling(args.dir, *options) as bench:
            for pair in range(args.pairs):
                ours, rate = bench.pair(memory)
                beside_fio(report, name, pair, rate, ours)
                report.single(name, pair, "cairn commit s", ours["seconds"] - ours["written"])


def peers(report, args, _):
    """What fio would do with what Cairn needs: the memory of its pool, and a core that computes."""
    with many_hugepages(640) as memory, Recycling(args.dir) as bench:
        for pair in range(args.pairs):
            ours, rate = bench.pair(memory, *AS_THE_POOL)
            report.single(POOLED, pair, "fio bytes/s", rate)
            report.single(POOLED, pair, "cairn bytes/s", ours["rate"])
        shard = bench.shard(".spare-*")

        def plain(*more):
            return lambda: over(shard, memory, *more)

        def beside_a_spinning_core():
            with spinning():
                return over(shard, memory)

        large = plain("--bs=8M", "--iodepth=4")
        for measure, one, other in (
            ("fio with 512 MiB of buffers, of fio with 32 MiB, blocks of 8 MiB both", plain(*AS_THE_POOL), large),
            ("fio with 32 MiB of buffers: blocks of 8 MiB, of blocks of 4 MiB", large, plain()),
            ("fio beside a core that spins in its registers, of fio alone", beside_a_spinning_core, plain()),
        ):
            for pair, order in in_turns(args.pairs, (TURNS[0], one), (TURNS[1], other)):
                for name, run in order:
                    report.single(measure, pair, name, run())


def chunks(report, args, memory):
    """What the default chunk rests on: each size's rate as a share of fio's over the same blocks."""
    with contextlib.ExitStack() as stack:
        sizes = [(f"{mib} MiB", stack.enter_context(Recycling(args.dir, "--chunk", str(mib << 20)))) for mib in (4, 8)]
        for pair, order in in_turns(args.pairs, *sizes):
            for size, bench in order:
                answer, rate = bench.pair(memory)
                report.single(CHUNKS, pair, f"{size} of fio", answer["rate"] / rate)
                report.single(CHUNKS, pair, f"{size} cpu s/GB", answer["cpu s/GB"])


def cpu(report, args, memory):
    for name, options in ((PINNED_CPU, ("--checksums", "0")), (TENSORS_CPU, ("--source", "cpu"))):
        with Bench(args.dir, "--recycle", "1", *options) as bench:
            bench("write"), bench("write")
            fio(args.fio, "write", memory, BYTES, keep=True)
            for pair in range(args.pairs):
                # What the kernel alone takes for these writes at this moment: fio computes nothing.
                _, floor = fio(args.fio, "overwrite", memory, BYTES)
                report.single(name, pair, "fio cpu s/GB", floor / BYTES * 1e9)
                report.single(name, pair, "cairn cpu s/GB", bench("write")["cpu s/GB"])
            os.unlink(args.fio)


def restore(report, args, memory):
    with Bench(args.dir, "--source", "cpu") as bench:
        bench("write")
        bench("restore")
        fio(args.fio, "write", memory, BYTES, keep=True)
        for pair in range(args.pairs):
            drop_caches()
            rate, _ = fio(args.fio, "read", memory, BYTES)
            beside_fio(report, RESTORE, pair, rate, bench("restore"))
        os.unlink(args.fio)


def call(report, args, _):
    for tensors in (1000, 100_000):
        with Bench(args.dir, "--source", "cpu") as bench:
            for i in range(20):
                report.single(f"Save call, {tensors} tensors", i, "us", bench(f"call/{tensors}")["microseconds"])


def rss(report, args, _):
    for i in range(3):
        with Bench(args.dir, "--source", "cpu") as bench:
            answer = bench("rss")
        report.single("peak RSS over the cap", i, "ratio", answer["grown"] / answer["cap"])


def older(report, args, _):
    with Bench(args.dir) as bench:
        for pair in range(args.pairs):
            answer = bench("older")
            report.single("older of two", pair, "alone s", answer["alone"])
            report.single("older of two", pair, "older s", answer["older"])


def queues(report, args, _):
    with Bench(args.dir) as uring, Bench(args.dir, "--queue", "threads") as threads:
        uring("write"), threads("write")
        for pair, order in in_turns(args.pairs, ("uring", uring), ("threads", threads)):
            for name, bench in order:
                report.single("thread_queue of uring_queue", pair, f"{name} bytes/s", bench("write")["rate"])
                os.sync()


def busy(report, args, _):
    for source in ("pinned", "cpu"):
        with Bench(args.dir, "--source", source) as bench:
            bench("write")
            for pair in range(args.pairs):
                for key, value in bench("busy").items():
                    report.single(f"busy loops, {source}", pair, key, value)


PARTS = {"write": write, "overwrite": overwrite, "peers": peers, "chunks": chunks, "cpu": cpu, "restore": restore,
         "call": call, "rss": rss, "older": older, "queues": queues, "busy": busy}  # fmt: skip


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 15, "--pairs")
    add_only(parser, "parts", PARTS)
    parser.add_argument("--output", help="OUTPUT.csv; default: roofline, and none with --only")


def run(args):
    args.fio = os.path.join(args.dir, "fio.data")
    memory = hugepages()
    report = Report(args.folder)
    output = args.output or "roofline"
    head = [*begun(args.dir), LINE]
    with report.kept(output, head):
        for name in args.only or PARTS:
            print(f"== {name}", flush=True)
            PARTS[name](report, args, memory)
            report.judge(MEASURES)
    print(report.text())
    if args.output or args.only is None:
        report.write(output, head)
