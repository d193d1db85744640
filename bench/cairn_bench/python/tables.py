"""Cairn and its peers side by side, in markdown."""

import statistics

from ..shared.report import spread, table

_EXPLANATION = """
Each figure is the median of the repetitions (least to greatest). A first save is that of a fresh process; the
others are steady. Before each, the page cache is filled with a sparse file's pages, as on a machine that has long been
in use: a virtual machine may have given free memory back to its host. *Blocked* is the time of the call that saves.
*Free*: the tensors may change again. *Finished*: the system says so. *Durable*: every file and folder has been fsynced
too; (+) marks systems that leave this to the benchmark. *Of fio* is the rate to durable over that of fio on a fresh file just before; for loads,
over fio's read rate. CPU is that of all processes until durable, without the kernel's write-back, which direct writes
do not need. *Peak* is memory above the state's. A load is cold, into the state's tensors. *Lost* is the share of their
speed that two busy training loops lose for each GB/s saved beside them; after the slash, the CPU share of the saving
itself.
"""


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


def _busy(samples, system):
    lost = samples.of(system, "busy lost per GB/s")
    if not lost:
        return ""
    share = statistics.median(samples.of(system, "busy cpu share per GB/s"))
    rate = statistics.median(samples.of(system, "busy GB/s"))
    return f"{spread([100 * value for value in lost])} / {100 * share:.3g} at {rate:.2g} GB/s"


def tables(samples, systems):
    """`systems` are catalogue entries. One that failed has the reason instead of figures."""
    facts = list(samples.facts.values())
    size = f": {facts[0]['tensors']:,} tensors, {facts[0]['bytes'] / 1e9:.2f} GB" if facts else ""
    rows = []
    for entry in systems:
        fact, reason = samples.facts.get(entry.name), samples.failures.get(entry.name)
        if fact is None and reason is None:
            continue
        row = cells(samples.report.values, f"{samples.state} {entry.name}", COLUMNS)
        if reason:
            row[0] = f"failed: {reason.replace('|', '/')} {row[0]}".strip()
        version = f" {fact['version']}" if fact else ""
        rows.append((entry.title + version, *row, _busy(samples, entry.name)))
    titles = ("system", *(title for title, *_ in COLUMNS), "lost % per GB/s")
    return f"{_EXPLANATION}\n## State {samples.state}{size}\n\n{table(titles, rows)}\n"
