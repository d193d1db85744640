"""Measures Cairn's small operations, each beside a peer that does the same work, in adjacent pairs.

Each pair is a process of its own in which Cairn and the peer take turns. Its figure is the median of the turns' ratios,
time over time: below 1 Cairn is faster. Every benchmark runs once before the first one runs again, so that none has the
machine's good minutes to itself. Writes bench/results/micro.{md,csv} if every subject was measured. Takes about three
minutes on two cores, and 200 MB of disk.
"""

import json
import os
import subprocess
import sys

from .shared import program
from .shared.files import begun
from .shared.options import add_directory, add_only, add_repetitions
from .shared.report import Report

SUBJECTS = ("checksum", "header", "manifest", "index", "list", "pool", "planning", "engine", "commit", "ranks",
            "restore")  # fmt: skip
PAIRS = 15  # A result that is written comes from at least as many.
# Google Benchmark's own counters, and those that are written under other names.
OWN = {"real_time", "cpu_time", "reach", "ratio", "cairn", "peer"}


def add_arguments(parser):
    add_directory(parser)
    add_repetitions(parser, PAIRS, "--pairs")
    add_only(parser, "subjects, the files of bench/micro", SUBJECTS)


def ask(*options):
    ran = subprocess.run([program("bench_micro"), *options], stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"bench_micro {' '.join(options)}: exit code {ran.returncode}")
    return ran.stdout


def measure(name, directory):
    """One pair: the counters of one run, and what the peer is."""
    answer = json.loads(ask(f"--benchmark_filter=^{name}$", "--benchmark_format=json", "--dir", directory))
    (ran,) = answer["benchmarks"]
    return {key: value for key, value in ran.items() if isinstance(value, float)}, ran["label"]


def run(args):
    subjects = args.only or SUBJECTS
    names = [name for name in ask("--benchmark_list_tests=true").split() if name.split("/")[0] in subjects]
    report = Report()
    load = os.getloadavg()[0]
    goals = {}
    head = begun(args.dir)
    with report.kept("micro", head):
        for pair in range(args.pairs):
            print(f"== pair {pair + 1} of {args.pairs}", flush=True)
            for name in names:
                counters, peer = measure(name, args.dir)
                subject = "/".join(name.split("/")[:2])
                goals[subject] = peer, counters["reach"]
                report.single(subject, pair, "cairn s", counters["cairn"])
                report.single(subject, pair, "peer s", counters["peer"])
                report.single(subject, pair, "ratio", counters["ratio"])
                for key in sorted(set(counters) - OWN):
                    report.single(subject, pair, key if key == "bytes" else f"{key} s", counters[key])
    for subject, (peer, goal) in goals.items():
        report.figure(f"{subject}: {peer}", report.values.of(subject, "ratio"), goal)
    print(report.text())
    if set(subjects) == set(SUBJECTS) and args.pairs >= PAIRS:
        head.append(f"load: {load:.1f} before, {os.getloadavg()[0]:.1f} after, of which this run is 1")
        report.write("micro", head, "".join(f"\n- {line}" for line in head[1:]) + "\n")
    else:
        print(f"(not written: that takes every subject and {PAIRS} pairs)")
