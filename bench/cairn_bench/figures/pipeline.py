"""Figure 8e: throughput of a pipeline on two nodes against the checkpoint interval, consistent over both nodes.

Two processes of bench_pipeline in network namespaces, 15 Gbit/s between them, each with one stage of OPT-2.7B and a
pd-ssd of its own (480 MB/s, emulated), as PCcheck's authors had it. A checkpoint counts once both nodes have it. Every
run ends with both nodes restoring the last one. Needs root and iproute2; --network loopback needs neither, and has no
rate. For each interval and repetition, one run without checkpoints and one of each strategy run one after the other. The
first twelve intervals are not counted. PCcheck is set up by a sweep at each interval, as in figure 8. The picture also has
what the authors' artifact measured.

On two hosts, one node on each: this command, where IP is the first one's, and on the second one with --node-rank 1. Both
make all runs together, and write the same rows. For Cairn --dir must be storage that both share.

    torchrun --nnodes 2 --node-rank 0 --rdzv-endpoint IP:29400 --no-python scripts/figures 8e --network hosts --dir DIR

The committed figure's 81 runs took 23 minutes; the default has 135.
"""

import math

from ..shared import program
from ..shared.report import middle
from .arguments import STRATEGIES, add_emulation, add_in_flight, add_intervals, add_scale, add_strategies
from .runs import Refused, Skipped, by, planned, run_program
from .sweep import Sweeping, with_sweep
from .throughput import LEAST, agreed, slowdowns

PROGRAM = program("bench_pipeline")
INTERVALS = [1, 5, 10, 25, 50]
COUNTED = 8  # Intervals at least: four in flight stall in turns of four.
FRESH = 12  # At every 10, four in flight do not wait for each other before the eleventh.
IN_FLIGHT = 2  # As the artifact has it (max_async).
PD_SSD = 480_000_000
# Iterations a second, without checkpoints and at every 10: eth-easl/pccheck, fig8_opt27.csv.
IDEAL = 0.40685
PUBLISHED = {"checkfreq": 0.25288, "gpm": 0.26025, "gemini": 0.24595, "pccheck": 0.32935}
PUBLISHED_EVERY = 10


def add_arguments(parser):
    add_emulation(parser, repetitions=3, disk=PD_SSD)
    add_strategies(parser, [name for name in STRATEGIES if name != "torch-save"])  # Which has one node.
    add_intervals(parser, INTERVALS)
    add_scale(parser, 1 / 256, "states, transfers and time")
    add_in_flight(parser, IN_FLIGHT)
    parser.add_argument(
        "--network",
        choices=["namespaces", "loopback", "hosts"],
        default="namespaces",
        help="between the nodes; hosts: two of them, see above",
    )


def plan(args):
    entries = []
    for repetition in range(args.repetitions):
        for interval in args.intervals:
            options = {
                "scale": args.scale,
                "every": interval,
                "in_flight": args.in_flight,
                "network": args.network,
                **lengths(interval),
            }
            for strategy in ("none", *args.strategies):
                entries.append(planned(strategy, options, PROGRAM, repetition=repetition, interval=interval))
    return with_sweep(entries)


def lengths(interval):
    """The iterations of a run, and how many of them come before what is counted."""
    warmup = FRESH * interval
    return {"warmup": warmup, "iterations": warmup + interval * max(COUNTED, math.ceil(LEAST / interval))}


def runner(_):
    return Sweeping(one_run, sweep=one_run)


def one_run(args, entry):
    names = ("disk_bytes_per_second", "pcie_bytes_per_second", "dilation")
    options = {**{name: getattr(args, name) for name in names}, **entry["options"]}
    try:
        return run_program(PROGRAM, args, entry["strategy"], options)
    except Skipped as reason:  # Without a network there is no run at all.
        raise Refused(str(reason)) from None


def published_slowdown(strategy):
    return IDEAL / PUBLISHED[strategy]


def draw(plots, _, rows):
    figure, axes = plots.pyplot.subplots(figsize=(8, 4.2))
    found, _ = agreed(slowdowns(rows))  # They have one dilation.
    for strategy in by(rows, "strategy"):
        mine = {every: [1 / one for one in values] for (_, every, name), values in found.items() if name == strategy}
        if strategy != "none":
            plots.strategy_line(axes, strategy, mine)
        if strategy in PUBLISHED:
            looks = {"markerfacecolor": "none", "linestyle": "", "markersize": 9, "zorder": 6}
            look = {**plots.LOOKS[strategy], **looks}
            axes.plot([PUBLISHED_EVERY], [1 / published_slowdown(strategy)], **look)
    plots.interval_axis(axes, rows)
    axes.set_ylabel("throughput, of that without checkpoints")
    axes.set_ylim(bottom=0)
    axes.axhline(1, color="black", linestyle=":", linewidth=1)
    axes.set_title("open markers: published for every 10 (PCcheck's artifact)", fontsize=8)
    for (_, interval, strategy), values in sorted(found.items(), key=str):
        if strategy != "none":
            median, low, high = middle([100 * (one - 1) for one in values])
            print(f"every {interval:3.0f} {strategy:10} slowdown {median:8.2f} % [{low:.2f}, {high:.2f}]")
    state, seconds = rows[0]["state_bytes"] / 1e6, rows[0]["iteration_seconds"]
    return figure, f"Two nodes, OPT-2.7B in a pipeline: {state:.0f} MB in all, {1000 * seconds:.0f} ms an iteration"
