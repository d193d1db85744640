"""Figure 8: iterations per second against the checkpoint interval, per model and strategy.

For each model, interval and repetition, one run without checkpoints and one of each strategy run one after the other,
so that a strategy is compared with its neighbour in time. The first six intervals are not counted: in them Cairn lays
out files that later saves overwrite, and PCcheck begins its four in flight without waiting for any. Whole intervals are
counted. At each point PCcheck runs with as many checkpoints in flight (1, 2, 4) and threads (1, 2) as serve it best:
the CSV has the sweep.

All of that is done at two dilations. The emulation slows everything down by the same factor, so that what a strategy
costs must not depend on it. A point whose ranges at the two are further apart than half a per cent, by which equal runs
differ, shows the machine, not the strategy: it is neither drawn nor in the table.

The committed figure's 216 runs trained for 45 minutes in all. The default has 1,296: hours.
"""

import itertools
import math

from ..shared.options import positive, some_of
from ..shared.report import middle
from .arguments import (
    IN_MEMORY,
    MODELS,
    STRATEGIES,
    add_common,
    add_in_flight,
    add_intervals,
    add_strategies,
)
from .pace import dilations
from .runs import by, grouped, planned
from .sweep import RESOLUTION, Sweeping, with_sweep

INTERVALS = [1, 10, 25, 50, 75, 100]
IN_FLIGHT = 2  # A second one hides the copy and the flush of the first if the disk is too slow for the interval.
LEAST = 24  # Iterations that are counted at least.
FRESH = 6  # Intervals until every strategy overwrites what it has laid out, and waits for a place in flight.
DILATIONS = [4, 8]
SCALES = {"vgg16": 1 / 8, "transformer-xl": 1 / 24, "bert": 1 / 16, "opt-1.3b": 1 / 64}  # 113 to 253 MB.


def add_arguments(parser):
    add_common(parser, repetitions=3, dilation=DILATIONS)
    parser.add_argument("--models", type=some_of(MODELS), default=list(MODELS), help="by comma")
    add_strategies(parser, (*STRATEGIES, IN_MEMORY), STRATEGIES)
    add_intervals(parser, INTERVALS)
    about = "of state, memory and time: one, or each model's, by comma; default: 1/8 of VGG-16 to 1/64 of OPT-1.3B"
    parser.add_argument("--scale", type=scales, help=about)
    add_in_flight(parser, IN_FLIGHT)
    about = "of an optimizer step on the emulated machine, before scale and dilation; default: measured"
    parser.add_argument("--update-seconds", type=positive(float), help=about)


def scales(text):
    return [positive(float)(one) for one in text.split(",")]


def scale_of(args, model):
    if not args.scale:
        return SCALES[model]
    if len(args.scale) not in (1, len(args.models)):
        args.error(f"--scale: expected 1 number or {len(args.models)}, one for each model; found {len(args.scale)}")
    return args.scale[0 if len(args.scale) == 1 else args.models.index(model)]


def plan(args):
    points = itertools.product(args.models, range(args.repetitions), args.intervals, dilations(args))
    return with_sweep([entry for point in points for entry in _neighbours(args, *point)])


def _neighbours(args, model, repetition, interval, dilation):
    """The runs that are compared with each other."""
    scale, warmup = scale_of(args, model), FRESH * interval
    options = {
        "model": model,
        "scale": scale,
        "dilation": dilation,
        "every": interval,
        "in_flight": args.in_flight,
        "warmup": warmup,
        "iterations": warmup + interval * math.ceil(LEAST / interval),
        "update_seconds": args.update_seconds and args.update_seconds * scale * dilation,
    }
    labels = {"repetition": repetition, "interval": interval, "of": model, "at": dilation}
    return [planned(strategy, options, **labels) for strategy in ("none", *args.strategies)]


def runner(_):
    return Sweeping()


def slowdowns(rows):
    """{(model, interval, strategy): {dilation: [...]}}: of each run, to its neighbour without checkpoints."""
    found = {}
    for neighbours in grouped(rows, "model", "interval", "repetition", "dilation").values():
        ideal = next(row["iterations_per_second"] for row in neighbours if row["strategy"] == "none")
        for row in neighbours:
            point = found.setdefault((row["model"], row["interval"], row["strategy"]), {})
            point.setdefault(row["dilation"], []).append(ideal / row["iterations_per_second"])
    return found


def agreed(points):
    """(those of the points whose ranges overlap at all dilations, with all their runs; the keys of the others)."""
    kept, others = {}, []
    for key, runs in points.items():
        if max(map(min, runs.values())) <= min(map(max, runs.values())) * (1 + RESOLUTION):
            kept[key] = [one for of in runs.values() for one in of]
        else:
            others.append(key)
    return kept, others


def draw(plots, _, rows):
    models = by(rows, "model")
    kept, others = agreed(slowdowns(rows))
    down = -(-len(models) // 2)
    size = {"figsize": (8, 2.9 * down + 1), "squeeze": False}
    figure, panels = plots.pyplot.subplots(down, min(2, len(models)), **size)
    for axes, (model, mine) in zip(panels.flat, models.items()):
        state, seconds = mine[0]["state_bytes"] / 1e9, mine[0]["iteration_seconds"] / mine[0]["dilation"]
        for strategy in by(mine, "strategy"):
            points = {at: [1 / one for one in values] for (of, at, name), values in kept.items()
                      if (of, name) == (model, strategy)}  # fmt: skip
            if strategy != "none" and points:
                plots.strategy_line(axes, strategy, points)
        axes.set_title(f"{model}: {state:.2f} GB, {1000 * seconds:.1f} ms an iteration")
        plots.interval_axis(axes, mine)
        axes.set_ylabel("throughput, of that without checkpoints")
        axes.set_ylim(bottom=0)
        axes.axhline(1, color="black", linestyle=":", linewidth=1)
    for axes in list(panels.flat)[len(models) :]:
        axes.axis("off")
    for (model, interval, strategy), values in sorted(kept.items(), key=str):
        if strategy != "none":
            print(f"{model:15} every {interval:3.0f} {strategy:10} slowdown {losses(values)}")
    for model, interval, strategy in others:
        print(f"{model:15} every {interval:3.0f} {strategy:10} differs between dilations: not drawn")
    return figure, "Throughput against checkpoint interval"


def losses(values):
    median, low, high = middle([100 * (one - 1) for one in values])
    return f"{median:8.2f} % [{low:.2f}, {high:.2f}]"
