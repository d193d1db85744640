"""Figure 8: iterations per second against the checkpoint interval, per model and strategy.

For each model, interval and repetition, one run without checkpoints and one of each strategy run one after the other,
so that a strategy is compared with its neighbour in time. The first three intervals are not counted: in them Cairn lays
out files that later saves overwrite. Whole intervals are counted. At each point PCcheck runs with as many checkpoints in
flight (1, 2, 4) and threads (1, 2) as serve it best: the CSV has the sweep.
"""

import math

from ..shared.options import positive, some_of
from ..shared.report import middle
from .arguments import MODELS, add_common, add_in_flight, add_intervals, add_strategies
from .runs import by, grouped, planned, series
from .sweep import Sweeping, with_sweep

INTERVALS = [1, 10, 25, 50, 75, 100]
IN_FLIGHT = 2  # A second one hides the copy and the flush of the first if the disk is too slow for the interval.
LEAST = 24  # Iterations that are counted at least.
FRESH = 3  # Intervals until every strategy overwrites what it has laid out.
SCALES = {"vgg16": 1 / 8, "transformer-xl": 1 / 24, "bert": 1 / 16, "opt-1.3b": 1 / 64}  # 113 to 253 MB.


def add_arguments(parser):
    add_common(parser)
    parser.add_argument("--models", type=some_of(MODELS), default=list(MODELS), help="by comma")
    add_strategies(parser)
    add_intervals(parser, INTERVALS)
    about = "of state, memory and time; default: 1/8 of VGG-16 to 1/64 of OPT-1.3B"
    parser.add_argument("--scale", type=positive(float), help=about)
    add_in_flight(parser, IN_FLIGHT)


def plan(args):
    entries = []
    for model in args.models:
        for repetition in range(args.repetitions):
            for interval in args.intervals:
                warmup = FRESH * interval
                options = {
                    "model": model,
                    "scale": args.scale or SCALES[model],
                    "every": interval,
                    "in_flight": args.in_flight,
                    "warmup": warmup,
                    "iterations": warmup + interval * math.ceil(LEAST / interval),
                }
                for strategy in ("none", *args.strategies):
                    entries.append(planned(strategy, options, repetition=repetition, interval=interval, of=model))
    return with_sweep(entries)


def runner(_):
    return Sweeping()


def slowdowns(rows):
    """{(model, interval, strategy): [...]}: of each run, to its neighbour without checkpoints."""
    found = {}
    for neighbours in grouped(rows, "model", "interval", "repetition").values():
        ideal = next(row["iterations_per_second"] for row in neighbours if row["strategy"] == "none")
        for row in neighbours:
            key = row["model"], row["interval"], row["strategy"]
            found.setdefault(key, []).append(ideal / row["iterations_per_second"])
    return found


def draw(plots, _, rows):
    models = by(rows, "model")
    down = -(-len(models) // 2)
    size = {"figsize": (8, 2.9 * down + 1), "squeeze": False}
    figure, panels = plots.pyplot.subplots(down, min(2, len(models)), **size)
    for axes, (model, mine) in zip(panels.flat, models.items()):
        state, seconds = mine[0]["state_bytes"] / 1e9, mine[0]["iteration_seconds"]
        for strategy, group in by(mine, "strategy").items():
            plots.strategy_line(axes, strategy, series(group, "interval", "iterations_per_second"))
        axes.set_title(f"{model}: {state:.2f} GB, {1000 * seconds:.0f} ms an iteration")
        plots.interval_axis(axes, mine)
        axes.set_ylabel("throughput (iterations/s)")
        axes.set_ylim(bottom=0)
    for axes in list(panels.flat)[len(models) :]:
        axes.axis("off")
    for (model, interval, strategy), values in sorted(slowdowns(rows).items(), key=str):
        if strategy != "none":
            median, low, high = middle(values)
            print(f"{model:15} every {interval:3.0f} {strategy:10} slowdown {100 * (median - 1):8.2f} % "
                  f"[{100 * (low - 1):.2f}, {100 * (high - 1):.2f}]")  # fmt: skip
    return figure, "Throughput against checkpoint interval"
