"""Holds the ratios of a new run against the committed ones, and says what got worse.

    scripts/bench compare [RESULT...] [--run NEW.csv] [--against COMMIT]

A RESULT is a file of bench/results without its .csv (micro, roofline, training, python-A, ...). The new run is what lies
there now, as scripts/bench wrote it, or NEW.csv; the committed one is that of COMMIT, HEAD where none is given. Without
a RESULT: every one that differs from the committed one. A ratio (Cairn over its peer, in adjacent pairs) got worse, or
better, where the bootstrap 95 % intervals of the two medians lie apart, and the medians by more than 2 %; the rest is
not resolved. Exit code: 0 nothing got worse, 1 something did, 2 there is nothing to compare.
"""

import argparse
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "bench/support"), HERE]

from ratios import RATIOS, BadResult, read
from report import interval

RESULTS = "bench/results"
LEAST = 0.02  # What two builds of the same code may differ by, for where a loop happens to lie.
WORDS = ("worse", "not resolved", "better")


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=["compare"], help=argparse.SUPPRESS)
    parser.add_argument("results", nargs="*", metavar="RESULT")
    parser.add_argument("--run", metavar="NEW.csv", help="the new run; default: what lies in bench/results")
    parser.add_argument("--against", metavar="COMMIT", default="HEAD")
    args = parser.parse_args()
    if unknown := [name for name in args.results if suite_of(name) not in RATIOS]:
        known = ", ".join(sorted(filter(lambda name: suite_of(name) in RATIOS, here())))
        parser.error(f"no ratios are known of {', '.join(unknown)}; there are {known}")
    if args.run is not None and len(args.results) != 1:
        parser.error("--run wants one RESULT that it is a run of")
    return args


def suite_of(name):
    return name.split("-")[0]


def here():
    return [file[: -len(".csv")] for file in os.listdir(os.path.join(ROOT, RESULTS)) if file.endswith(".csv")]


def committed(name, commit):
    """The committed file's text; None where there is none."""
    blob = f"{commit}:{RESULTS}/{name}.csv"
    ran = subprocess.run(["git", "show", blob], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else None


def content(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadResult(f"{path}: {error.strerror if isinstance(error, OSError) else 'no text'}") from error


def judge(old, new, more_is_better):
    """One of WORDS, and both medians with their intervals."""
    before, after = interval(old), interval(new)
    apart = after[1] > before[2] or after[2] < before[1]
    if not apart or abs(after[0] / before[0] - 1) <= LEAST:
        return WORDS[1], before, after
    return WORDS[2 if (after[0] > before[0]) == more_is_better else 0], before, after


def told(median, low, high):
    return f"{median:.4g} ({low:.4g} to {high:.4g})"


def table(old, new):
    """Rows (word, ratio, committed, new), what got worse first; and what only one of them has."""
    rows = []
    for label in old.samples.keys() & new.samples.keys():
        word, before, after = judge(old.samples[label], new.samples[label], old.better[label])
        rows.append((word, label, told(*before), told(*after)))
    rows.sort(key=lambda row: (WORDS.index(row[0]), row[1]))
    return rows, sorted(old.samples.keys() - new.samples.keys()), sorted(new.samples.keys() - old.samples.keys())


def compare(name, old_text, new_text, old_name, new_name):
    """Prints the table; whether something got worse."""
    old = read(old_text, suite_of(name), old_name)
    new = read(new_text, suite_of(name), new_name)
    rows, gone, fresh = table(old, new)
    if not rows:
        raise BadResult(f"{new_name}: none of the ratios that {old_name} has")
    print(f"{name}: {new.run or new_name}\n  against {old.run or old_name}")
    if old.machine != new.machine:
        print(f"  on another machine: {new.machine}\n  not:                {old.machine}")
    print("\n| | ratio | committed | new |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    for label in gone:
        print(f"not in the new run: {label}")
    for label in fresh:
        print(f"not in the committed one: {label}")
    print(", ".join(f"{sum(row[0] == word for row in rows)} {word}" for word in WORDS) + "\n")
    return rows[0][0] == WORDS[0]


def main():
    args = arguments()
    try:
        names = args.results
        if not names:
            candidates = sorted(name for name in here() if suite_of(name) in RATIOS)
            paths = {name: os.path.join(ROOT, RESULTS, f"{name}.csv") for name in candidates}
            names = [name for name in candidates if committed(name, args.against) not in (None, content(paths[name]))]
            if not names:
                raise BadResult(f"every result is as it is at {args.against}: run one of the benchmarks first")
        worse = False
        for name in names:
            old = committed(name, args.against)
            if old is None:
                raise BadResult(f"no {RESULTS}/{name}.csv at {args.against}")
            path = args.run or os.path.join(ROOT, RESULTS, f"{name}.csv")
            new = content(path)
            if new == old and args.run is None:
                raise BadResult(f"{RESULTS}/{name}.csv is as it is at {args.against}: measure anew, or name a --run")
            worse = compare(name, old, new, f"{args.against}:{RESULTS}/{name}.csv", path) or worse
    except BadResult as error:
        print(f"scripts/bench compare: {error}", file=sys.stderr)
        return 2
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
