"""Figures age, stalls and memory: one training with each strategy, iteration by iteration.

age     how old the newest durable checkpoint is: the work that a failure at that moment would cost
stalls  the share of iterations that were held up for at least so long
memory  host memory beyond the emulated GPU's state: the process's own, its mapped files, and the machine's dirty pages
        beyond those at the begin

Takes three to five minutes.
"""

import json
import os
import tempfile

from ..shared.options import positive
from .arguments import MODELS, add_common, add_in_flight, add_scale, add_strategies
from .runs import bench_training, by, planned


def add_arguments(parser):
    add_common(parser)
    parser.add_argument("--model", choices=MODELS, default="bert")
    add_strategies(parser)
    parser.add_argument("--interval", type=positive(int), default=25, help="iterations; default: 25")
    parser.add_argument("--iterations", type=positive(int), default=250, help="default: 250")
    add_in_flight(parser)
    add_scale(parser, 1 / 4)


def check(args):
    if args.interval > args.iterations:
        args.error(f"--interval {args.interval}: expected at most the {args.iterations} iterations")


def runner(_):
    return one


def plan(args):
    options = {
        "model": args.model,
        "scale": args.scale,
        "every": args.interval,
        "iterations": args.iterations,
        "in_flight": args.in_flight,
    }
    strategies = args.strategies if args.figure == "age" else ["none", *args.strategies]
    each = [(repetition, strategy) for repetition in range(args.repetitions) for strategy in strategies]
    return [planned(strategy, options, repetition=repetition) for repetition, strategy in each]


def one(args, entry):
    """The run's row, with its series in one cell: "time:value", separated by blanks."""
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        journal = os.path.join(folder, "journal")
        row = bench_training(args, entry["strategy"], journal, **entry["options"])
        with open(journal) as file:
            events = [json.loads(line) for line in file]
    points = SERIES[args.figure](events, row["state_bytes"] if row["device"] == "emulated" else 0)
    return {**row, "series": " ".join(f"{at:.4f}:{value:.6g}" for at, value in points)}


def ages(events, _):
    """Age just before and just after each checkpoint became durable; in between it grows with time."""
    begin = next(event["at"] for event in events if event["event"] == "begin")
    end = next(event["at"] for event in events if event["event"] == "end")
    saved, newest, points = {}, begin, [(0, 0)]
    for event in sorted(events, key=lambda event: event["at"]):
        if event["event"] == "save":
            saved[event["step"]] = event["at"]
        elif event["event"] == "durable" and event["at"] <= end:
            points.append((event["at"] - begin, event["at"] - newest))
            newest = max(newest, saved[event["step"]])
            points.append((event["at"] - begin, event["at"] - newest))
    return [*points, (end - begin, end - newest)]


def stalls(events, _):
    """By iteration."""
    return [(event["step"], event["stall"]) for event in events if event["event"] == "iteration"]


def memory(events, state_bytes):
    begin = next(event["at"] for event in events if event["event"] == "begin")
    iterations = [event for event in events if event["event"] == "iteration"]
    dirty = iterations[0]["dirty"]
    return [
        (event["at"] - begin,
         event["anonymous"] - state_bytes + event["mapped"] + max(0, event["dirty"] - dirty))
        for event in iterations
    ]  # fmt: skip


SERIES = {"age": ages, "stalls": stalls, "memory": memory}


def points_of(row):
    """The series in a row's cell: [(time, value)]."""
    return [tuple(map(float, point.split(":"))) for point in row["series"].split()]


def draw(plots, args, rows):
    figure, axes = plots.pyplot.subplots(figsize=(7, 4.2))
    for strategy, group in by(rows, "strategy").items():
        points = points_of(group[0])
        look = {**plots.LOOKS[strategy], "label": plots.LABELS[strategy]}
        if args.figure == "stalls":
            values = sorted((value for row in group for _, value in points_of(row)), reverse=True)
            shares = [(index + 1) / len(values) for index in range(len(values))]
            axes.step([max(value, 1e-6) for value in values], shares, where="post", **{**look, "marker": ""})
        else:
            scale = 1 if args.figure == "age" else 1e-9
            axes.plot([x for x, _ in points], [y * scale for _, y in points],
                      **{**look, "markevery": max(1, len(points) // 12)})  # fmt: skip
    row = rows[0]
    pace = f"{1000 * row['iteration_seconds']:.0f} ms an iteration, every {row['every']:.0f}"
    about = f"{row['model']}, {row['state_bytes'] / 1e9:.2f} GB, {pace}"
    if args.figure == "stalls":
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("stall (s)")
        axes.set_ylabel("share of iterations with at least that stall")
        title = "Stall of each step"
    else:
        axes.set_xlabel("time (s)")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("age of the newest durable checkpoint (s)" if args.figure == "age" else "host memory (GB)")
        title = "Work at risk" if args.figure == "age" else "Host memory"
    return figure, f"{title}: {about}"
