"""The slack of a pipeline: the longest path through its forwards and backwards, and when each stage waits.

First the published stages of Perseus (SOSP 2024): 16 pipelines of GPT-3 175B and Bloom in 8 stages. The longest path must be
the published time of the fastest iteration, or the figure ends with an error. Then the GPT of cairn_bench.reconfigure, in
two stages of real processes on this machine, with equal stages and with a short first one; it saves at each step, and
what it recorded goes to `cairn slack`. Needs torch; takes a minute.
"""

import csv
import json
import os
import statistics
import subprocess
import tempfile

from ..shared import ROOT, WORK, program
from ..shared.options import add_directory, positive
from .runs import Refused, Table, by

PROGRAM = program("cairn")
DATA = os.path.join(ROOT, "bench/data")
DRAWN = "gpt3-175b a100, 12"
PARTITIONS = ("uniform_transformer", "custom:0,3,9")
HEAD = ("instruction", "start", "end", "step", "rank", "stage", "micro_batch")
OF_CAIRN = ("fence", "capture", "write")


def add_arguments(parser):
    add_directory(parser)
    parser.add_argument("--steps", type=positive(int), default=30, help="recorded steps of each job; default: 30")
    parser.add_argument("--micro-batch", type=positive(int), default=32, help="samples in each; default: 32")
    parser.add_argument("--timeout", type=positive(float), default=600, help="seconds for a job; default: 600")


