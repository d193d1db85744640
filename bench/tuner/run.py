"""Holds the tuner's choice against a brute-force sweep, and its predictions against what then happens.

    scripts/bench tuner [--dir DIR] [--repetitions N] [--only PROFILE,...]

For each profile `cairn tune` measures and chooses; then bench_training runs the choice and, around it, every interval
and number in flight (where saves can meet) of a grid, each beside a run without checkpoints. The goodput of each is
Daly's, with the measured time from save to save and the measured write time in the place of the model's:

    goodput = k t / M exp(-Tw / M) / (exp(T / M) - 1)

The choice's is divided by the best of the grid. Predicted and measured are compared as they stand: the time that
training takes over that without checkpoints, and the write time of a save. Writes bench/results/tuner.{md,csv} where
every profile was measured. About 20 minutes a repetition; 4 GB of disk, 3 GB of memory.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "bench/support"), os.path.join(ROOT, "bench/figures")]

from machine_facts import commit, machine
from report import Report
from runs import Refused, bench_training

CAIRN = os.path.join(ROOT, "build/release/bin/cairn")
LINK = 4e9  # Bytes per second: an emulated link that this machine's copies keep up with.
# Bytes, seconds, bytes per second. A disk of 0 is the machine's own.
PROFILES = {
    "small-state": {"state": 128e6, "iteration": 0.1, "memory": 512 << 20, "disk": 0, "mtbf": 120, "slowdown": 0.05},
    "slow-disk": {"state": 512e6, "iteration": 0.1, "memory": 2 << 30, "disk": 400e6, "mtbf": 60, "slowdown": 0.05},
    "small-pool": {"state": 256e6, "iteration": 0.25, "memory": 64 << 20, "disk": 400e6, "mtbf": 60, "slowdown": 0.2},
    "long-iteration": {
        "state": 512e6,
        "iteration": 1.0,
        "memory": 1 << 30,
        "disk": 800e6,
        "mtbf": 300,
        "slowdown": 0.05,
    },
}
GRID = (0.25, 0.5, 0.7, 0.85, 1, 1.25, 1.6, 2.5, 4)  # Of the chosen interval.
IN_FLIGHT = (1, 2)
SAVES = 6
FRESH = 2  # Saves until there is a retired file for the next one to be written over.
LONGEST = 15  # Seconds from save to save that the grid goes to, where the choice is below.


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["tuner"])
    parser.add_argument("--dir", help="where checkpoints are written; default: build/bench")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", default="", help="profiles, by comma: " + ", ".join(PROFILES))
    args = parser.parse_args()
    args.profiles = list(filter(None, args.only.split(","))) or list(PROFILES)
    if unknown := set(args.profiles) - set(PROFILES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PROFILES)}")
    if args.repetitions < 1:
        parser.error(f"--repetitions {args.repetitions}: expected at least 1")
    args.dir = os.path.abspath(args.dir or os.path.join(ROOT, "build/bench"))
    args.device, args.disk, args.pcie_bytes_per_second, args.dilation = "emulated", "machine", LINK, 1
    return args


def tune(args, profile, update):
    command = [CAIRN, "tune", args.dir, "--json", "--state-bytes", f"{profile['state']:.0f}"]
    command += ["--iteration-time", str(profile["iteration"]), "--update-time", f"{update:.6f}"]
    command += ["--slowdown", str(profile["slowdown"]), "--mtbf", str(profile["mtbf"])]
    # The paced loop leaves its cores idle, but for the update.
    command += ["--memory", str(profile["memory"]), "--training-cores", "0", "--copy-rate", f"{LINK:.0f}"]
    if profile["disk"]:
        command += ["--write-rate", f"{profile['disk']:.0f}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def train(args, profile, strategy, **options):
    args.disk_bytes_per_second = int(profile["disk"])
    return bench_training(
        args,
        strategy,
        state_bytes=int(profile["state"]),
        iteration_seconds=profile["iteration"],
        tensors=200,
        **options,
    )


def goodput(profile, interval, row):
    mtbf = profile["mtbf"]
    period = interval / row["iterations_per_second"]
    return (
        interval * profile["iteration"] / mtbf * math.exp(-row["to_durable_p50_s"] / mtbf) / math.expm1(period / mtbf)
    )


def run_at(args, profile, choice, interval, in_flight):
    """The run's row and its slowdown, to a neighbour without checkpoints."""
    warmup = FRESH * interval
    options = {"every": interval, "warmup": warmup, "iterations": warmup + max(SAVES * interval, 20)}
    ideal = train(args, profile, "none", iterations=min(60, options["iterations"]))
    row = train(
        args,
        profile,
        "cairn",
        in_flight=in_flight,
        host_memory_bytes=choice["host_memory_bytes"],
        chunk_bytes=choice["chunk_bytes"],
        queue_depth=choice["queue_depth"],
        **options,
    )
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
    for interval in filter(lambda one: one <= longest, intervals):
        # Where a save has long been durable when the next one begins, two in flight are what one is.
        alone = interval * profile["iteration"] > 2 * expected["write_seconds"]
        for in_flight in (chosen[1],) if alone else IN_FLIGHT:
            row, slowdown = run_at(args, profile, choice, interval, in_flight)
            points[interval, in_flight] = goodput(profile, interval, row)
            for key, value in (("slowdown", slowdown), ("write s", row["to_durable_p50_s"]),
                               ("goodput", points[interval, in_flight])):  # fmt: skip
                report.single(f"{name}, every {interval}, {in_flight} in flight", repetition, key, value)
            if (interval, in_flight) == chosen:
                found["slowdown"].append((1 + expected["slowdown"]) / slowdown)
                found["write"].append(expected["write_seconds"] / row["to_durable_p50_s"])
                report.single(f"{name}, chosen", repetition, "predicted slowdown", 1 + expected["slowdown"])
                report.single(f"{name}, chosen", repetition, "predicted write s", expected["write_seconds"])
    best = max(points, key=points.get)
    print(f"   best: every {best[0]}, {best[1]} in flight", flush=True)
    report.single(f"{name}, chosen", repetition, "interval", chosen[0])
    report.single(f"{name}, chosen", repetition, "best interval", best[0])
    found["choice"].append(points[chosen] / points[best])


def main():
    args = arguments()
    os.makedirs(args.dir, exist_ok=True)
    subprocess.run([os.path.join(ROOT, "scripts/build"), "release", "bench_training", "cairn_cli"], check=True)
    report = Report()
    found = {name: {"choice": [], "slowdown": [], "write": []} for name in args.profiles}
    facts = [f"commit {commit()}", f"machine: {machine(args.dir)}",
             "emulated: GPU (host memory, a link of 4 GB/s), forward and backward, disk rate but of small-state"]  # fmt: skip
    try:
        with report.kept("tuner", facts):
            for repetition in range(args.repetitions):
                for name in args.profiles:
                    measure(args, report, name, repetition, found[name])
    except Refused as reason:
        sys.exit(f"bench tuner: {reason}")
    for name, values in found.items():
        report.figure(f"{name}: goodput of the choice, of the sweep's best", values["choice"], 0.97, True)
        for what in ("slowdown", "write"):
            off = [100 * abs(ratio - 1) for ratio in values[what]]
            report.figure(f"{name}: predicted {what} off the measured", off, 10, False, " %")
            print(f"     predicted over measured: {statistics.median(values[what]):.3f}")
    print(report.text())
    if args.profiles == list(PROFILES):
        report.write("tuner", facts, "\n" + "".join(f"- {fact}\n" for fact in facts))


if __name__ == "__main__":
    main()
