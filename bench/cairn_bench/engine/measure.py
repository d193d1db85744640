"""Measures the strategy pccheck beside PCcheck's own engine, in adjacent pairs, in turns.

PCcheck's source is not part of this repository: --source is a checkout of it (github.com/eth-easl/pccheck). Its engine
is built with two stub headers (stubs/): of CUDA, whose pinned memory is plain memory here, and of libpmem, which it does
not call. Then its own Python process drives it (original.py says what differs). Both save 2.2 GB, each checkpoint alone,
and 500 MB back to back with one and with two in flight; by one and by two threads a checkpoint. Neither has an emulated
link or disk. The first checkpoints, which lay out files, are not counted.

A ratio is the strategy's time over the engine's. The goal is 0.9 to 1.1. Writes pccheck-engine.csv.
Needs torch, g++, two cores, 14 GB of memory and 16 GB of disk. The default takes about 10 minutes.
"""

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile

from ..shared import program
from ..shared.files import begun
from ..shared.options import add_directory, add_record, add_repetitions, numbers
from ..shared.report import Report, interval, table

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = "checkpoint_eval/pccheck"
BATCH = 8 * 2 * 4096  # A whole number of pages for each of 8 batches and 2 threads.
ALONE, BACK_TO_BACK = "alone", "back to back"
# What is saved: bytes, how, in flight, and how many are counted.
CASES = ((2_200_000_000, ALONE, 1, 3), (500_000_000, BACK_TO_BACK, 1, 12), (500_000_000, BACK_TO_BACK, 2, 12))
ENGINE_SECONDS = 600
PAUSE = 1.0  # Seconds between checkpoints that are alone.
WITHIN = (0.9, 1.1)
OURS, THEIRS = "strategy s", "engine s"
TITLES = (
    "one checkpoint takes",
    "strategy, s",
    "engine, s",
    "strategy over engine",
    "95 % interval",
    "n",
    "within 10 %",
)


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 5)
    parser.add_argument("--source", type=os.path.abspath, required=True, help="a checkout of PCcheck")
    parser.add_argument("--threads", type=numbers(least=1), default=[1, 2], help="a checkpoint, by comma; default: 1,2")


def check(args):
    for name in ("main_ssd_memory.cpp", "chk_monitor.py"):
        if not os.path.isfile(os.path.join(args.source, SOURCES, name)):
            args.error(f"--source {args.source}: expected a checkout of PCcheck, found no {SOURCES}/{name}")


def build(source, folder):
    """The engine's shared library, with its Makefile's flags but for CUDA and libpmem."""
    library = os.path.join(folder, "libpccheck.so")
    parts = ["main_ssd_memory.cpp", *map(os.path.basename, glob.glob(os.path.join(source, SOURCES, "socket_work.cpp")))]
    flags = ("-shared", "-fPIC", "-pthread", "-O3", "-march=native", "-mtune=native", "-ffast-math", "-w")
    command = ["g++", *flags, "-I", os.path.join(HERE, "stubs"), *parts, "-o", library, "-latomic"]
    subprocess.run(command, check=True, cwd=os.path.join(source, SOURCES))
    return library


