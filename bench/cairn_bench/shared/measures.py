"""Figures made of a suite's single values: which rows of its CSV, and what the figure should reach."""

import math
import re
import statistics
from dataclasses import dataclass

from .files import BadResult, parse

COLUMNS = ["measure", "pair", "name", "value"]


@dataclass(frozen=True)
class Measure:
    """One value for each pair of every measure that matches: `ours`, over `peer` or less `minus` if they are set."""

    rows: str  # A pattern of the whole name.
    ours: str
    peer: str | None = None
    minus: str | None = None
    goal: float | None = None
    more_is_better: bool = False
    title: str | None = None  # "{}" in it is the measure's name; without a title it is the whole title.
    factor: float = 1
    plus: float = 0  # Added at last: 1 makes a ratio of a share that is lost.
    unit: str = ""


class Values(dict):
    """The single values of a suite's CSV: {(measure, pair, name): value}."""

    def samples(self, measure, name):
        """{title: [values, in the order of pairs]} of a Measure; `name` is the file's, for messages."""
        found = {}
        for (cell, pair, what), value in self.items():
            if what != measure.ours or not re.fullmatch(measure.rows, cell):
                continue
            for other in filter(None, (measure.peer, measure.minus)):
                if (cell, pair, other) not in self:
                    raise BadResult(f"{name}: {cell}, pair {pair}: {what}, but no {other}")
            value -= self[cell, pair, measure.minus] if measure.minus else 0
            if measure.peer:
                peer = self[cell, pair, measure.peer]
                if not peer > 0:
                    raise BadResult(f"{name}: {cell}, pair {pair}: expected a {measure.peer} above 0, found {peer:g}")
                value /= peer
            title = (measure.title or "{}").format(cell)
            found.setdefault(title, []).append(measure.factor * value + measure.plus)
        return found

    def of(self, cell, what):
        """The values of one name of one measure."""
        return [value for (one, _, name), value in self.items() if (one, name) == (cell, what)]

    def median(self, cell, what, factor=1):
        return factor * statistics.median(self.of(cell, what))


def read(text, name):
    """(head, Values) of a CSV that report.py wrote."""
    head, columns, rows = parse(text, name)
    if columns != COLUMNS:
        found = ",".join(columns) or "nothing"
        raise BadResult(f"{name}: expected the columns {','.join(COLUMNS)}, found {found[:80]}")
    values = Values()
    for number, (measure, pair, what, cell) in rows:
        if (measure, pair, what) in values:
            raise BadResult(f"{name}:{number}: {measure}, pair {pair}, {what}: there twice")
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadResult(f"{name}:{number}: expected a number, found {cell!r}")
        values[measure, pair, what] = value
    return head, values
