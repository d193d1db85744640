"""PCcheck as it serves each point of a figure best: checkpoints in flight and threads, chosen by a sweep before it.

The sweep's runs stand in the figure's CSV, as rows that are no figures: their column "what" says so. Each is as long as
a run that is counted.
"""

import itertools

from .runs import one_run, planned

STRATEGY = "pccheck"
IN_FLIGHT, WRITERS = (1, 2, 4), (1, 2)
SWEEP = "sweep"


def with_sweep(entries, lengths=None):
    """The plan, with six runs before the first of PCcheck at each point. `lengths(options)`: their options, if others."""
    swept, plan = set(), []
    for entry in entries:
        if entry["strategy"] == STRATEGY and point(entry) not in swept:
            swept.add(point(entry))
            options = {**entry["options"], **(lengths(entry["options"]) if lengths else {})}
            for in_flight, writers in itertools.product(IN_FLIGHT, WRITERS):
                given = {**options, "in_flight": in_flight, "writers": writers}
                plan.append(planned(STRATEGY, given, entry["program"], **entry["labels"], what=SWEEP))
        plan.append(entry)
    return plan


def point(entry):
    """What the runs of one point share, in every repetition and at every dilation."""
    return entry["options"].get("model"), entry["options"]["every"]


def figures_of(rows):
    """The rows without those of a sweep."""
    return [row for row in rows if row.get("what") != SWEEP]


def rate(row):
    return row["iterations_per_second"]


class Sweeping:
    """Makes the rows: `one` makes those that are no sweep's. The setting with the greatest score is used."""

    def __init__(self, one=one_run, score=rate, sweep=one_run):
        self.one, self.score, self.sweep = one, score, sweep
        self.best = {}  # By point: (score, options).

    def __call__(self, args, entry):
        if entry["labels"].get("what") == SWEEP:
            row = self.sweep(args, entry)
            options = {name: entry["options"][name] for name in ("in_flight", "writers")}
            found = self.best.get(point(entry))
            if found is None or self.score(row) > found[0]:
                self.best[point(entry)] = self.score(row), options
            return row
        if entry["strategy"] == STRATEGY:
            entry = {**entry, "options": {**entry["options"], **self.best[point(entry)][1]}}
        return self.one(args, entry)
