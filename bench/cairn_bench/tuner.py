"""Holds the tuner's choice against a sweep, and its predictions against what then happens.

For each profile `cairn tune` measures and chooses. Then bench_training runs the choice and, around it, every interval
and number in flight (where saves can meet) of a grid, each beside a run without checkpoints. The goodput of each is
Daly's, with the measured time from save to save and the measured write time instead of the model's:

    goodput = k t / M exp(-Tw / M) / (exp(T / M) - 1)

The choice's is divided by the best of the grid. Predicted and measured are compared as they are: the time that training
takes over that without checkpoints, and the write time of a save. Writes tuner.csv if every profile
was measured. Takes about 20 minutes a repetition; 4 GB of disk, 3 GB of memory.
"""

import json
import math
import statistics
import subprocess
import sys

from .figures.runs import Refused, bench_training
from .shared import program
from .shared.files import begun
from .shared.options import add_directory, add_only, add_record, add_repetitions
from .shared.report import Report

LINK = 4e9  # Bytes per second: an emulated link that this machine's copies keep up with.
# Bytes, seconds, bytes per second. A disk of 0 is the machine's own.
PROFILES = {
    "small-state": {"state": 128e6, "iteration": 0.1, "memory": 512 << 20, "disk": 0, "mtbf": 120, "slowdown": 0.05},
    "slow-disk": {"state": 512e6, "iteration": 0.1, "memory": 2 << 30, "disk": 400e6, "mtbf": 60, "slowdown": 0.05},
    "small-pool": {"state": 256e6, "iteration": 0.25, "memory": 64 << 20, "disk": 400e6, "mtbf": 60, "slowdown": 0.2},
    "long-iteration": {"state": 512e6, "iteration": 1, "memory": 1 << 30, "disk": 800e6, "mtbf": 300, "slowdown": 0.05},
}
GRID = (0.25, 0.5, 0.7, 0.85, 1, 1.25, 1.6, 2.5, 4)  # Of the chosen interval.
IN_FLIGHT = (1, 2)
SAVES = 6
FRESH = 2  # Saves until there is a retired file for the next one to be written over.
LONGEST = 15  # Seconds from save to save that the grid goes to, where the choice is below.


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 3)
    add_only(parser, "profiles", PROFILES)
    parser.set_defaults(device="emulated", compute="paced", disk="machine", pcie_bytes_per_second=LINK, dilation=1)


def tune(args, profile, update):
    command = [program("cairn"), "tune", args.dir, "--json", "--state-bytes", f"{profile['state']:.0f}"]
    command += ["--iteration-time", str(profile["iteration"]), "--update-time", f"{update:.6f}"]
    command += ["--slowdown", str(profile["slowdown"]), "--mtbf", str(profile["mtbf"])]
    # The paced loop leaves its cores idle, except for the update.
    command += ["--memory", str(profile["memory"]), "--training-cores", "0", "--copy-rate", f"{LINK:.0f}"]
    if profile["disk"]:
        command += ["--write-rate", f"{profile['disk']:.0f}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def train(args, profile, strategy, **options):
    args.disk_bytes_per_second = int(profile["disk"])
    shape = {"state_bytes": int(profile["state"]), "iteration_seconds": profile["iteration"], "tensors": 200}
    return bench_training(args, strategy, **shape, **options)


def goodput(profile, interval, row):
    mtbf, work = profile["mtbf"], interval * profile["iteration"]
    period = interval / row["iterations_per_second"]
    return work / mtbf * math.exp(-row["to_durable_p50_s"] / mtbf) / math.expm1(period / mtbf)


def run_at(args, profile, choice, interval, in_flight):
    """The run's row and its slowdown, beside a run without checkpoints."""
    warmup = FRESH * interval
    options = {"every": interval, "warmup": warmup, "iterations": warmup + max(SAVES * interval, 20)}
    ideal = train(args, profile, "none", iterations=min(60, options["iterations"]))
    chosen = {name: choice[name] for name in ("host_memory_bytes", "chunk_bytes", "queue_depth")}
    row = train(args, profile, "cairn", in_flight=in_flight, **chosen, **options)
    return row, ideal["iterations_per_second"] / row["iterations_per_second"]


def measure(args, report, name, repetition, found):
    profile = PROFILES[name]
    update = train(args, profile, "none", iterations=20)["update_seconds"]
    answer = tune(args, profile, update)
    choice, expected = answer["choice"], answer["expected"]
    chosen = choice["interval"], choice["max_in_flight"]
    print(f"== {name}: every {chosen[0]}, {chosen[1]} in flight; bound by {choice['bound']}", flush=True)
    intervals = sorted({max(1, round(choice["interval"] * share)) for share in GRID} | {choice["interval"]})
    longest = max(choice["interval"], LONGEST / profile["iteration"])
    points = {}

    def single(key, value, cell=f"{name}, chosen"):
        report.single(cell, repetition, key, value)

    for interval in filter(lambda one: one <= longest, intervals):
        # Where a save has long been durable when the next one begins, two in flight are the same as one.
        alone = interval * profile["iteration"] > 2 * expected["write_seconds"]
        for in_flight in (chosen[1],) if alone else IN_FLIGHT:
            row, slowdown = run_at(args, profile, choice, interval, in_flight)
            points[interval, in_flight] = goodput(profile, interval, row)
            cell = f"{name}, every {interval}, {in_flight} in flight"
            single("slowdown", slowdown, cell)
            single("write s", row["to_durable_p50_s"], cell)
            single("goodput", points[interval, in_flight], cell)
            if (interval, in_flight) == chosen:
                found["slowdown"].append((1 + expected["slowdown"]) / slowdown)
                found["write"].append(expected["write_seconds"] / row["to_durable_p50_s"])
    best = max(points, key=points.get)
    print(f"   best: every {best[0]}, {best[1]} in flight", flush=True)
    single("predicted slowdown", 1 + expected["slowdown"])
    single("predicted write s", expected["write_seconds"])
    single("interval", chosen[0])
    single("best interval", best[0])
    found["choice"].append(points[chosen] / points[best])


def run(args):
    report = Report(args.folder)
    profiles = args.only or list(PROFILES)
    found = {name: {"choice": [], "slowdown": [], "write": []} for name in profiles}
    emulated = "GPU (host memory, a link of 4 GB/s), forward and backward, disk rate but of small-state"
    head = [*begun(args.dir), f"emulated: {emulated}"]
    try:
        with report.kept("tuner", head):
            for repetition in range(args.repetitions):
                for name in profiles:
                    measure(args, report, name, repetition, found[name])
    except Refused as reason:
        sys.exit(f"scripts/bench tuner: {reason}")
    for name, values in found.items():
        best = f"{name}: goodput of the choice, of the sweep's best"
        report.figure(best, values["choice"], 0.97, more_is_better=True)
        for what, of in (("slowdown", "time of an iteration"), ("write", "write")):
            off = [100 * abs(ratio - 1) for ratio in values[what]]
            report.figure(f"{name}: predicted {of} off the measured", off, 10, unit=" %")
            print(f"     predicted over measured: {statistics.median(values[what]):.3f}")
    print(report.text())
    if not args.only:
        report.write("tuner", head)
