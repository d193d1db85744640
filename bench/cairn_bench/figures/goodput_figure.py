"""Figure 9: goodput against the checkpoint interval, with the failures of a spot cluster's trace, by real kills.

Each run replays the trace, compressed in time: bench_training is killed with SIGKILL at each failure and started again
at once. For each repetition and interval the strategies run one after the other, in the opposite order every other
time, so that each is compared with its neighbour in time. Before them runs a training that neither saves nor dies; it
measures an iteration. Beside what was measured the figure has what three models say of the same run: PCcheck's
published one, the exact one, and the exact one failure by failure (goodput_model.py).

--scale shrinks state and iteration time, and with them everything but what a restart takes beyond reading the state.
--compress shrinks the time between failures. What counts is how the three compare. The mean time between failures, in
iterations and in restarts, is printed and in the CSV. There is a warning if it is shorter than five restarts. --limit
replays only the first part of the trace.

The default takes about 12 minutes for five strategies at four intervals. Error bars are bootstrap 95 % intervals of the
medians of the repetitions. In each repetition the failures fall at other instants, the same for all strategies:
anywhere in the 63 s between the sample that shows one and the sample before. PCcheck's checkpoints in flight and threads
are those that a sweep without failures gives the greatest expected goodput, at each interval.
"""

import os
import random
import statistics

from ..shared.options import positive
from ..shared.report import interval
from . import goodput, goodput_model, pipeline, spot_trace
from .arguments import IN_MEMORY, STRATEGIES, add_common, add_intervals, add_scale, add_strategies
from .runs import (
    PROGRAM,
    Refused,
    bench_training,
    by,
    flags_of,
    machine_options,
    planned,
    series,
)
from .sweep import Sweeping, with_sweep

INTERVALS = [10, 25, 50, 100]
# The better of 1 and 2: Cairn finishes the older first, so that a second one hides the first's copy and commit, and does
# not delay it. PCcheck's are swept.
IN_FLIGHT = {"cairn": 2, IN_MEMORY: 2}
PUBLISHED = ["sync", "checkfreq", "gpm", "pccheck", "cairn"]
SETTINGS = ("model", "device", "disk", "disk_bytes_per_second", "pcie_bytes_per_second", "dilation", "state_bytes",
            "scale", "iteration_seconds")  # fmt: skip
PACE_ITERATIONS = 300  # Of the training without checkpoints that measures an iteration.
LEAST_RESTARTS = 5  # That should fit between two failures.
MODELS = {  # Column: how it is drawn.
    "ideal": {"color": "#9a9a9a", "linestyle": ":", "label": "ideal: checkpoints and restarts take no time"},
    "published": {"color": "#555555", "linestyle": "--", "label": "model as published by PCcheck"},
    "exact": {"color": "#000000", "linestyle": "-", "label": "exact model"},
    "walked": {"color": "#000000", "linestyle": "", "marker": "_", "markersize": 9, "label": "exact, each failure"},
}
MEASURED = {"color": "#8b0000", "linestyle": "", "marker": "o"}


def add_arguments(parser):
    add_common(parser)
    parser.add_argument("--model", default="vgg16", help="a shape that bench_training knows; default: vgg16")
    add_scale(parser, 1 / 16)
    add_intervals(parser, INTERVALS)
    add_strategies(parser, ("none", *STRATEGIES, IN_MEMORY), PUBLISHED)
    about = f"checkpoints in flight, of strategies that can have several; default: the best for each, {IN_FLIGHT}"
    parser.add_argument("--in-flight", type=positive(int), help=about)
    parser.add_argument("--trace", default=spot_trace.SPOT_GPUS, help="default: bench/data/spot_gpus_trace.csv")
    parser.add_argument("--compress", type=positive(float), default=200, help="trace seconds in one; default: 200")
    parser.add_argument("--limit", type=positive(float), default=6741, help="seconds of the trace; default: its half")


def runner(args):
    try:
        replays = Replays(args, spot_trace.read(args.trace))
    except spot_trace.BadTrace as reason:
        raise Refused(str(reason)) from None
    between = replays.end / len(replays.failures[0])
    return Sweeping(replays, lambda row: expected(row, between))


def expected(row, between):
    """Goodput, with a failure every so many seconds, each of which takes half an interval and the write."""
    rate = row["iterations_per_second"]
    return rate * (1 - (row["every"] / (2 * rate) + to_durable(row)) / between)


