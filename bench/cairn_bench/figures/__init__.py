"""Measures a figure of the evaluation and draws it: figure-NAME.csv and .png in build/results, or, with --record, in
bench/results, over the committed ones.

A figure that is interrupted keeps what it measured in its CSV, and says so there. With --draw it is only drawn again.
dtfm and cluster take seconds, the others three minutes to hours: the --help of each says it.
Exit status: 0 drawn, 2 invalid arguments or a run that cannot be made, 130 interrupted.
"""

import os
import sys

from ..shared import ROOT, files, options
from . import (
    cluster,
    goodput_figure,
    in_flight,
    networks,
    one_checkpoint,
    over_time,
    pace,
    parallel_writes,
    pipeline,
    profile,
    runs,
    slack,
    sweep,
    tenplex,
    throughput,
)
from .arguments import add_output, settle

FIGURES = {
    "8": (throughput, "throughput against the checkpoint interval, per model and strategy"),
    "8e": (pipeline, "throughput of a pipeline on two nodes against the interval, consistent over both"),
    "9": (goodput_figure, "goodput against the interval, by real kills on a spot cluster's trace"),
    "11": (one_checkpoint, "time of one checkpoint against its size"),
    "12": (in_flight, "slowdown and age against checkpoints in flight and interval"),
    "13": (parallel_writes, "time of one checkpoint against writer threads or queue depth"),
    "age": (over_time, "age of the newest durable checkpoint over time: the work at risk"),
    "stalls": (over_time, "stall of each step, as a distribution"),
    "memory": (over_time, "host memory over time"),
    "tenplex": (tenplex, "loss and reconfigurations of a job whose GPUs change"),
    "dtfm": (networks, "DT-FM's networks: what `cairn place` finds, beside golden costs and published times"),
    "slack": (slack, "a pipeline's longest path, and when each stage waits: published ones and a recorded one"),
    "profile": (profile, "throughput of a loader-bound, a mixed and a compute-bound job against cores and memory"),
    "cluster": (cluster, "what checkpoints may take of a shared cluster's hosts, simulated"),
}


def add_arguments(parser):
    names = parser.add_subparsers(dest="figure", metavar="NAME")
    for name, (module, about) in FIGURES.items():
        add_output(options.add_command(names, name, about, module))


def check(args):
    if args.figure is None:
        args.error(f"expected a NAME, of {', '.join(FIGURES)}")
    settle(args)
    options.check(FIGURES[args.figure][0], args)


def measure(figure, args):
    if hasattr(figure, "measure"):
        return figure.measure(args)
    notes = pace.keep(args, figure.plan(args), getattr(figure, "one_run", runs.one_run))
    one = figure.runner(args) if hasattr(figure, "runner") else runs.one_run
    return runs.measure(args, figure.plan(args), one, notes)


def run(args):
    """A figure's module has plan(args), the list of runs, and draw(plots, args, rows), which returns picture and title.

    If a run is more than one bench_training, runner(args) returns the function that makes a run's row. A figure without
    bench_training has measure(args) instead of a plan: it writes the CSV and returns the exit code.
    """
    figure = FIGURES[args.figure][0]
    try:
        if not args.draw and (code := measure(figure, args)):
            return code
        from . import plots  # Here, so that the rest runs without matplotlib.

        head, rows = runs.read_table(args.output + ".csv")
        picture, title = figure.draw(plots, args, sweep.figures_of(rows))
        plots.save(picture, args.output + ".png", title, head)
        print(f"written: {os.path.relpath(args.output, ROOT)}.csv and .png", file=sys.stderr)
    except (files.BadResult, runs.Refused) as reason:
        print(f"scripts/bench figure: {reason}", file=sys.stderr)
        return 2
    return 0
