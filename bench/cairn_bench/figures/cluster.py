"""What Cairn may take of a shared node's host, without slowing any job: a simulation, nothing is measured.

128 jobs of one GPU each, drawn from the twelve of Synergy's published sensitivity matrices (OSDI 2022), run on 16 nodes
of 8 GPUs, 24 cores and 500 GB, each job writing checkpoints. A job has a proportional share of its node (3 cores, 62.5
GB), or one that is tuned to its demand. For each node: the cores and the memory that nobody needs, and how slow its worst
job becomes when saves use so many cores of the node, with threads that take them from all jobs alike, or that profiles
keep on what is spare first.

Takes some seconds.
"""

import os

from ..shared import files
from ..shared.options import positive
from . import cluster_model as model
from .runs import by, grouped

NODES = 16
# As Synergy's evaluation mixes image, language and speech.
MIXES = {
    "all alike": {},
    "20/70/10": {"image": 20, "language": 70, "speech": 10},
    "50/0/50": {"image": 50, "speech": 50},
}
PLACES = {"proportional": model.place_proportional, "tuned": model.place_tuned}
TAKEN = (0.5, 1, 2, 4, 6, 8)
WAYS = {"blind": "from all alike", "profiled": "spare first"}


def add_arguments(parser):
    parser.add_argument("--seeds", type=positive(int), default=4, help="draws of the jobs; default: 4")


def rows_of(mix, shares, seed):
    """A row for each node: what is spare, and the speed of its slowest job when saves use so many cores."""
    server, models = model.load()
    jobs = model.draw_jobs(models, NODES * server.gpus, MIXES[mix], seed)
    for number, node in enumerate(PLACES[shares](server, jobs)):
        cpus, memory = model.budget(node)
        row = {"mix": mix, "shares": shares, "seed": seed, "node": number}
        row |= {"spare_cores": round(cpus, 3), "spare_gb": round(memory, 1)}
        for way in WAYS:
            row |= {f"{way}_{taken}": round(model.slowest(node, taken, way == "profiled"), 3) for taken in TAKEN}
        yield row


def measure(args):
    rows = [
        row for mix in MIXES for shares in PLACES for seed in range(args.seeds) for row in rows_of(mix, shares, seed)
    ]
    head = [*files.begun(os.path.dirname(model.DATA)), "simulated: all of it", "complete"]
    columns = list(rows[0])
    files.write(args.output + ".csv", head, columns, [[row[name] for name in columns] for row in rows])
    return 0


def at(values, share):
    """The value below which this share of them is."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def budgets(rows):
    """{(mix, shares): ([cores], [GB])}, a node each."""
    return {
        key: ([row["spare_cores"] for row in group], [row["spare_gb"] for row in group])
        for key, group in grouped(rows, "mix", "shares").items()
    }


def speeds(rows, way):
    """{cores taken: the mean speed of a node's slowest job}."""
    return {0: 1.0} | {taken: sum(row[f"{way}_{taken}"] for row in rows) / len(rows) for taken in TAKEN}


def draw(plots, _, rows):
    figure, (left, middle, right) = plots.pyplot.subplots(1, 3, figsize=(10.5, 3.7))
    looks = {"proportional": "--", "tuned": "-"}
    colours = dict(zip(MIXES, ("#8b0000", "#7fa7cf", "#4d8f4d"), strict=True))
    for (mix, shares), spare in budgets(rows).items():
        for axes, values in zip((left, middle), spare, strict=True):
            ordered = sorted(values)
            parts = [(i + 1) / len(ordered) for i in range(len(ordered))]
            label = f"{mix}, {shares}" if axes is left else None
            axes.plot(ordered, parts, label=label, color=colours[mix], linestyle=looks[shares], marker="")
    left.set_xlabel("cores of a node that no job needs")
    middle.set_xlabel("GB of a node that no job needs")
    left.set_ylabel("share of nodes")
    for shares, group in by([row for row in rows if row["mix"] == "all alike"], "shares").items():
        for way, colour in zip(WAYS, ("#777777", "#8b0000"), strict=True):
            mean = speeds(group, way)
            label = f"{WAYS[way]}, {shares}"
            right.plot(list(mean), list(mean.values()), color=colour, linestyle=looks[shares], marker="", label=label)
    right.set_ylim(0.4, 1.02)
    right.set_xlabel("cores of a node that saves use (all models alike)")
    right.set_ylabel("speed of the slowest job")
    right.legend(fontsize=7)
    return figure, "What checkpoints may take of a shared host (simulated)"
