"""The ratios in a result's CSV: which figures of each suite are Cairn over its peer, and which way is better."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass


class BadResult(Exception):
    """A file that is no result, or another suite's; says what was expected and found."""


@dataclass(frozen=True)
class Ratio:
    """Cairn's figure of a pair over the peer's, for every measure that matches; without a peer the figure is a ratio."""

    measure: str  # A pattern of the whole name.
    ours: str
    peer: str | None
    more_is_better: bool
    percent: bool = False  # The figure is what is above 1, in percent.


# Absolute figures (a call's microseconds) are left out: they say what the machine is, not what the code is.
RATIOS = {
    "micro": (Ratio(r".+/.+", "ratio", None, more_is_better=False),),
    "roofline": (
        Ratio(r"(write|restore).*", "cairn bytes/s", "fio bytes/s", more_is_better=True),
        Ratio(r"8 MiB chunks.*", "8 MiB of fio", "4 MiB of fio", more_is_better=True),
        Ratio(r"CPU s/GB.*", "cairn cpu s/GB", "fio cpu s/GB", more_is_better=False),
        Ratio(r"peak RSS.*", "ratio", None, more_is_better=False),
        Ratio(r"older of two", "older s", "alone s", more_is_better=False),
        Ratio(r"thread_queue of uring_queue", "threads bytes/s", "uring bytes/s", more_is_better=True),
    ),
    "training": (
        Ratio(r".+, every 1", "slowdown %", None, more_is_better=False, percent=True),
        Ratio(
            r".+, every 10",
            "slowdown against its own steps without a save %",
            None,
            more_is_better=False,
            percent=True,
        ),
    ),
    "python": (
        Ratio(r"[A-Z] cairn.*", "steady durable of fio", None, more_is_better=True),
        Ratio(r"[A-Z] cairn.*", "load of fio", None, more_is_better=True),
        Ratio(r"[A-Z] cairn.*", "peak of cap", None, more_is_better=False),
    ),
}
COLUMNS = ["measure", "pair", "name", "value"]


@dataclass(frozen=True)
class Result:
    about: list[str]  # The lines in front of the figures: date and command first.
    samples: dict[str, list[float]]  # Of each ratio those of all pairs.
    better: dict[str, bool]  # Whether more is better.

    @property
    def machine(self) -> str:
        return self._line("machine: ") or "not said"

    @property
    def run(self) -> str:
        """When and how, and what else the machine was doing where the file says so."""
        return "; ".join(filter(None, (self.about[0] if self.about else "", self._line("load: "))))

    def _line(self, begin: str) -> str:
        return next((line for line in self.about if line.startswith(begin)), "")


def read(text: str, suite: str, file: str) -> Result:
    """The ratios of `suite` in a CSV as bench/support/report.py writes it; `file` is for messages."""
    lines = text.splitlines()
    about = [line[1:].strip() for line in lines if line.startswith("#")]
    ran = re.search(r"scripts/bench (\S+)", about[0]) if about else None
    if ran and ran[1] != suite:
        raise BadResult(f"{file}: expected a run of scripts/bench {suite}, found one of scripts/bench {ran[1]}")
    values: dict[tuple[str, str, str], float] = {}
    for number, (measure, pair, name, value) in figures(lines, file):
        key = (measure, pair, name)
        if key in values:
            raise BadResult(f"{file}:{number}: {measure}, pair {pair}, {name}: there twice")
        values[key] = parsed(value, f"{file}:{number}")
    samples: dict[str, list[float]] = {}
    better: dict[str, bool] = {}
    for ratio in RATIOS[suite]:
        for (measure, pair, name), figure in values.items():
            if name != ratio.ours or not re.fullmatch(ratio.measure, measure):
                continue
            label = measure if name == "ratio" or ratio.peer else f"{measure}: {name}"
            peer = 1.0
            if ratio.peer is not None:
                if (measure, pair, ratio.peer) not in values:
                    raise BadResult(f"{file}: {measure}, pair {pair}: {ratio.ours}, but no {ratio.peer}")
                peer = values[measure, pair, ratio.peer]
            ours = 1 + figure / 100 if ratio.percent else figure
            if not (ours > 0 and peer > 0):
                raise BadResult(f"{file}: {label}, pair {pair}: expected figures above 0, found {ours:g} and {peer:g}")
            samples.setdefault(label, []).append(ours / peer)
            better[label] = ratio.more_is_better
    if not samples:
        raise BadResult(f"{file}: no ratio of {suite} in it")
    return Result(about, samples, better)


def figures(lines: list[str], file: str) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and rows behind the head."""
    body = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    rows = list(csv.reader(line for _, line in body))
    if not rows or rows[0] != COLUMNS:
        found = ",".join(rows[0]) if rows else "nothing"
        raise BadResult(f"{file}: expected the columns {','.join(COLUMNS)}, found {found[:80]}")
    for (number, _), row in zip(body[1:], rows[1:], strict=True):
        if len(row) != len(COLUMNS):
            raise BadResult(f"{file}:{number}: expected {len(COLUMNS)} fields, found {len(row)}")
        yield number, row


def parsed(value: str, place: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadResult(f"{place}: expected a number, found {value!r}")
    return number
