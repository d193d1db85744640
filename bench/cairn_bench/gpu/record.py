"""What a step has found: a line for each claim, with a verdict, in gpu-STEP.{json,md}."""

import json
import os
import threading

from ..shared.report import interval, table, verdict

MET, MISSED, NOT_RESOLVED, NOT_RUN = "met", "missed", "not resolved", "not run"
FACT = ""  # Neither met nor missed.
DRY = "dry run"  # A figure that a dry run cannot judge.
TITLES = ("line", "goal", "found", "verdict")
WARNING = "**A dry run on the CPU and the driver's test double. It proves nothing about a GPU.**"


class Record:
    """The lines of one step. `about`: date, command, commit, source, device, driver, and whether it is a dry run or a
    short one. With a `folder` each line is in its files as soon as it is found."""

    def __init__(self, step, title, about, folder=None):
        self.step, self.title, self.about, self.folder = step, title, about, folder
        self.lines = []
        self.lock = threading.Lock()
        self.complete = False  # A step that was interrupted runs again.

    def _add(self, line, found, word, goal="", values=()):
        added = {"line": line, "goal": goal, "found": str(found), "verdict": word, "values": list(values)}
        with self.lock:
            self.lines.append(added)
            print(f"{self.step} {word or 'fact':<13}{line}: {found}" + (f" (goal {goal})" if goal else ""), flush=True)
            if self.folder is not None:
                self.write(self.folder)

    def fact(self, line, found, values=()):
        self._add(line, found, FACT, values=values)

    def require(self, line, good, found, gpu_only=False):
        """A claim that holds or does not, also in a dry run, unless only a GPU can keep or break it."""
        word = MET if good else MISSED
        self._add(line, found, self._unless_dry(word) if gpu_only else word)

    def not_run(self, line, why):
        self._add(line, why, NOT_RUN)

    def not_resolved(self, line, why, goal=""):
        self._add(line, why, self._unless_dry(NOT_RESOLVED), goal)

    def judge(self, line, values, goal, more_is_better=False, unit=""):
        """A figure against its goal: the median of the values, with its bootstrap 95 % interval."""
        median, low, high = interval(values)
        word, reach = verdict(low, high, goal, more_is_better)
        found = f"{median:.4g}{unit}" + (f" [{low:.4g}, {high:.4g}], n = {len(values)}" if len(values) > 1 else "")
        self._add(line, found, self._unless_dry(word), reach + unit, values)

    def most(self, line, value, limit, unit=""):
        """A figure that may never be larger, such as the longest of many calls."""
        word = MET if value <= limit else MISSED
        self._add(line, f"{value:.4g}{unit}", self._unless_dry(word), f"<= {limit:g}{unit}", [value])

    def _unless_dry(self, word):
        return DRY if self.about["dry_run"] else word

    @property
    def proven(self):
        """Whether every line was run and met; a dry run only needs every line to have run without a failure."""
        allowed = {MET, FACT} | ({DRY, NOT_RUN} if self.about["dry_run"] else set())
        return bool(self.lines) and all(line["verdict"] in allowed for line in self.lines)

    def counts(self):
        words = [line["verdict"] for line in self.lines]
        return {word: words.count(word) for word in (MET, MISSED, NOT_RESOLVED, NOT_RUN, DRY) if word in words}

    def write(self, folder):
        """Both files, each replaced at once."""
        os.makedirs(folder, exist_ok=True)
        about = {"step": self.step, "title": self.title, **self.about, "complete": self.complete}
        _replace(path_of(folder, self.step), json.dumps(about | {"lines": self.lines}, indent=1) + "\n")
        rows = [[line[key].replace("|", "/") for key in TITLES] for line in self.lines]
        head = [f"# {self.step}: {self.title}", *([WARNING] if self.about["dry_run"] else [])]
        head += [] if self.complete else ["**The step did not end.**"]
        head += [f"{self.about['date']}, commit {self.about['commit']}: `{self.about['command']}`"]
        head += [f"{self.about['device']}; driver {self.about['driver']}; {self.about['machine']}"]
        _replace(path_of(folder, self.step, ".md"), "\n\n".join([*head, table(TITLES, rows)]) + "\n")


def path_of(folder, step, ending=".json"):
    return os.path.join(folder, f"gpu-{step}{ending}")


def finished(folder, step, about):
    """The record that an earlier run of the same source on the same device has left; None if there is none."""
    try:
        with open(path_of(folder, step)) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    same = all(found.get(key) == about[key] for key in ("source", "device", "driver", "dry_run", "short"))
    if not same or not found["complete"]:
        return None
    kept = Record(step, found["title"], {key: found.get(key) for key in about})
    kept.lines, kept.complete = found["lines"], True
    return kept


def never_ran(folder, step, title):
    """What no record in the folder has run of a step, on any device or source: the step, or lines of it."""
    try:
        with open(path_of(folder, step)) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return [f"{step} {title}"]
    missing = [f"{step} {line['line']}: {line['found']}" for line in found["lines"] if line["verdict"] == NOT_RUN]
    return missing + ([] if found["complete"] else [f"{step} {title}: what comes after its last line"])


def _replace(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)