def to_durable(row):
    """Mean seconds of the saves that are counted. Those that a younger one has overtaken have none."""
    each = str(row["to_durable_each_s"]).split(";")[-pipeline.COUNTED :]
    return statistics.mean(float(seconds) for seconds in each if seconds != "overtaken")


def swept(options):
    """A run of the sweep, without failures: as long as one of figure 8e, until all that are in flight have stalled."""
    return pipeline.lengths(options["every"])


def plan(args):
    entries = []
    for repetition in range(args.repetitions):
        for every in args.intervals:
            for strategy in args.strategies[:: -1 if repetition % 2 else 1]:
                options = {
                    "model": args.model,
                    "scale": args.scale,
                    "every": every,
                    "iterations": every,
                    "in_flight": args.in_flight or IN_FLIGHT.get(strategy, 1),
                }
                entries.append(planned(strategy, options, repetition=repetition, interval=every))
    return with_sweep(entries, swept)


class Replays:
    """Makes the rows. The first training without checkpoints measures what an update takes in all processes."""

    def __init__(self, args, trace):
        until = min(args.limit, trace.seconds[-1])
        self.end = until / args.compress
        count = sum(at < until for at in spot_trace.failures(trace))
        if not count:
            raise Refused(f"--limit {args.limit:g}: expected a failure in these seconds of {args.trace}, found none")
        drawn = [spot_trace.failures(trace, random.Random(seed))[:count] for seed in range(args.repetitions)]
        self.failures = [[at / args.compress for at in failures] for failures in drawn]
        self.emulated = (
            f"failures of {os.path.basename(args.trace)}: {count} in {until:g} s, which are {self.end:.4g}, "
            "each anywhere in its sample period (seed: the repetition)"
        )
        self.paces = {}
        self.update_seconds = None

    def __call__(self, args, entry):
        ideal = self.pace(args, entry)
        every = entry["options"]["every"]
        iterations = every + int(2 * self.end / ideal["iteration_seconds"])  # More than can be reached.
        given = {**entry["options"], "iterations": iterations, "update_seconds": self.update_seconds}
        given |= machine_options(args)
        failures = self.failures[entry["labels"]["repetition"]]
        command = [PROGRAM, "--strategy", entry["strategy"], *flags_of(given)]
        try:
            outcome = goodput.replay(command, args.dir, failures, self.end)
        except goodput.Failed as reason:
            raise Refused(f"{entry['strategy']} every {every}: {reason}") from None
        costs = goodput.costs(outcome, every, 1 / ideal["iterations_per_second"], entry["options"]["in_flight"])
        row = {"strategy": entry["strategy"], **self.figures(entry["strategy"], failures, outcome, costs)}
        tell(row)
        settings = {name: ideal[name] for name in SETTINGS}
        emulated = f"{ideal['emulated']}; {self.emulated}"
        threads = {"in_flight": entry["options"]["in_flight"], "writers": entry["options"].get("writers", 1)}
        return {**row, **settings, **threads, "emulated": emulated}

    def pace(self, args, entry):
        """The row of a training without checkpoints or failures, once for each repetition and interval."""
        neighbours = tuple(entry["labels"].values())
        if neighbours not in self.paces:
            options = {"iterations": PACE_ITERATIONS, "update_seconds": self.update_seconds, "every": 1}
            self.paces[neighbours] = bench_training(args, "none", **{**entry["options"], **options})
            self.update_seconds = self.update_seconds or self.paces[neighbours]["update_seconds"]
        return self.paces[neighbours]

    def figures(self, strategy, failures, outcome, costs):
        happened = costs, outcome.failures, outcome.seconds
        values = {
            "goodput": outcome.goodput,
            "ideal": goodput_model.ideal(costs, failures, self.end),
            "published": goodput_model.published(strategy, *happened),
            "exact": goodput_model.exact(*happened),
            "walked": goodput_model.walked(*happened),
            "seconds": outcome.seconds,
            "reached": outcome.reached,
            "ideal_iteration_s": costs.ideal_iteration,
            "iteration_s": costs.iteration,
            "write_s": costs.write,
            "exposed_s": costs.exposed,
            "restart_s": costs.restart,
            "lost_iterations": sum(outcome.lost) / max(1, len(outcome.lost)),
            "failures": len(outcome.failures),
            "killed_starting": outcome.killed_starting,
            "iterations_between": outcome.seconds / len(outcome.failures) / costs.ideal_iteration,
            "restarts_between": outcome.seconds / len(outcome.failures) / max(costs.restart, 1e-9),
        }
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in values.items()}


