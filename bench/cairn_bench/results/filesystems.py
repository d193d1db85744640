"""The tables of what was measured on several filesystems, in markdown."""

from ..figures.one_checkpoint import with_rates
from ..figures.runs import by, grouped
from ..micro import peers
from ..shared.filesystems import flushes
from ..shared.report import interval, short, table, verdict
from .figures import by_strategy, by_values, cell, leaders


def one_checkpoint(measured):
    """State over time to durable, of each strategy on each filesystem. In bold: the greatest, if it is clearly so."""
    head, rows = measured
    took = flushes(head)
    placed = with_rates(rows)
    rates = {at: by_values(of, "GB/s") for at, of in grouped(placed, "megabytes", "filesystem").items()}
    ahead = leaders(rates, best=max)
    sizes = sorted({size for size, _ in rates})
    lines = []
    for name, mine in by_strategy(placed):
        strategy = mine[0]["strategy"]
        for filesystem in by(mine, "filesystem"):
            cells = [cell(rates, ahead, (size, filesystem), strategy) for size in sizes]
            lines.append([name, filesystem, *cells, milliseconds(took, filesystem)])
    titles = ("GB/s", "filesystem", *(f"{size:.0f} MB" for size in sizes), "a flush, ms")
    return f"{table(titles, lines)}\n\n{about(took)}"


def commit(measured):
    """Seconds of a commit and of its peer, and their ratio against its goal, on each filesystem."""
    head, values = measured
    took, goals = flushes(head), peers(head)
    lines = []
    for measure in dict.fromkeys(measure for measure, _, _ in values):
        name, _, filesystem = measure.rpartition(", ")
        ratios = values.of(measure, "ratio")
        ratio, low, high = interval(ratios)
        word, goal = verdict(low, high, goals[measure][1], False) if measure in goals else ("", "")
        times = [short(values.median(measure, side, 1000)) for side in ("cairn s", "peer s")]
        lines.append([name, filesystem, *times, f"{ratio:.4g}", f"{low:.4g} to {high:.4g}", len(ratios),
                      milliseconds(took, filesystem), goal, word])  # fmt: skip
    titles = ("measure", "filesystem", "Cairn, ms", "peer, ms", "Cairn over peer", "95 % interval", "n", "a flush, ms", "goal",
              "")  # fmt: skip
    return f"{table(titles, lines)}\n\n{about(took)}"


def milliseconds(took, filesystem):
    return short(took[filesystem][1]) if filesystem in took else ""


def about(took):
    """The filesystems in words."""
    return "\n".join(f"- *{filesystem}*: {words}" for filesystem, (words, _) in took.items())
