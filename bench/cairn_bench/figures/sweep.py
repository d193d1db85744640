"""PCcheck as it serves each point of a figure best: checkpoints in flight and threads, chosen by a sweep before it.

The sweep's runs stand in the figure's CSV, as rows that are no figures: their column "what" says so. Each is as long as
a run that is counted. Of settings that equal runs would not tell apart, the one with the fewest checkpoints in flight is
used, then the fewest threads: it loses the least work in a failure.
"""

from .runs import one_run, planned

STRATEGY = "pccheck"
SETTINGS = [{"in_flight": in_flight, "writers": writers} for in_flight in (1, 2, 4) for writers in (1, 2)]
SWEEP = "sweep"
RESOLUTION = 0.005  # Of a run's time: equal runs differ by so much.


def with_sweep(entries, lengths=None, settings=SETTINGS):
    """The plan, with a run of each setting before the first of PCcheck at each point. `lengths(options)`: their options,
    if others."""
    swept, plan = set(), []
    for entry in entries:
        if entry["strategy"] == STRATEGY and point(entry) not in swept:
            swept.add(point(entry))
            options = {**entry["options"], **(lengths(entry["options"]) if lengths else {})}
            for setting in settings:
                given = {**options, **setting}
                plan.append(planned(STRATEGY, given, entry["program"], **entry["labels"], what=SWEEP))
        plan.append(entry)
    return plan


def point(entry):
    """What the runs of one point share, in every repetition and at every dilation."""
    names = ("model", "state_bytes", "every")
    return (*(entry["options"].get(name) for name in names), entry["labels"].get("filesystem"))


def figures_of(rows):
    """The rows without those of a sweep."""
    return [row for row in rows if row.get("what") != SWEEP]


def rate(row):
    return row["iterations_per_second"]


class Sweeping:
    """Makes the rows: `one` makes those that are no sweep's. The setting with the greatest score is used, or the first
    one whose score is as good but for `resolution`."""

    def __init__(self, one=one_run, score=rate, sweep=one_run, resolution=RESOLUTION):
        self.one, self.score, self.sweep, self.resolution = one, score, sweep, resolution
        self.found = {}  # By point: [(score, options)].

    def __call__(self, args, entry):
        if entry["labels"].get("what") == SWEEP:
            row = self.sweep(args, entry)
            options = {name: entry["options"][name] for name in SETTINGS[0]}
            self.found.setdefault(point(entry), []).append((self.score(row), options))
            return row
        if entry["strategy"] == STRATEGY:
            found = self.found[point(entry)]
            least = (1 - self.resolution) * max(score for score, _ in found)
            chosen = next(options for score, options in found if score >= least)
            entry = {**entry, "options": {**entry["options"], **chosen}}
        return self.one(args, entry)
