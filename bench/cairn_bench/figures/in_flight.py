"""Figure 12: slowdown and age against checkpoints in flight and interval, for strategies that can have several.

Cairn finishes the oldest first; PCcheck shares the disk among all. The age is the greatest age of the newest durable
checkpoint, over Tw (the time that one checkpoint takes alone) and the interval as it came out. If the disk is too slow
for the interval, every checkpoint queues behind those before it: the age is at least 2 Tw, and training waits. If it is
fast enough, two overlap only when one is asked for early. The bars show that: pairs half of Tw apart, every 2.2 Tw, two
in flight. The goal there is an age of at most 1.02 (Tw + the longer interval).

Run it on an emulated disk (--disk-bytes-per-second): it is a figure of scheduling. Takes about ten minutes.
"""

import math

from ..shared.options import numbers
from ..shared.report import middle
from .arguments import MODELS, add_common, add_intervals, add_scale, add_strategies
from .runs import bench_training, by, planned

STRATEGIES = ("pccheck", "cairn")
INTERVALS = [1, 5, 10, 15, 20, 25, 30]
IN_FLIGHT = [1, 2, 4, 6, 8]
ALONE, PAIRS = "alone", "pairs"  # What is measured beside the intervals.


def add_arguments(parser):
    add_common(parser)
    parser.add_argument("--model", choices=MODELS, default="vgg16")
    add_strategies(parser, STRATEGIES)
    add_intervals(parser, INTERVALS)
    parser.add_argument("--in-flight", type=numbers(least=1), default=IN_FLIGHT, help="by comma")
    add_scale(parser, 1 / 4)


def runner(_):
    alone = {}
    return lambda args, entry: one(args, entry, alone)


def plan(args):
    shape = {"model": args.model, "scale": args.scale}
    entries = []
    for repetition in range(args.repetitions):
        for strategy in args.strategies:
            alone = {**shape, "every": 60, "iterations": 300, "warmup": 60, "in_flight": 1}
            pairs = {**shape, "every": 2, "iterations": 20, "in_flight": 2}  # Set when the time alone is known.
            for what, options in ((ALONE, alone), (PAIRS, pairs)):
                entries.append(planned(strategy, options, what=what, repetition=repetition))
        for interval in args.intervals:
            none = {**shape, "every": 1, "iterations": 60}
            entries.append(planned("none", none, what=interval, repetition=repetition))
            for in_flight in args.in_flight:
                warmup = max(4, in_flight) * interval
                iterations = warmup + max(24, 4 * interval)
                counts = {"every": interval, "in_flight": in_flight, "warmup": warmup, "iterations": iterations}
                options = {**shape, **counts}
                for strategy in args.strategies:
                    entries.append(planned(strategy, options, what=interval, repetition=repetition))
    return entries


def one(args, entry, alone):
    options = entry["options"]
    if entry["labels"]["what"] == PAIRS:
        writing = alone[entry["strategy"]]  # In iterations.
        every, again = math.ceil(2.2 * writing), max(1, round(writing / 2))
        options = {**options, "every": every, "again": again, "iterations": 11 * every, "warmup": 2 * every}
    row = bench_training(args, entry["strategy"], **options)
    if entry["labels"]["what"] == ALONE:
        alone[entry["strategy"]] = row["to_durable_p50_s"] / row["iteration_seconds"]
    return row


def times_alone(rows):
    """Tw, by strategy."""
    groups = by([row for row in rows if row["what"] == ALONE], "strategy")
    return {strategy: middle([row["to_durable_p50_s"] for row in of])[0] for strategy, of in groups.items()}


def in_pairs(rows):
    """Greatest age over Tw and the longer of the two intervals, by strategy."""
    found, alone = {}, times_alone(rows)
    for row in rows:
        if row["what"] == PAIRS:
            interval = (row["every"] - row["again"]) / row["iterations_per_second"]
            found.setdefault(row["strategy"], []).append(row["age_max_s"] / (alone[row["strategy"]] + interval))
    return found


def draw(plots, _, rows):
    strategies = [name for name in STRATEGIES if any(row["strategy"] == name for row in rows)]
    alone = times_alone(rows)
    figure = plots.pyplot.figure(figsize=(8, 8.2))
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 0.8])
    for column, strategy in enumerate(strategies):
        mine = [row for row in rows if row["strategy"] == strategy and row["what"] not in (ALONE, PAIRS)]
        slow = figure.add_subplot(grid[0, column])
        old = figure.add_subplot(grid[1, column])
        draw_intervals(slow, old, mine, ideals(rows), alone[strategy])
        slow.set_title(f"{plots.LABELS[strategy]}; alone {alone[strategy]:.2f} s")
    bars = figure.add_subplot(grid[2, :])
    for index, (strategy, values) in enumerate(in_pairs(rows).items()):
        median, low, high = middle(values)
        bars.barh(index, median, color=plots.LOOKS[strategy]["color"], xerr=[[median - low], [high - median]])
        print(f"{strategy:8} pairs, 2 in flight: age / (Tw + interval) {median:.3f} [{low:.3f}, {high:.3f}]")
    bars.set_yticks(range(len(strategies)), [plots.LABELS[name] for name in strategies])
    bars.axvline(1.02, color="black", linestyle=":", linewidth=1)
    bars.set_xlabel("pairs half of Tw apart, two in flight: greatest age / (Tw + longer interval)")
    model, state = rows[0]["model"], rows[0]["state_bytes"] / 1e9
    return figure, f"Checkpoints in flight: {model}, {state:.2f} GB"


def ideals(rows):
    """Iterations per second without checkpoints, by interval and repetition: the neighbours of the other runs."""
    return {(row["what"], row["repetition"]): row["iterations_per_second"] for row in rows if row["strategy"] == "none"}


def draw_intervals(slow, old, rows, ideal, alone):
    strategy = rows[0]["strategy"]
    for index, (in_flight, group) in enumerate(sorted(by(rows, "in_flight").items())):
        slowdowns, ages = {}, {}
        for row in group:
            rate = row["iterations_per_second"]
            slowdowns.setdefault(row["what"], []).append(ideal[row["what"], row["repetition"]] / rate)
            ages.setdefault(row["what"], []).append(row["age_max_s"] / (alone + row["what"] / rate))
        look = {"color": str(0.16 * index), "marker": "os^DvPX"[index % 7], "label": f"{in_flight:.0f} in flight"}
        for axes, points in ((slow, slowdowns), (old, ages)):
            axes.plot(sorted(points), [middle(points[x])[0] for x in sorted(points)], **look)
        for interval in sorted(ages):
            slowdown, age = middle(slowdowns[interval])[0], middle(ages[interval])[0]
            print(f"{strategy:8} {in_flight:.0f} in flight, every {interval:3.0f}: slowdown {slowdown:.3f}, "
                  f"age / (Tw + interval) {age:.3f}")  # fmt: skip
    slow.set_ylabel("slowdown (times)")
    slow.set_ylim(bottom=0)
    old.set_ylabel("greatest age / (Tw + interval)")
    old.set_xlabel("checkpoint interval (iterations)")
    old.set_ylim(bottom=0)
