"""Figure 11: time of one checkpoint, from the call of Save until a crash can no longer lose it, against its size.

Nothing else is under way: each save is durable before the next one begins, if need be at a slower pace. The first one
has its own column in the CSV (first_to_durable_s). The picture has the median of the others, with the range of the
repetitions.

With --filesystems each run is made on one filesystem after the other. ext4, with its journal, and xfs are made for it
on loop devices in files in --dir, four times as large as the largest state; that needs root.

PCcheck has as many threads (1, 2, 4) as serve it best at each size: the CSV has the sweep.

The default takes an hour on a disk of 1 GB/s; with --megabytes 10,32,100,320,1000 it takes ten minutes.
"""

from ..shared import filesystems
from ..shared.options import numbers
from .arguments import add_common, add_scale, add_strategies
from .runs import by, one_run, planned, rate_of_all, series
from .runs import measure as measure_all
from .sweep import Sweeping, with_sweep

SIZES = [10, 32, 100, 320, 1000, 3200, 10000]
SAVES = 4
COPIES, BESIDES = 4, 512 << 20  # A fresh filesystem has room for so many states, and so much for itself.
THREADS = [{"in_flight": 1, "writers": writers} for writers in (1, 2, 4)]
LEAST_POOL, POOL = 64 << 20, 2 << 30  # Pinned memory of strategies that need not hold the whole state.


def add_arguments(parser):
    add_common(parser, repetitions=3, dilation=1)
    add_strategies(parser)
    parser.add_argument("--megabytes", type=numbers(least=1), default=SIZES, help="sizes of the state, by comma")
    add_scale(parser, 1, "the sizes")
    filesystems.add_filesystems(parser)


def check(args):
    if args.disk == "pd-ssd" and args.filesystems != [filesystems.MACHINE]:
        args.error("--filesystems: expected machine alone with --disk pd-ssd, whose limit is that of one device")


def measure(args):
    size = int(COPIES * max(args.megabytes) * 1e6 * args.scale) + BESIDES
    with filesystems.places(args.filesystems, args.dir, size) as places:
        return measure_all(args, plan(args), Sweeping(alone, rate, alone), places=places)


def rate(row):
    return row["state_bytes"] / row["to_durable_p50_s"]


def alone(args, entry, run=one_run):
    """A run in which each save is durable before the next one begins. A slow disk gets a slower pace, until it is so."""
    while (row := run(args, entry))["to_durable_max_s"] >= row["iteration_seconds"]:
        slower = entry["options"]["iteration_seconds"] * 2 * row["to_durable_max_s"] / row["iteration_seconds"]
        entry = {**entry, "options": {**entry["options"], "iteration_seconds": slower}}
    return row


def plan(args):
    entries = []
    for size in sorted(args.megabytes, reverse=True):  # The largest first: if it does not fit, that is reported first.
        for repetition in range(args.repetitions):
            state = size * 1e6 * args.scale
            options = {
                "state_bytes": int(size * 1e6),
                "scale": args.scale,
                "tensors": 597 if state > 1e6 else 1,
                "iteration_seconds": max(0.05, state / rate_of_all(args)) / args.scale,
                "host_memory_bytes": int(max(LEAST_POOL, min(2 * size * 1e6 * args.scale, POOL)) / args.scale),
                "every": 1,
                "iterations": SAVES + 1,
                "warmup": 1,
            }
            for strategy in args.strategies:
                for filesystem in args.filesystems:
                    labels = {"megabytes": size, "repetition": repetition, "filesystem": filesystem}
                    entries.append(planned(strategy, options, **labels))
    return with_sweep(entries, settings=THREADS)


def with_rates(rows):
    """The rows with two more columns: state, and state over time to durable."""
    return [{**row, "MB": row["state_bytes"] / 1e6, "GB/s": rate(row) / 1e9} for row in rows]


def draw(plots, _, rows):
    rows = with_rates(rows)
    if len(by(rows, "filesystem")) > 1:
        return draw_filesystems(plots, rows)
    figure, (times, rates) = plots.pyplot.subplots(1, 2, figsize=(8, 3.9))
    for strategy, group in by(rows, "strategy").items():
        plots.strategy_line(times, strategy, series(group, "MB", "to_durable_p50_s"))
        plots.strategy_line(rates, strategy, series(group, "MB", "GB/s"))
    for axes, name in ((times, "time to durable (s)"), (rates, "state / time to durable (GB/s)")):
        axes.set_xscale("log")
        axes.set_xlabel("size of the checkpoint (MB)")
        axes.set_ylabel(name)
    times.set_yscale("log")
    rates.set_ylim(bottom=0)
    return figure, "Time of one checkpoint"


def draw_filesystems(plots, rows):
    """The rates, a panel for each filesystem."""
    groups = by(rows, "filesystem")
    figure, panels = plots.pyplot.subplots(1, len(groups), figsize=(3.2 * len(groups), 3.6), sharey=True)
    for axes, (filesystem, mine) in zip(panels, groups.items(), strict=True):
        for strategy, group in by(mine, "strategy").items():
            plots.strategy_line(axes, strategy, series(group, "MB", "GB/s"))
        axes.set_title(filesystem)
        axes.set_xscale("log")
        axes.set_xlabel("size of the checkpoint (MB)")
    panels[0].set_ylabel("state / time to durable (GB/s)")
    panels[0].set_ylim(bottom=0)
    return figure, "Time of one checkpoint by filesystem"