def cases(threads):
    """{title: (bytes, how, in flight, counted, threads)}."""
    return {
        f"{size / 1e9:g} GB, {how}, {in_flight} in flight, threads: {count}":
            (size // BATCH * BATCH, how, in_flight, counted, count)
        for size, how, in_flight, counted in CASES for count in threads
    }  # fmt: skip


def seconds(case, saved, durable):
    """What one checkpoint takes: its own time, or its share of the time of all that are counted."""
    _, how, _, counted, _ = case
    if how == ALONE:
        times = sorted(end - begin for begin, end in list(zip(saved, durable, strict=True))[-counted:])
        return times[len(times) // 2]
    return (durable[-1] - durable[-1 - counted]) / counted


def saves(case):
    _, _, in_flight, counted, _ = case
    return in_flight + 2 + counted  # Every slot has been written once.


def run_engine(args, case, library, work):
    size, how, in_flight, _, threads = case
    output = os.path.join(work, "engine.json")
    given = {"library": library, "dir": work, "output": output, "bytes": size, "in-flight": in_flight,
             "threads": threads, "saves": saves(case), "alone": PAUSE if how == ALONE else 0}  # fmt: skip
    flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, "PYTHONPATH": args.source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-B", os.path.join(HERE, "original.py"), *flags]
    # It complains of cores that are not there, at each thread. In a session of its own none of its processes stays.
    with tempfile.TemporaryFile("w+") as said:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": said}
        engine = subprocess.Popen(command, env=environment, start_new_session=True, **quiet)
        try:
            if engine.wait(ENGINE_SECONDS) != 0:
                said.seek(0)
                last = said.read().strip().rpartition("\n")[2] or f"ended with {engine.returncode}"
                sys.exit(f"PCcheck's engine: {last}; is there room in {work}?")
        except subprocess.TimeoutExpired:
            sys.exit(f"PCcheck's engine has not ended in {ENGINE_SECONDS} s: is there room in {work}?")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.pid, signal.SIGKILL)
            engine.wait()
    with open(output) as file:
        times = json.load(file)
    return seconds(case, times["saved"], sorted(times["durable"]))


def run_strategy(args, case, _, work):
    size, how, in_flight, _, threads = case
    pace = 4.0 if how == ALONE else 0.05
    given = {"strategy": "pccheck", "dir": work, "state-bytes": size, "tensors": 1, "iterations": saves(case),
             "every": 1, "in-flight": in_flight, "writers": threads, "device": "emulated", "pcie-bytes-per-second": 0,
             "iteration-seconds": pace, "update-seconds": pace / 2, "journal": os.path.join(work, "journal")}  # fmt: skip
    flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    subprocess.run([program("bench_training"), *flags], check=True, stdout=subprocess.DEVNULL)
    with open(given["journal"]) as file:
        events = [json.loads(line) for line in file]
    saved, durable = ([e["at"] for e in events if e["event"] == what] for what in ("save", "durable"))
    return seconds(case, saved, sorted(durable))


def lines(values):
    """The rows of the table, from {(case, pair, name): seconds}."""
    found = []
    for case in dict.fromkeys(case for case, _, _ in values):
        pairs = [pair for one, pair, name in values if (one, name) == (case, OURS)]
        ours, theirs = ([values[case, pair, name] for pair in pairs] for name in (OURS, THEIRS))
        ratio, low, high = interval([mine / other for mine, other in zip(ours, theirs, strict=True)])
        inside, outside = WITHIN[0] <= low and high <= WITHIN[1], high < WITHIN[0] or low > WITHIN[1]
        word = "met" if inside else "missed" if outside else "not resolved"
        found.append([case, f"{interval(ours)[0]:.3f}", f"{interval(theirs)[0]:.3f}", f"{ratio:.2f}",
                      f"{low:.2f} to {high:.2f}", len(pairs), word])  # fmt: skip
    return found


def run(args):
    head = [*begun(args.dir), "peer: PCcheck's own engine, driven by its own Python process"]
    report = Report(args.folder)
    with tempfile.TemporaryDirectory(prefix="pccheck-") as folder, report.kept("pccheck-engine", head):
        library = build(args.source, folder)
        for pair in range(args.repetitions):
            for title, case in cases(args.threads).items():
                turns = [(OURS, run_strategy), (THEIRS, run_engine)]
                for name, measured in turns if pair % 2 == 0 else turns[::-1]:
                    with tempfile.TemporaryDirectory(prefix="pccheck-", dir=args.dir) as work:
                        report.single(title, str(pair), name, measured(args, case, library, work))
                        print(f"{title}, {name}: {report.values[title, str(pair), name]:.3f}", flush=True)
    print(table(TITLES, lines(report.values)))
    report.write("pccheck-engine", head)
    return 0
