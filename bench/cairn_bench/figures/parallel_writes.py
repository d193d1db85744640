"""Figure 13: time of one checkpoint against how it is written: PCcheck's threads, Cairn's queue depth and chunk size.

Nothing else is under way. Cairn has one line for each chunk size. Takes about ten minutes.
"""

from ..shared.options import numbers, positive
from .arguments import add_common, add_scale
from .runs import grouped, planned, rate_of_all

PARALLEL = [1, 2, 3, 4, 8, 16]
CHUNKS = [1, 4, 16]
MOST_THREADS = 4
SAVES = 5
POOL = 1 << 30


def add_arguments(parser):
    add_common(parser, repetitions=3, dilation=1)
    parser.add_argument("--parallel", type=numbers(least=1), default=PARALLEL, help="threads and depths, by comma")
    parser.add_argument("--chunks", type=numbers(least=1), default=CHUNKS, help="of Cairn, in MiB, by comma")
    parser.add_argument("--megabytes", type=positive(int), default=1000, help="size of the state; default: 1000")
    add_scale(parser, 1, "the size")


def plan(args):
    options = {
        "state_bytes": args.megabytes * 1_000_000,
        "scale": args.scale,
        "iteration_seconds": max(0.05, args.megabytes * 1e6 * args.scale / rate_of_all(args)) / args.scale,
        "host_memory_bytes": int(POOL / args.scale),
        "every": 1,
        "in_flight": 1,
        "iterations": SAVES + 1,
        "warmup": 1,
    }
    entries = []
    for repetition in range(args.repetitions):
        for parallel in args.parallel:
            if parallel <= MOST_THREADS:
                entries.append(planned("pccheck", {**options, "writers": parallel}, repetition=repetition))
            for chunk in args.chunks:
                given = {**options, "queue_depth": parallel, "chunk_bytes": chunk << 20}
                entries.append(planned("cairn", given, repetition=repetition))
    return entries


def draw(plots, _, rows):
    figure, axes = plots.pyplot.subplots(figsize=(6, 3.9))
    for (strategy, chunk), group in sorted(grouped(rows, "strategy", "chunk_bytes").items()):
        points = {}
        for row in group:
            parallel = row["writers"] if strategy == "pccheck" else row["queue_depth"]
            points.setdefault(parallel, []).append(row["to_durable_p50_s"])
        mebibytes = chunk / (1 << 20)
        label = "PCcheck: threads" if strategy == "pccheck" else f"Cairn: queue depth, {mebibytes:.0f} MiB chunks"
        looks = dict(plots.LOOKS[strategy])
        if strategy == "cairn":
            looks["marker"] = {1: "v", 4: "o", 16: "^"}.get(mebibytes, "x")
            looks["linestyle"] = {1: ":", 4: "-", 16: "--"}.get(mebibytes, "-.")
        plots.line(axes, points, label, looks)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("threads, or writes given to the disk at once")
    axes.set_ylabel("time to durable (s)")
    return figure, f"One checkpoint of {rows[0]['state_bytes'] / 1e9:.2f} GB"