def published(name):
    with open(os.path.join(DATA, name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def slack(paths):
    """What cairn slack says of files of instructions."""
    ran = subprocess.run([PROGRAM, "slack", "--json", *paths], check=False, capture_output=True, text=True)
    if ran.returncode != 0:
        raise Refused(f"cairn slack: {ran.stderr.strip()}")
    return json.loads(ran.stdout)


# The published pipelines.


def published_slack(folder, stages, micro_batches):
    """Of `stages`: [{"forward": seconds, "backward": seconds}]."""
    paths = []
    for number, stage in enumerate(stages):
        paths.append(os.path.join(folder, f"instructions-{number}.csv"))
        with open(paths[-1], "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(HEAD)
            for name, seconds in stage.items():
                writer.writerows((name, 0, seconds, 0, number, number, at) for at in range(micro_batches))
    return slack(paths)


def published_rows(args, stages, frontiers):
    for frontier in frontiers:
        micro_batches, unit = int(frontier["microbatches"]), 0.0
        model = {}
        for row in stages:
            if (row["model"], row["gpu"]) == (frontier["model"], frontier["gpu"]):
                unit = float(row["unit_s"])
                model.setdefault(int(row["stage"]), {})[row["instruction"]] = int(row["fastest"]) * unit
        source = f"{frontier['model']} {frontier['gpu']}, {micro_batches}"
        with tempfile.TemporaryDirectory(prefix="figures-", dir=args.dir) as folder:
            found = published_slack(folder, [model[stage] for stage in sorted(model)], micro_batches)
        if abs(found["seconds"] / unit - int(frontier["last"])) > 1e-6:
            expected = int(frontier["last"]) * unit
            raise Refused(f"{source}: expected a longest path of {expected:g} s, found {found['seconds']:g} s")
        yield from rows_of(source, found, int(frontier["last"]) * unit, source == DRAWN)


# The recorded ones.


def record(args, method, folder):
    """Trains and returns the files of instructions, one of each rank."""
    from ..reconfigure.jobs import Job
    from ..reconfigure.layout import Layout
    from ..reconfigure.train import Settings, train

    settings = Settings(
        os.path.join(folder, "run"), Layout(2, 1, 1), args.steps + 3, model="small", micro_batch=args.micro_batch,
        batch=8 * args.micro_batch, save_every=1, host_memory="32MiB", timeout=args.timeout, partition_method=method,
        export_timing_csv=folder, num_prof_steps=args.steps,
    )  # fmt: skip
    try:
        with Job(settings.layout.world, train, settings) as job:
            job.finish(args.timeout)
    except RuntimeError as reason:
        raise Refused(f"{method}: {reason}") from reason
    return [os.path.join(folder, f"instructions-{rank}.csv") for rank in range(settings.layout.world)]


def recorded_rows(args, method):
    source = f"recorded, {method}"
    with tempfile.TemporaryDirectory(prefix="figures-", dir=args.dir) as folder:
        paths = record(args, method, folder)
        found = slack(paths)
        spans = []
        for path in paths:
            with open(path, encoding="utf-8", newline="") as file:
                spans += csv.DictReader(file)
    yield from rows_of(source, found, found["recorded_seconds"], True)
    yield from usual_step(source, spans)


def usual_step(source, spans):
    """A row for each instruction of a step that took the median time, and for what Cairn did in that time."""
    steps = {}
    for span in spans:
        span["start"], span["end"] = float(span["start"]), float(span["end"])
        if span["instruction"] in ("forward", "backward"):
            steps.setdefault(span["step"], []).append(span)
    times = {step: (min(one["start"] for one in of), max(one["end"] for one in of)) for step, of in steps.items()}
    middle = statistics.median_low(end - begin for begin, end in times.values())
    begin, end = next(when for when in times.values() if when[1] - when[0] == middle)
    for span in spans:
        shown = span["instruction"] in ("forward", "backward", *OF_CAIRN)
        if shown and span["end"] > begin and span["start"] < end:
            yield {"source": source, "what": "recorded", "stage": span["stage"], "instruction": span["instruction"],
                   "micro_batch": span["micro_batch"], "begin_s": max(span["start"], begin) - begin,
                   "end_s": min(span["end"], end) - begin}  # fmt: skip


# Rows.


def rows_of(source, found, known, instructions):
    """A row for each stage, and one for each instruction if asked. `known`: the published or recorded seconds."""
    path = {(one["stage"], one["instruction"], one["micro_batch"]) for one in found["critical_path"]}
    for number, stage in enumerate(found["stages"]):
        windows = [window["end"] - window["begin"] for window in stage["idle"]]
        yield {"source": source, "what": "stage", "stage": number, "micro_batches": len(stage["instructions"]) // 2,
               "path_s": found["seconds"], "known_s": known, "path_length": len(path), "busy_s": stage["busy_seconds"],
               "idle_s": found["seconds"] - stage["busy_seconds"], "windows": len(windows),
               "longest_s": max(windows, default=0)}  # fmt: skip
        for one in stage["instructions"] if instructions else ():
            yield {"source": source, "what": "path", "stage": number, "instruction": one["instruction"],
                   "micro_batch": one["micro_batch"], "begin_s": one["begin"], "end_s": one["end"],
                   "slack_s": one["slack"],
                   "on_path": int((number, one["instruction"], one["micro_batch"]) in path)}  # fmt: skip


def measure(args):
    """Computes every row, and writes them only if all checks hold."""
    args.dir = args.dir or WORK
    os.makedirs(args.dir, exist_ok=True)
    table = Table(args.output + ".csv", args)
    table.rows += published_rows(args, published("perseus_stages.csv"), published("perseus_frontiers.csv"))
    for method in PARTITIONS:
        print(f"recording {method}", flush=True)
        table.rows += recorded_rows(args, method)
    table.write("complete")
    return 0


# What the rows say, for the table in the documents and for the picture.


def stages(rows):
    """{source: [rows of its stages]}"""
    return by([row for row in rows if row["what"] == "stage"], "source")


def draw(plots, _, rows):
    groups = by([row for row in rows if row["what"] in ("path", "recorded")], "source")
    figure, axes = plots.pyplot.subplots(2, 3, figsize=(11, 5), height_ratios=[1, 1])
    recorded = [source for source in groups if source.startswith("recorded")]
    for (above, below), source in zip(axes.T, recorded, strict=False):
        of = by(groups[source], "what")
        bars(above, of["recorded"], f"{source}\none step as it was")
        bars(below, of["path"], "each as early as it can be")
    whole = axes[0, 2].get_gridspec()
    for cell in axes[:, 2]:
        cell.remove()
    bars(figure.add_subplot(whole[:, 2]), groups[DRAWN], f"published: {DRAWN} micro-batches")
    for colour, label in (*((LOOKS[name], name) for name in LOOKS), ("white", "on the longest path")):
        axes[0, 0].bar(0, 0, color=colour, edgecolor="#8b0000" if colour == "white" else colour, label=label)
    return figure, "The slack of 1F1B pipelines: white is idle"


LOOKS = {"forward": "#9dbfdf", "backward": "#4f7aa3", "fence": "#d9a066", "capture": "#b59ad1", "write": "#6b6b6b"}


def bars(axes, rows, title):
    """A line for each stage; below it what Cairn did. Of an instruction on the longest path the edge is red."""
    for row in rows:
        low, high = (0.42, 0.2) if row["instruction"] in OF_CAIRN else (0, 0.7)
        on_path = row["on_path"] == 1
        axes.barh(row["stage"] + low, 1e3 * (row["end_s"] - row["begin_s"]), high, left=1e3 * row["begin_s"],
                  color=LOOKS[row["instruction"]], edgecolor="#8b0000" if on_path else "white",
                  linewidth=0.9 if on_path else 0.3, zorder=3 if on_path else 2)  # fmt: skip
    numbers = sorted({int(row["stage"]) for row in rows})
    axes.set_yticks(numbers, [f"stage {number}" for number in numbers], fontsize=7)
    axes.set_ylim(len(numbers) - 0.3, -0.6)
    axes.set_xlabel("ms", fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(title, fontsize=8)