def tell(row):
    print(
        f"  {row['goodput']:.2f} iterations/s; exact {row['exact']:.2f}, walked {row['walked']:.2f}, ideal "
        f"{row['ideal']:.2f}; an iteration {1000 * row['iteration_s']:.2f} ms, exposed {row['exposed_s']:.3f} s, "
        f"restart {row['restart_s']:.3f} s; a failure in {row['iterations_between']:.0f} iterations, "
        f"{row['restarts_between']:.1f} restarts",
        flush=True,
    )
    if row["restarts_between"] < LEAST_RESTARTS:
        print(
            f"  warning: expected time for {LEAST_RESTARTS} restarts or more between two failures, found "
            f"{row['restarts_between']:.1f}: what is measured is starting; a smaller --compress or --scale helps",
            flush=True,
        )


def draw(plots, _, rows):
    """A panel for each strategy with its models, and one that compares the strategies. Prints the comparison, too."""
    compare(rows)
    strategies = by(rows, "strategy")
    across = min(3, len(strategies) + 1)
    down = -(-(len(strategies) + 1) // across)
    figure, axes = plots.pyplot.subplots(down, across, figsize=(3.7 * across, 2.9 * down + 1.2), squeeze=False)
    panels = list(axes.flat)
    tallest = max(max(row["goodput"], row["ideal"]) for row in rows)
    for panel, (strategy, mine) in zip(panels, strategies.items()):
        for column, look in MODELS.items():
            points = series(mine, "interval", column)
            panel.plot(points.keys(), [interval(values)[0] for values in points.values()], **look)
        plots.line(panel, series(mine, "interval", "goodput"), "measured", MEASURED, interval)
        panel.set_title(plots.LABELS[strategy])
        panel.set_ylabel("goodput (iterations/s)")
        panel.set_ylim(0, 1.05 * tallest)
    shares = panels[len(strategies)]
    for strategy, group in strategies.items():
        mine = [{**row, "share": 100 * row["goodput"] / row["ideal"]} for row in group]
        plots.strategy_line(shares, strategy, series(mine, "interval", "share"), interval)
    shares.set_title("all, measured")
    shares.set_ylabel("goodput (% of ideal)")
    shares.set_ylim(bottom=0)
    shares.legend(fontsize=7)
    for panel in panels[: len(strategies) + 1]:
        plots.interval_axis(panel, rows)
    for panel in panels[len(strategies) + 1 :]:
        panel.axis("off")
    first = rows[0]
    title = (
        f"Goodput under a spot cluster's failures, by real kills: {first['model']} at scale {first['scale']:.3g} "
        f"({first['state_bytes'] / 1e6:.0f} MB, {1000 * first['iteration_seconds']:.3g} ms an iteration), "
        f"{'CUDA' if first['device'] == 'cuda' else 'emulated'} GPU"
    )
    return figure, title


def compare(rows):
    """Prints each strategy over the ideal and over the exact model, and Cairn over it, in neighbouring pairs."""
    for every, of_interval in sorted(by(rows, "interval").items()):
        cairn = {row["repetition"]: row["goodput"] for row in of_interval if row["strategy"] == "cairn"}
        for strategy, mine in by(of_interval, "strategy").items():
            words = [
                told("of ideal", [row["goodput"] / row["ideal"] for row in mine]),
                told("of exact", [row["goodput"] / row["exact"] for row in mine if row["exact"]]),
            ]
            if strategy != "cairn":
                pairs = [cairn[row["repetition"]] / row["goodput"] for row in mine if row["repetition"] in cairn]
                words.append(told("Cairn's of it", pairs))
            print(f"every {every:3.0f} {strategy:10}", "; ".join(filter(None, words)))


def told(name, values):
    if not values:
        return ""
    median, low, high = interval(values)
    return f"{name} {median:.3f}" + (f" [{low:.3f}, {high:.3f}]" if len(values) > 1 else "")
