"""Compares the ratios of a new run with the committed ones, and says what got worse.

A RESULT is a file of bench/results without its .csv: micro, roofline, training, python-A, ... The new run is the one in
build/results, as scripts/bench wrote it, or NEW.csv. The committed one is that of COMMIT. Without a RESULT: every one that
is in build/results. A ratio (Cairn over its peer, in adjacent pairs) is worse or better if the 95 % bootstrap
intervals of the two medians do not overlap and the medians differ by more than 2 %; otherwise it is not resolved.
Takes a second. Exit status: 0 nothing got worse, 1 something did, 2 there is nothing to compare.
"""

import os
import re
import subprocess
import sys

from .shared import NEW_RESULTS, RESULTS, ROOT
from .shared.files import BadResult, content
from .shared.measures import Measure, read
from .shared.report import interval, table

LEAST = 0.02  # Two builds of the same code may differ by so much.
WORDS = ("worse", "not resolved", "better")
CAIRN = r"[A-Z] cairn.*"
# Absolute figures (a call's microseconds) are left out: they say what the machine is, not what the code is.
RATIOS = {
    "micro": (Measure(r".+/.+", "ratio"),),
    "roofline": (
        Measure(r"(write|restore).*", "cairn bytes/s", "fio bytes/s", more_is_better=True),
        Measure(r"8 MiB chunks.*", "8 MiB of fio", "4 MiB of fio", more_is_better=True),
        Measure(r"CPU s/GB.*", "cairn cpu s/GB", "fio cpu s/GB"),
        Measure(r"peak RSS.*", "ratio"),
        Measure(r"older of two", "older s", "alone s"),
        Measure(r"thread_queue of uring_queue", "threads bytes/s", "uring bytes/s", more_is_better=True),
    ),
    "training": tuple(
        Measure(rf".+, every {every}", name, factor=0.01, plus=1, title=f"{{}}: {name}")
        for every, name in ((1, "slowdown %"), (10, "slowdown against its own steps without a save %"))
    ),
    "python": (
        Measure(CAIRN, "steady durable of fio", more_is_better=True, title="{}: steady durable of fio"),
        Measure(CAIRN, "load of fio", more_is_better=True, title="{}: load of fio"),
        Measure(CAIRN, "peak of cap", title="{}: peak of cap"),
    ),
}


def add_arguments(parser):
    parser.add_argument("results", nargs="*", metavar="RESULT")
    parser.add_argument("--run", dest="new", metavar="NEW.csv", help="the new run; default: what is in build/results")
    parser.add_argument("--against", metavar="COMMIT", default="HEAD", help="default: HEAD")


def suite_of(name):
    return name.split("-")[0]


def known(folder):
    """The results that are there and can be compared."""
    files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    names = [file.removesuffix(".csv") for file in files if file.endswith(".csv")]
    return [name for name in names if suite_of(name) in RATIOS]


def committed_path(name):
    return os.path.join(os.path.relpath(RESULTS, ROOT), f"{name}.csv")


def committed(name, commit):
    """The committed file's text; None if there is none."""
    blob = f"{commit}:{committed_path(name)}"
    ran = subprocess.run(["git", "show", blob], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else None


def ratios(text, suite, name):
    """(head, {title: values}, {title: whether more is better}) of a result's text; `name` is for messages."""
    head, values = read(text, name)
    ran = re.search(r"scripts/bench (\S+)", head.run)
    if ran and ran[1] != suite:
        raise BadResult(f"{name}: expected a run of scripts/bench {suite}, found one of scripts/bench {ran[1]}")
    samples, better = {}, {}
    for measure in RATIOS[suite]:
        found = values.samples(measure, name)
        samples |= found
        better |= dict.fromkeys(found, measure.more_is_better)
    for title, ratio in ((title, min(of)) for title, of in samples.items()):
        if not ratio > 0:
            raise BadResult(f"{name}: {title}: expected ratios above 0, found {ratio:g}")
    if not samples:
        raise BadResult(f"{name}: no ratio of {suite} in it")
    return head, samples, better


def judge(old, new, more_is_better):
    """One of WORDS, and both medians with their intervals."""
    before, after = interval(old), interval(new)
    apart = after[1] > before[2] or after[2] < before[1]
    if not apart or abs(after[0] / before[0] - 1) <= LEAST:
        return WORDS[1], before, after
    return WORDS[2 if (after[0] > before[0]) == more_is_better else 0], before, after


def told(median, low, high):
    return f"{median:.4g} ({low:.4g} to {high:.4g})"


def compare(name, old_text, new_text, old_name, new_name):
    """Prints the table, what got worse first. Whether something got worse."""
    old_head, old, better = ratios(old_text, suite_of(name), old_name)
    new_head, new, _ = ratios(new_text, suite_of(name), new_name)
    judged = [(title, *judge(old[title], new[title], better[title])) for title in old.keys() & new.keys()]
    if not judged:
        raise BadResult(f"{new_name}: none of the ratios that {old_name} has")
    rows = sorted(((word, title, told(*before), told(*after)) for title, word, before, after in judged),
                  key=lambda row: (WORDS.index(row[0]), row[1]))  # fmt: skip
    new_run, old_run = ("; ".join(filter(None, (head.run, head.load))) for head in (new_head, old_head))
    print(f"{name}: {new_run or new_name}\n  against {old_run or old_name}")
    if old_head.machine != new_head.machine:
        print(f"  on another machine: {new_head.machine}\n  not:                {old_head.machine}")
    print("\n" + table(("", "ratio", "committed", "new"), rows))
    for title in sorted(old.keys() - new.keys()):
        print(f"not in the new run: {title}")
    for title in sorted(new.keys() - old.keys()):
        print(f"not in the committed one: {title}")
    print(", ".join(f"{sum(row[0] == word for row in rows)} {word}" for word in WORDS) + "\n")
    return rows[0][0] == WORDS[0]


def measured(against):
    """The results of new runs that have a committed one."""
    names = [name for name in known(NEW_RESULTS) if committed(name, against) is not None]
    if not names:
        raise BadResult(f"no new run of a result of {against} in build/results: run one of the benchmarks first")
    return names


def check(args):
    if unknown := [name for name in args.results if suite_of(name) not in RATIOS]:
        args.error(f"no ratios are known of {', '.join(unknown)}; there are {', '.join(known(RESULTS))}")
    if args.new is not None and len(args.results) != 1:
        args.error("--run wants one RESULT that it is a run of")


def run(args):
    try:
        worse = False
        for name in args.results or measured(args.against):
            old = committed(name, args.against)
            if old is None:
                raise BadResult(f"no {committed_path(name)} at {args.against}")
            path = args.new or os.path.join(NEW_RESULTS, f"{name}.csv")
            worse = compare(name, old, content(path), f"{args.against}:{committed_path(name)}", path) or worse
    except BadResult as error:
        print(f"scripts/bench compare: {error}", file=sys.stderr)
        return 2
    return 1 if worse else 0
