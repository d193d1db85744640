"""Measures Cairn's Python API beside its peers on CPU tensors, in one run, interleaved.

    scripts/bench python [--dir DIR] [--repetitions N] [--only NAME,...] [--peers NAME,...|none]

Builds the package and installs the peers (build/bench/tools, beside the user's torch), then takes each state,
repetition and system in turn, every time in a fresh process: a first save, steady saves in adjacent pairs with fio,
peak memory, saves beside busy training loops, cold loads in pairs with fio. Cairn has three pairs in each repetition,
a peer one. What fails is told in the table, and more of it in build/bench/logs. A state that is measured whole, with
its peers (B and C with some of them), is written to bench/results/python-STATE.{md,csv}; the states may be measured
one by one (--only A). Two hours in all on two cores with five repetitions. Dropping the page cache needs root; without
it there are no loads. Needs 17 GB of disk and 14 GB of memory.
"""

import argparse
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "bench/support"), HERE]

from catalogue import CAIRN, CAIRN_WHOLE, PEERS
from fio import LINE, hugepages
from goals import judge
from machine import touch
from measures import Disk, Samples, Session
from processes import BusyLoops, Failed, Worker
from report import Report
from tables import tables

from tools import install

STATES = ("A", "B", "C")
MEASURES = ("save", "memory", "busy", "load")
CAIRN_PAIRS = 3
# Peers for the states that take most of them a minute and more each time. (A pool of the default cap holds all of C.)
LARGE = ("torch.save", "safetensors", "dcp.save", "dcp.async_save")
MANY = ("torch.save", "safetensors", "dcp.async_save", "torch_checkpointing", "torch_checkpointing-buffered")
OPENED = 6 << 30  # Bytes that a state and Cairn's pool take at most, which is there from the beginning.


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["python"])
    parser.add_argument("--dir", help="where to write; default: build/bench")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="states and measures, by comma: " + ", ".join(STATES + MEASURES))
    parser.add_argument("--peers", help="by comma, or none: " + ", ".join(entry.name for entry in PEERS))
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    only = list(filter(None, args.only.split(",")))
    names = [entry.name for entry in PEERS]
    peers = names if args.peers is None else [] if args.peers == "none" else args.peers.split(",")
    if unknown := [name for name in only if name not in STATES + MEASURES] + [one for one in peers if one not in names]:
        parser.error(f"unknown: {', '.join(unknown)}")
    args.whole = not set(only) & set(MEASURES) and args.peers is None and args.scale == 1
    args.states = [one for one in STATES if one in only] or list(STATES)
    args.measures = [one for one in MEASURES if one in only] or list(MEASURES)
    args.systems = [CAIRN, CAIRN_WHOLE, *(entry for entry in PEERS if entry.name in peers)]
    args.dir = os.path.abspath(args.dir or os.path.join(ROOT, "build/bench"))
    if os.geteuid() != 0 and "load" in args.measures:
        print("not root: the page cache cannot be dropped, so loads are left out")
        args.measures.remove("load")
    return args


def build():
    """Builds the package; returns the Python that has torch."""
    subprocess.run([os.path.join(ROOT, "scripts/build-python")], check=True)
    shared = os.path.join(ROOT, "scripts/common.sh")
    found = subprocess.run(["bash", "-c", f"source '{shared}'; cairn_python"], check=True, stdout=subprocess.PIPE)
    return found.stdout.decode().strip()


def measure(args, python, disk, samples, loops, state, entry):
    """One repetition of one system with one state."""
    pairs = CAIRN_PAIRS if entry in (CAIRN, CAIRN_WHOLE) else 1
    if entry in (CAIRN, CAIRN_WHOLE):
        touch(OPENED)
    with Worker(python, args.dir, entry, state, args.scale) as worker:
        samples.facts[state, entry.name] = worker.hello
        fresh = int(entry.fresh * worker.hello["bytes"])
        session = Session(worker, disk, lambda *what: samples.add(state, entry.name, *what), pairs, fresh)
        session.first_save()
        if "save" in args.measures:
            session.saves()
        if "busy" in args.measures and state == "A" and entry is not CAIRN_WHOLE:
            session.busy(loops)
        if "memory" in args.measures:
            session.memory(entry.processes)
        if "load" in args.measures:
            session.loads()


def run(args, python, samples, loops, state, reasons):
    """Every repetition of every system with one state."""
    disk = Disk(args.dir, hugepages(), (1 << 30) if args.scale == 1 else (64 << 20))
    kept = LARGE if state == "B" else MANY
    systems = [entry for entry in args.systems if state == "A" or entry is CAIRN or entry.name in kept]
    for repetition in range(args.repetitions):
        for entry in systems if repetition % 2 == 0 else systems[::-1]:
            key = state, entry.name
            if entry.name in reasons:
                samples.failures[key] = reasons[entry.name]
            if key in samples.failures:
                continue
            print(f"== {state}, repetition {repetition + 1}: {entry.name}", flush=True)
            try:
                measure(args, python, disk, samples, loops, state, entry)
            except Failed as failed:
                samples.failures[key] = str(failed)
                print(f"   failed: {failed}", flush=True)
    disk.remove()


def main():
    args = arguments()
    os.makedirs(args.dir, exist_ok=True)
    python = build()
    reasons = install(python, args.systems)
    loops = BusyLoops(python)
    try:
        for state in args.states:
            report = Report()
            samples = Samples(report)
            try:
                run(args, python, samples, loops, state, reasons)
            finally:  # What was measured until then is shown; written is a whole run alone.
                judge(report, samples)
                more = tables(samples, state, args.systems)
                print(report.text() + "\n" + more)
            if args.whole:
                report.write(f"python-{state}", [LINE], more)
    finally:
        loops.close()


if __name__ == "__main__":
    main()
