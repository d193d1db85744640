"""Figures against goals: the median with a bootstrap 95 % interval, and whether it is met, missed or not resolved."""

import contextlib
import os
import random
import statistics
import sys

from . import ROOT, files
from .measures import COLUMNS, Values

TITLES = ("measure", "goal", "median", "95 % interval", "n", "")


def interval(values):
    """Median and its bootstrap 95 % interval."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(4000))
    return statistics.median(values), medians[100], medians[3899]


def verdict(low, high, goal, more_is_better):
    """(met, missed or not resolved; the goal as text) of a figure's interval."""
    met = (low >= goal, high < goal) if more_is_better else (high <= goal, low > goal)
    return "met" if met[0] else "missed" if met[1] else "not resolved", f"{'>=' if more_is_better else '<='} {goal:g}"


def middle(values):
    """(median, least, greatest)."""
    return statistics.median(values), min(values), max(values)


def short(value):
    """Two or three digits, and no exponent."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 2
    return f"{value:.{digits}f}" if abs(value) >= 0.1 else f"{value:.2g}"


def spread(values, form=short):
    """The median, with the least and the greatest where they differ."""
    median, least, most = map(form, middle(values))
    return median if least == most else f"{median} ({least} to {most})"


def table(titles, rows):
    """In markdown, without the columns that are empty in every row."""
    kept = [at for at in range(len(titles)) if at == 0 or any(str(row[at]) for row in rows)]

    def line(cells):
        return "| " + " | ".join(str(cells[at]) for at in kept) + " |"

    return "\n".join([line(titles), "|" + "---|" * len(kept), *map(line, rows)])


class Report:
    """Every single value, for a CSV in the folder, and a table of the figures made of them."""

    def __init__(self, folder=None, values=None):
        self.folder = folder
        self.quiet = values is not None  # They were measured before.
        self.values = Values(values or {})
        self.rows = []
        self.titles = set()

    def single(self, measure, pair, name, value):
        self.values[measure, pair, name] = value

    def judge(self, measures, name="this run"):
        """Adds the figures that can be made by now and are not in the table yet."""
        for measure in measures:
            for title, values in self.values.samples(measure, name).items():
                if title not in self.titles:
                    self.figure(title, values, measure.goal, measure.more_is_better, measure.unit)

    def figure(self, title, values, goal=None, more_is_better=False, unit=""):
        """Without a goal it is a fact that is neither met nor missed."""
        median, low, high = interval(values)
        word = reach = ""
        if goal is not None:
            word, reach = verdict(low, high, goal, more_is_better)
            reach += unit
        self.titles.add(title)
        self.rows.append((title, reach, f"{median:.4g}{unit}", f"{low:.4g} to {high:.4g}", len(values), word))
        if not self.quiet:
            print(f"  {title}: {median:.4g}{unit} [{low:.4g}, {high:.4g}] {word}", flush=True)

    def text(self):
        return table(TITLES, self.rows)

    def write(self, name, head):
        """NAME.csv. `scripts/bench results` makes the table in the page beside it, if it is recorded."""
        rows = [(*key, f"{value:.6g}") for key, value in self.values.items()]
        path = os.path.join(self.folder, f"{name}.csv")
        files.write(path, head, COLUMNS, rows)
        print(f"written: {os.path.relpath(path, ROOT)}", file=sys.stderr)

    @contextlib.contextmanager
    def kept(self, name, head):
        """If anything ends the run, what was measured by then is kept as NAME.partial.csv."""
        try:
            yield
        except BaseException as reason:
            if self.values:
                why = "interrupted" if isinstance(reason, KeyboardInterrupt) else str(reason)
                self.write(f"{name}.partial", [*head, f"partial: {why}".splitlines()[0]])
            raise
