"""Measures small operations of Cairn's, each beside a peer that does the same work, in adjacent pairs.

    scripts/bench micro [--dir DIR] [--pairs N] [--only SUBJECT,...]

Subjects are the files of bench/micro: checksum, header, manifest, index, list, pool, planning, engine, commit, ranks,
restore. Each pair is a process of its
own in which Cairn and the peer work in turns; its figure is the median of the turns' ratios, time over time: below 1
Cairn is the faster. Every benchmark comes once before the first comes again, so that none has the machine's good minutes
to itself. Writes bench/results/micro.{md,csv} where every subject was measured. About three minutes on two cores; 200 MB
of disk.
"""

import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "bench/support"))

from machine_facts import commit, machine
from report import Report

PROGRAM = os.path.join(ROOT, "build/release/bin/bench_micro")
SUBJECTS = (
    "checksum",
    "header",
    "manifest",
    "index",
    "list",
    "pool",
    "planning",
    "engine",
    "commit",
    "ranks",
    "restore",
)
PAIRS = 15  # At least what a result that is written comes from.


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["micro"])
    parser.add_argument("--dir", help="where commits are written; default: build/bench")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--only", default="", help="subjects, by comma: " + ", ".join(SUBJECTS))
    args = parser.parse_args()
    args.subjects = list(filter(None, args.only.split(","))) or list(SUBJECTS)
    if unknown := set(args.subjects) - set(SUBJECTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    if args.pairs < 1:
        parser.error(f"--pairs {args.pairs}: expected at least 1")
    args.dir = os.path.abspath(args.dir or os.path.join(ROOT, "build/bench"))
    return args


def ask(*options):
    ran = subprocess.run([PROGRAM, *options], stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"bench_micro {' '.join(options)}: exit code {ran.returncode}")
    return ran.stdout


def benchmarks(subjects):
    """Full names, as --benchmark_filter takes them."""
    names = ask("--benchmark_list_tests=true").split()
    return [name for name in names if name.split("/")[0] in subjects]


def measure(name, directory):
    """One pair: the counters of one run, and the peer in words."""
    answer = json.loads(ask(f"--benchmark_filter=^{name}$", "--benchmark_format=json", "--dir", directory))
    (run,) = answer["benchmarks"]
    counters = {key: value for key, value in run.items() if isinstance(value, float)}
    return counters, run["label"]


# Google Benchmark's own, which say what the two medians do, or less.
OWN = {"real_time", "cpu_time", "reach", "ratio", "cairn", "peer"}


def main():
    args = arguments()
    os.makedirs(args.dir, exist_ok=True)
    subprocess.run([os.path.join(ROOT, "scripts/build"), "release", "bench_micro"], check=True)
    names = benchmarks(args.subjects)
    report = Report()
    load = os.getloadavg()[0]
    ratios = {name: [] for name in names}
    said = {}
    facts = [f"commit {commit()}", f"machine: {machine(args.dir)}"]
    with report.kept("micro", facts):
        for pair in range(args.pairs):
            print(f"== pair {pair + 1} of {args.pairs}", flush=True)
            for name in names:
                counters, peer = measure(name, args.dir)
                subject = "/".join(name.split("/")[:2])
                said[name] = (f"{subject}: {peer}", counters["reach"])
                ratios[name].append(counters["ratio"])
                report.single(subject, pair, "cairn s", counters["cairn"])
                report.single(subject, pair, "peer s", counters["peer"])
                report.single(subject, pair, "ratio", counters["ratio"])
                for key in sorted(set(counters) - OWN):
                    report.single(subject, pair, key if key == "bytes" else f"{key} s", counters[key])
    for name in names:
        report.figure(said[name][0], ratios[name], said[name][1], False)
    print(report.text())
    if args.subjects == list(SUBJECTS) and args.pairs >= PAIRS:
        busy = f"load: {load:.1f} before, {os.getloadavg()[0]:.1f} after, of which this run is 1"
        facts.append(busy)
        report.write("micro", facts, "\n" + "".join(f"- {fact}\n" for fact in facts))
    else:
        print(f"(not written: that takes every subject and {PAIRS} pairs)")


if __name__ == "__main__":
    main()
