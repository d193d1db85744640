"""Measures Cairn's small operations, each beside a peer that does the same work, in adjacent pairs.

Each pair is a process of its own in which Cairn and the peer take turns. Its figure is the median of the turns' ratios,
time over time: below 1 Cairn is faster. Every benchmark runs once before the first one runs again, so that none has the
machine's good minutes to itself. Writes micro.csv if every subject was measured. Takes three to
sixteen minutes on two cores, and 200 MB of disk.

`--only commit --filesystems machine,ext4,xfs` measures commits on the three filesystems in turn, and writes
commit-filesystems.csv. ext4, with its journal, and xfs are made for it on loop devices in files of
2 GiB in --dir; that needs root.
"""

import itertools
import json
import os
import re
import subprocess
import sys

from .shared import filesystems, program
from .shared.files import begun
from .shared.options import add_directory, add_only, add_record, add_repetitions
from .shared.report import Report

SUBJECTS = ("checksum", "header", "manifest", "index", "list", "pool", "planning", "engine", "commit", "ranks",
            "restore")  # fmt: skip
PAIRS = 15  # A result that is written comes from at least as many.
COMMIT = "commit"  # What is measured on several filesystems.
BYTES = 2 << 30  # Of a fresh filesystem.
# Google Benchmark's own counters, and those that are written under other names.
OWN = {"real_time", "cpu_time", "reach", "ratio", "cairn", "peer"}


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, PAIRS, "--pairs")
    add_only(parser, "subjects, the files of bench/micro", SUBJECTS)
    filesystems.add_filesystems(parser)


def check(args):
    if several(args) and args.only != [COMMIT]:
        args.error(f"--filesystems: expected machine alone, or --only {COMMIT}")


def several(args):
    return args.filesystems != [filesystems.MACHINE]


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
    with filesystems.places(args.filesystems, args.dir, BYTES) as places:
        measure_all(args, places)


def measure_all(args, places):
    subjects = args.only or SUBJECTS
    names = [name for name in ask("--benchmark_list_tests=true").split() if name.split("/")[0] in subjects]
    output, needed = (f"{COMMIT}-filesystems", (COMMIT,)) if several(args) else ("micro", SUBJECTS)
    report = Report(args.folder)
    load = os.getloadavg()[0]
    goals = {}
    head = [*begun(args.dir), *filesystems.lines(places)]
    with report.kept(output, head):
        for pair in range(args.pairs):
            print(f"== pair {pair + 1} of {args.pairs}", flush=True)
            for name, (filesystem, directory) in itertools.product(names, places.items()):
                counters, peer = measure(name, directory)
                subject = "/".join(name.split("/")[:2]) + (f", {filesystem}" if several(args) else "")
                goals[subject] = peer, counters["reach"]
                add(report, subject, pair, counters)
    head += [f"peer {subject}: {peer}; goal {goal:g}" for subject, (peer, goal) in goals.items()]
    print(judged(head, report).text())
    whole = not several(args) or set(places) == {filesystems.MACHINE, *filesystems.MAKE}
    if set(subjects) == set(needed) and whole and args.pairs >= PAIRS:
        head.append(f"load: {load:.1f} before, {os.getloadavg()[0]:.1f} after, of which this run is 1")
        report.write(output, head)
    else:
        each = "the three filesystems" if several(args) else "every subject"
        print(f"(not written: that takes {each} and {PAIRS} pairs)")


def peers(head):
    """{subject: (what its peer is, goal)} of a CSV's head."""
    matches = (re.fullmatch(r"peer (.*?): (.*); goal (\S+)", line) for line in head)
    return {found[1]: (found[2], float(found[3])) for found in matches if found}


def judged(head, report):
    """The report, with each subject's ratios beside its goal."""
    for subject, (peer, goal) in peers(head).items():
        report.figure(f"{subject}: {peer}", report.values.of(subject, "ratio"), goal)
    return report


def add(report, subject, pair, counters):
    """Every single value of one run."""
    report.single(subject, pair, "cairn s", counters["cairn"])
    report.single(subject, pair, "peer s", counters["peer"])
    report.single(subject, pair, "ratio", counters["ratio"])
    for key in sorted(set(counters) - OWN):
        report.single(subject, pair, key if key == "bytes" else f"{key} s", counters[key])
