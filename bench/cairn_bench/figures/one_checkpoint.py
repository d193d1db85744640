"""Figure 11: time of one checkpoint, from the call of Save until a crash can no longer lose it, against its size.

Nothing else is under way: each save has become durable before the next. The first one is told apart in the CSV
(first_to_durable_s); drawn is the median of the steady ones, with the range of the repetitions.
"""

from ..shared.options import numbers
from .arguments import add_common, add_scale, add_strategies
from .runs import grouped, measure_and_draw, planned, rate_of_all, read_table

SIZES = [10, 32, 100, 320, 1000, 3200, 10000]
SAVES = 4
LEAST_POOL, POOL = 64 << 20, 2 << 30  # Of pinned memory, for those that need not hold all of the state.


def add_arguments(parser):
    add_common(parser, repetitions=3, dilation=1)
    add_strategies(parser)
    parser.add_argument("--megabytes", type=numbers(least=1), default=SIZES, help="sizes of the state, by comma")
    add_scale(parser, 1, "the sizes")


def run(args):
    return measure_and_draw(args, plan(args), draw)


def plan(args):
    entries = []
    for size in sorted(args.megabytes, reverse=True):  # What does not fit is said first.
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
                entries.append(planned(strategy, options, megabytes=size, repetition=repetition))
    return entries


def draw(args):
    from . import plots  # Here, so that the rest runs without matplotlib.

    head, rows = read_table(args.output + ".csv")
    figure, (times, rates) = plots.pyplot.subplots(1, 2, figsize=(8, 3.9))
    for (strategy,), group in grouped(rows, "strategy").items():
        seconds, speeds = {}, {}
        for row in group:
            megabytes = row["state_bytes"] / 1e6
            seconds.setdefault(megabytes, []).append(row["to_durable_p50_s"])
            speeds.setdefault(megabytes, []).append(row["state_bytes"] / row["to_durable_p50_s"] / 1e9)
        plots.strategy_line(times, strategy, seconds)
        plots.strategy_line(rates, strategy, speeds)
    for axes, name in ((times, "time to durable (s)"), (rates, "state / time to durable (GB/s)")):
        axes.set_xscale("log")
        axes.set_xlabel("size of the checkpoint (MB)")
        axes.set_ylabel(name)
    times.set_yscale("log")
    rates.set_ylim(bottom=0)
    plots.save(figure, args.output + ".png", "Time of one checkpoint", head)
