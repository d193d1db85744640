"""Figures against goals: the median with a bootstrap 95 % interval, and whether a goal is met, missed, or not resolved."""

import contextlib
import csv
import datetime
import os
import random
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RESULTS = os.path.join(ROOT, "bench/results")


def interval(values):
    """Median and its bootstrap 95 % interval."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(4000))
    return statistics.median(values), medians[100], medians[3899]


class Report:
    """Every single figure, for a CSV, and a table of what they come to, for a markdown file beside it."""

    def __init__(self):
        self.rows = []
        self.table = []

    def single(self, measure, pair, name, value):
        self.rows.append((measure, pair, name, f"{value:.6g}"))

    def figure(self, measure, values, goal, least, unit=""):
        median, low, high = interval(values)
        met = (low >= goal, high < goal) if least else (high <= goal, low > goal)
        word = "met" if met[0] else "missed" if met[1] else "not resolved"
        reach = f"{'>=' if least else '<='} {goal:g}{unit}"
        self.table.append((measure, reach, f"{median:.4g}{unit}", f"{low:.4g} to {high:.4g}", len(values), word))
        print(f"  {measure}: {median:.4g}{unit} [{low:.4g}, {high:.4g}] {word}", flush=True)

    def fact(self, measure, values):
        """What nobody set a goal for."""
        median, low, high = interval(values)
        self.table.append((measure, "", f"{median:.4g}", f"{low:.4g} to {high:.4g}", len(values), ""))
        print(f"  {measure}: {median:.4g} [{low:.4g}, {high:.4g}]", flush=True)

    def text(self):
        lines = ["| measure | reach | median | 95 % interval | n | |", "|---|---|---|---|---|---|"]
        return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in self.table])

    def write(self, name, notes, more=""):
        """bench/results/NAME.csv and NAME.md; `notes` head the CSV, `more` (markdown) follows the table."""
        begun = self._write_csv(name, notes)
        with open(os.path.join(RESULTS, f"{name}.md"), "w") as file:
            file.write(f"{begun}\n\n{self.text()}\n{more}")

    @contextlib.contextmanager
    def kept(self, name, notes):
        """What was measured until something ends the run is kept, as NAME.partial.csv."""
        try:
            yield
        except BaseException as reason:
            if self.rows:
                why = "interrupted" if isinstance(reason, KeyboardInterrupt) else str(reason)
                self._write_csv(f"{name}.partial", [*notes, f"partial: {why}".splitlines()[0]])
                print(f"kept: bench/results/{name}.partial.csv", file=sys.stderr)
            raise

    def _write_csv(self, name, notes):
        os.makedirs(RESULTS, exist_ok=True)
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        command = " ".join(["scripts/bench"] + sys.argv[1:])
        with open(os.path.join(RESULTS, f"{name}.csv"), "w", newline="") as file:
            file.write("".join(f"# {note}\n" for note in (f"{now}; {command}", *notes)))
            writer = csv.writer(file)
            writer.writerow(("measure", "pair", "name", "value"))
            writer.writerows(self.rows)
        return f"{command}, {now}"
