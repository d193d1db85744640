"""Measures Cairn's Python API beside its peers, in one run, interleaved.

Installs the peers (build/bench/tools, beside the user's torch). Then takes each state, repetition and system in turn,
every time in a fresh process: a first save, steady saves in adjacent pairs with fio, peak memory, saves beside busy
training loops, cold loads in pairs with fio. Cairn has three pairs in each repetition, a peer one. If a system fails,
the table says why, and build/bench/logs says more. A state that is measured whole, with its peers (B and C with some of
them), is written to python-STATE.csv; --only A measures one state. Two hours for all on two cores
with five repetitions. Needs 17 GB of disk and 14 GB of memory.

With --device cuda the states are on the GPU, and the results are python-STATE-cuda. Nobody has run that yet.

States: A is 597 tensors of 2.1 GB, B BERT-large with AdamW (4.0 GB), C 100,000 tensors of 1 KiB.
"""

import argparse
import sys

from ..shared.files import begun
from ..shared.fio import LINE, hugepages
from ..shared.machine import fill_page_cache, memory
from ..shared.options import add_directory, add_only, add_record, add_repetitions, some_of
from ..shared.report import Report
from .catalogue import CAIRN, CAIRN_WHOLE, PEERS
from .goals import GOALS
from .measures import Disk, Samples, Session
from .processes import BusyLoops, Failed, Worker
from .tables import about, side_by_side
from .tools import install

STATES = ("A", "B", "C")
MEASURES = ("save", "memory", "busy", "load")
CAIRN_PAIRS = 3
# Peers for B and C, which take most of the others a minute and more. (A pool of the default cap holds all of C.)
LARGE = ("torch.save", "safetensors", "dcp.save", "dcp.async_save")
MANY = ("torch.save", "safetensors", "dcp.async_save", "torch_checkpointing", "torch_checkpointing-buffered")


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 5)
    add_only(parser, "states and measures", STATES + MEASURES)
    names = [entry.name for entry in PEERS]
    about = f"by comma, or none: {', '.join(names)}; default: all"
    parser.add_argument("--peers", type=lambda text: [] if text == "none" else some_of(names)(text), help=about)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the states are; default: cpu")
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)


def settle(args):
    only = args.only or []
    args.whole = not set(only) & set(MEASURES) and args.peers is None and args.scale == 1
    args.states = [one for one in STATES if one in only] or list(STATES)
    args.measures = [one for one in MEASURES if one in only] or list(MEASURES)
    args.systems = [CAIRN, CAIRN_WHOLE, *(entry for entry in PEERS if args.peers is None or entry.name in args.peers)]


def measure(args, disk, samples, loops, entry):
    """One repetition of one system."""
    cairn = entry in (CAIRN, CAIRN_WHOLE)
    with Worker(sys.executable, args.dir, entry, samples.state, args.scale, args.device) as worker:
        samples.facts[entry.name] = worker.hello
        pairs = CAIRN_PAIRS if cairn else 1
        session = Session(worker, disk, lambda *what: samples.add(entry.name, *what), pairs)
        session.first_save()
        if "save" in args.measures:
            session.saves()
        if "busy" in args.measures and samples.state == "A" and entry is not CAIRN_WHOLE:
            session.busy(loops)
        if "memory" in args.measures:
            session.memory(entry.processes)
        if "load" in args.measures:
            session.loads()


def measure_all(args, samples, loops, reasons):
    """Every repetition of every system with one state."""
    disk = Disk(args.dir, hugepages(), (1 << 30) if args.scale == 1 else (64 << 20))
    kept = LARGE if samples.state == "B" else MANY
    systems = [entry for entry in args.systems if samples.state == "A" or entry is CAIRN or entry.name in kept]
    for repetition in range(args.repetitions):
        for entry in systems if repetition % 2 == 0 else systems[::-1]:
            if entry.name in reasons:
                samples.failures[entry.name] = reasons[entry.name]
            if entry.name in samples.failures:
                continue
            print(f"== {samples.state}, repetition {repetition + 1}: {entry.name}", flush=True)
            try:
                measure(args, disk, samples, loops, entry)
            except Failed as failed:
                samples.failures[entry.name] = str(failed)
                print(f"   failed: {failed}", flush=True)
    disk.remove()


def run(args):
    settle(args)
    reasons = install(sys.executable, args.systems)
    if args.scale == 1:
        fill_page_cache(memory())
    loops = BusyLoops(sys.executable)
    try:
        for state in args.states:
            samples = Samples(state, Report(args.folder))
            head = [*begun(args.dir), LINE]
            try:
                measure_all(args, samples, loops, reasons)
            finally:  # What was measured by then is shown, but only a whole run is written.
                samples.report.judge(GOALS)
                head += about(samples)
                if samples.facts:
                    print(f"{samples.report.text()}\n\n{side_by_side(head, samples.report.values)}")
            if args.whole:
                head += [f"device: {device}" for device in sorted({fact["device"] for fact in samples.facts.values()})]
                samples.report.write(f"python-{state}" + "-cuda" * (args.device == "cuda"), head)
    finally:
        loops.close()
