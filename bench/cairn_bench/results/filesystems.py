"""The tables of what was measured on several filesystems, in markdown."""

from ..figures.one_checkpoint import by_filesystem, with_rates
from ..figures.runs import by, series
from ..shared.filesystems import flushes
from ..shared.report import interval, short, spread, table
from .figures import by_strategy


def one_checkpoint(measured):
    """State over time to durable, of each strategy on each filesystem."""
    head, rows = measured
    took = flushes(head)
    sizes = sorted(by(rows, "megabytes"))
    lines = []
    for name, mine in by_strategy(with_rates(rows)):
        for filesystem, here in by_filesystem(mine).items():
            rates = series(here, "megabytes", "GB/s")
            cells = [spread(rates[size]) if size in rates else "-" for size in sizes]
            lines.append([name, filesystem, *cells, milliseconds(took, filesystem)])
    titles = ("GB/s", "filesystem", *(f"{size:.0f} MB" for size in sizes), "a flush, ms")
    return f"{table(titles, lines)}\n\n{about(took)}"


def commit(measured):
    """Seconds of a commit and of its peer, and their ratio, on each filesystem."""
    head, values = measured
    took = flushes(head)
    lines = []
    for cell in dict.fromkeys(cell for cell, _, _ in values):
        name, _, filesystem = cell.rpartition(", ")
        ratios = values.of(cell, "ratio")
        ratio, low, high = interval(ratios)
        times = [short(values.median(cell, side, 1000)) for side in ("cairn s", "peer s")]
        lines.append([name, filesystem, *times, f"{ratio:.4g}", f"{low:.4g} to {high:.4g}", len(ratios),
                      milliseconds(took, filesystem)])  # fmt: skip
    titles = ("measure", "filesystem", "Cairn, ms", "peer, ms", "Cairn over peer", "95 % interval", "n", "a flush, ms")
    return f"{table(titles, lines)}\n\n{about(took)}"


def milliseconds(took, filesystem):
    return short(took[filesystem][1]) if filesystem in took else ""


def about(took):
    """The filesystems in words."""
    return "\n".join(f"- *{filesystem}*: {words}" for filesystem, (words, _) in took.items())
