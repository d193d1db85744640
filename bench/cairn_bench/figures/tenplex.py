"""Figure tenplex: a job that shrinks and grows as in figure 9 of Tenplex (SOSP 2024), with steps for its minutes.

A GPT trains on 16, 8, 4, 8, ... real processes, each with (pipeline, tensor, data) parallel sizes of Tenplex: (4,2,2),
(4,2,1), (2,2,1). At each change it saves asynchronously through cairn.dcp, ends, restores under the next layout and goes
on. Every tensor's digest after a restore equals the one before, or the figure fails.

Its loss is drawn beside that of a run that never changes its layout. Layouts differ in the order of summation, so the losses
differ in the last bits: beside that difference is the one that the reverse order of micro-batches makes, without any
checkpoint, and the same pair of runs again in float64. Takes 15 minutes on two cores; needs torch.
"""

import os
import tempfile

from ..reconfigure.layout import LAYOUTS, SEGMENTS
from ..reconfigure.sizes import model_name
from ..shared.options import add_directory, positive
from .runs import Refused, Table, by

# Each run of the figure: its name, whether it changes its layout, and what is different.
CHANGING, STEADY, REVERSED = "changing", "steady", "reversed"
CHANGING_64, STEADY_64 = "changing, float64", "steady, float64"
RUNS = {
    CHANGING: (True, {}),
    STEADY: (False, {}),
    REVERSED: (False, {"reverse": True}),
    CHANGING_64: (True, {"dtype": "float64"}),
    STEADY_64: (False, {"dtype": "float64"}),
}
# What the loss of a run is compared with, and how the picture and the table call the difference.
COMPARED = {
    (CHANGING, STEADY): "changing layouts",
    (REVERSED, STEADY): "micro-batches in reverse",
    (CHANGING_64, STEADY_64): "changing layouts, float64",
}
PARTS = ("save", "start", "plan", "read")


def add_arguments(parser):
    add_directory(parser)
    parser.add_argument("--model", type=model_name, default="tiny", help="default: tiny")
    about = "how many of the schedule's 16 intervals; default: all"
    parser.add_argument("--intervals", type=positive(int), default=len(SEGMENTS), help=about)
    about = "steps for each of the schedule's minutes; default: 1"
    parser.add_argument("--steps-per-minute", type=positive(float), default=1, help=about)
    parser.add_argument("--host-memory", default="32MiB", help="of each rank's pool; default: 32MiB")
    parser.add_argument("--timeout", type=positive(float), default=600, help="seconds for an interval; default: 600")


def measure(args):
    """Writes the figure's CSV: a row for each step of each run, and one for each reconfiguration."""
    from ..reconfigure.replay import replay
    from ..reconfigure.train import Settings

    schedule = [
        (LAYOUTS[gpus], max(1, round(minutes * args.steps_per_minute))) for minutes, gpus in SEGMENTS[: args.intervals]
    ]
    steady = [(schedule[0][0], sum(steps for _, steps in schedule))]
    table = Table(args.output + ".csv", args)
    for number, (name, (changes, options)) in enumerate(RUNS.items(), 1):
        print(f"{number}/{len(RUNS)} {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="figures-", dir=args.dir) as folder:
            settings = Settings(os.path.join(folder, "run"), schedule[0][0], 0, model=args.model,
                                host_memory=args.host_memory, timeout=args.timeout, **options)  # fmt: skip
            try:
                parts = schedule if changes else steady
                run = replay(settings, parts, args.timeout * len(schedule) / len(parts))
            except (RuntimeError, AssertionError) as reason:
                raise Refused(f"{name}: {reason}") from reason
        table.rows += [{"run": name, "step": step, "loss": loss} for step, loss in run.losses.items()]
        table.rows += [
            {
                "run": name,
                "step": one.step,
                "before": one.before,
                "after": one.after,
                "tensors": one.tensors,
                **{f"{part}_s": getattr(one, part) for part in PARTS},
            }
            for one in run.reconfigurations
        ]
        table.write("complete" if number == len(RUNS) else f"partial: {number} of {len(RUNS)} runs")
    return 0


def losses(rows):
    """{run: {step: loss}}."""
    return {
        run: {row["step"]: row["loss"] for row in group if row["loss"] != ""} for run, group in by(rows, "run").items()
    }


def changes(rows, run=CHANGING):
    """The rows of a run's reconfigurations."""
    return [row for row in rows if row["run"] == run and row["before"]]


def differences(rows):
    """{title: {step: difference of the losses}}."""
    found = losses(rows)
    return {
        title: {step: abs(found[one][step] - loss) for step, loss in found[other].items()}
        for (one, other), title in COMPARED.items()
        if one in found and other in found
    }


def draw(plots, _, rows):
    figure, (curve, apart, cut) = plots.pyplot.subplots(3, 1, figsize=(8, 9), height_ratios=[1.2, 1, 1])
    of, events = losses(rows), changes(rows)
    for name, look in (
        (STEADY, {"color": "#b5b5b5", "linewidth": 3}),
        (CHANGING, {"color": "#8b0000", "linewidth": 1}),
    ):
        label = "the layout never changes" if name == STEADY else "the layout changes"
        curve.plot(list(of[name]), list(of[name].values()), label=label, **look)
    for row in events:
        curve.axvline(row["step"], color="#7fa7cf", linewidth=0.6, zorder=0)
        curve.annotate(row["after"], (row["step"], curve.get_ylim()[1]), rotation=90, fontsize=6, va="top")
    curve.set_xlabel("step")
    curve.set_ylabel("loss")
    for (title, values), color in zip(differences(rows).items(), ("#8b0000", "#7fa7cf", "#4d8f4d")):
        shown = {step: value for step, value in values.items() if value > 0}
        apart.plot(list(shown), list(shown.values()), ".", color=color, label=title)
    apart.set_yscale("log")
    apart.set_xlabel("step")
    apart.set_ylabel("difference of the losses")
    apart.legend(fontsize=7, markerscale=2)
    below = [0.0] * len(events)
    for part, color in zip(PARTS, ("#8b0000", "#b5b5b5", "#d9a066", "#7fa7cf"), strict=True):
        cut.bar(range(len(events)), [row[f"{part}_s"] for row in events], bottom=below, color=color, label=part)
        below = [low + row[f"{part}_s"] for low, row in zip(below, events, strict=True)]
    cut.set_xticks(range(len(events)), [f"{row['before']}\nto {row['after']}" for row in events], fontsize=6)
    cut.set_ylabel("seconds of a change")
    cut.legend(fontsize=7)
    return figure, f"A job that changes its layout as Tenplex's: {len(of[CHANGING])} steps, {len(events)} changes"
