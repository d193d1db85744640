"""Cairn and its peers side by side, in markdown."""

import re

from ..shared.report import spread, table
from .catalogue import SYSTEMS

# Title, measure, factor.
COLUMNS = (
    ("blocked first ms", "first blocked s", 1e3),
    ("blocked ms", "steady blocked s", 1e3),
    ("free first s", "first free s", 1),
    ("free s", "steady free s", 1),
    ("finished s", "steady finished s", 1),
    ("durable first s", "first durable s", 1),
    ("durable s", "steady durable s", 1),
    ("of fio", "steady durable of fio", 1),
    ("CPU s/GB", "steady cpu s/GB", 1),
    ("peak GB", "peak bytes", 1e-9),
    ("load s", "load s", 1),
    ("load of fio", "load of fio", 1),
)


def cells(values, cell, columns):
    """The medians of a system, whose measures the CSV has under `cell`."""
    found = [[factor * value for value in values.of(cell, measure)] for _, measure, factor in columns]
    return [spread(of) if of else "" for of in found]


def _busy(values, cell):
    lost = values.of(cell, "busy lost per GB/s")
    if not lost:
        return ""
    share, rate = (values.median(cell, f"busy {what}") for what in ("cpu share per GB/s", "GB/s"))
    return f"{spread([100 * value for value in lost])} / {100 * share:.3g} at {rate:.2g} GB/s"


def about(samples):
    """What no figure says, for a CSV's head: the state's size, each system's version, and why a system failed."""
    facts = samples.facts
    sizes = [f"{fact['tensors']:,} tensors, {fact['bytes'] / 1e9:.2f} GB" for fact in facts.values()][:1]
    versions = [f"version of {name}: {fact['version']}" for name, fact in facts.items()]
    failed = [f"failed: {name}: {' '.join(why.split())}" for name, why in samples.failures.items()]
    return [*(f"state {samples.state}: {size}" for size in sizes), *versions, *failed]


def side_by_side(head, values):
    """Every system that was tried. One that failed has the reason instead of figures."""
    (state,) = (found[1] for line in head if (found := re.match(r"state (\w+): ", line)))
    versions = dict(re.findall(r"(?m)^version of (\S+): (.*)$", "\n".join(head)))
    failures = dict(re.findall(r"(?m)^failed: (\S+): (.*)$", "\n".join(head)))
    rows = []
    for name, entry in SYSTEMS.items():
        cell = f"{state} {name}"
        row = cells(values, cell, COLUMNS)
        if name in failures:
            row[0] = f"failed: {failures[name].replace('|', '/')} {row[0]}".strip()
        if name in versions or name in failures:
            rows.append((f"{entry.title} {versions.get(name, '')}".strip(), *row, _busy(values, cell)))
    return table(("system", *(title for title, *_ in COLUMNS), "lost % per GB/s"), rows)
