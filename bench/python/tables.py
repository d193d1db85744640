"""Cairn and its peers side by side, in markdown."""

import statistics
from dataclasses import dataclass

_EXPLANATION = """
Each figure is the median of the repetitions (least to most). A first save is that of a fresh process; the others are
steady. Before each, as much free memory is touched as it needs (for staging and the page cache), since the machine may
have given it back to its host. *Blocked* is the call that saves; *free* is when the tensors may change again; *finished* is
when the system says so, and *durable* once every file and folder has been fsynced as well: where it does not do that
itself it is added (+). *Of fio* is the rate to durable over that of fio on a fresh file directly before, and for loads over
fio's read rate. CPU is that of all processes, to durable, without the kernel's own write-back, which direct writers do not
need. *Peak* is memory above the state's. A load is cold, into the state's tensors. *Lost* is the share of two busy training
loops' speed for each GB/s saved beside them, with the CPU share of the saving itself after the stroke.
"""


@dataclass(frozen=True)
class Column:
    title: str
    measure: str
    factor: float = 1


_COLUMNS = (
    Column("blocked first ms", "first blocked s", 1e3),
    Column("blocked ms", "steady blocked s", 1e3),
    Column("free first s", "first free s"),
    Column("free s", "steady free s"),
    Column("finished s", "steady finished s"),
    Column("durable first s", "first durable s"),
    Column("durable s", "steady durable s"),
    Column("of fio", "steady durable of fio"),
    Column("CPU s/GB", "steady cpu s/GB"),
    Column("peak GB", "peak bytes", 1e-9),
    Column("load s", "load s"),
    Column("load of fio", "load of fio"),
)


def _cell(values, factor):
    if not values:
        return ""
    median, least, most = (factor * f(values) for f in (statistics.median, min, max))
    return f"{median:.3g} ({least:.3g} to {most:.3g})" if least < most else f"{median:.3g}"


def _busy(samples, state, system):
    lost = samples.of(state, system, "busy lost per GB/s")
    if not lost:
        return ""
    share = samples.of(state, system, "busy cpu share per GB/s")
    rate = statistics.median(samples.of(state, system, "busy GB/s"))
    return f"{_cell(lost, 100)} / {statistics.median(share) * 100:.3g} at {rate:.2g} GB/s"


def tables(samples, state, systems):
    """`systems` are catalogue entries, `state` a letter; what failed has its reason instead of figures."""
    facts = [samples.facts[state, entry.name] for entry in systems if (state, entry.name) in samples.facts]
    size = f": {facts[0]['tensors']:,} tensors, {facts[0]['bytes'] / 1e9:.2f} GB" if facts else ""
    columns = [column for column in _COLUMNS if any(samples.of(state, one.name, column.measure) for one in systems)]
    busy = any(_busy(samples, state, entry.name) for entry in systems)
    titles = ["system", *(column.title for column in columns), *(["lost % per GB/s"] if busy else [])]
    text = f"{_EXPLANATION}\n## State {state}{size}\n\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n"
    for entry in systems:
        fact = samples.facts.get((state, entry.name))
        if fact is None and (state, entry.name) not in samples.failures:
            continue
        version = f" {fact['version']}" if fact else ""
        cells = [_cell(samples.of(state, entry.name, column.measure), column.factor) for column in columns]
        if busy:
            cells.append(_busy(samples, state, entry.name))
        if reason := samples.failures.get((state, entry.name)):
            cells[0] = f"failed: {reason.replace('|', '/')} {cells[0]}".strip()
        name = entry.name + (" +" if entry.fsync_added else "")
        text += f"| {' | '.join([name + version, *cells])} |\n"
    return text
