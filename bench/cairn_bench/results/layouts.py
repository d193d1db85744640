"""The tables of the jobs of cairn_bench.reconfigure, in markdown."""

from ..figures.tenplex import CHANGING, PARTS, changes, differences, losses
from ..reconfigure.groups import MEASURED, MODELLED, ORDERS
from ..reconfigure.measure import measures, seconds
from ..reconfigure.overhead import MEASURES as RECORDS
from ..shared.report import Report, spread, table


def replay(rows):
    """The seconds of each kind of change, and what became of the loss."""
    kinds = {}
    for row in changes(rows):
        kinds.setdefault(f"{row['before']} to {row['after']}", []).append(row)
    lines = [
        [kind, len(mine), *(spread([row[f"{part}_s"] for row in mine]) for part in PARTS)]
        for kind, mine in kinds.items()
    ]
    titles = ("pipeline, tensor, data", "changes", *(f"{part}, s" for part in PARTS))
    tensors = sum(row["tensors"] for row in changes(rows))
    apart = "; ".join(f"{title} {max(values.values()):.1e}" for title, values in differences(rows).items())
    return (
        f"{table(titles, lines)}\n\n{tensors:.0f} tensors were compared bit by bit, none differs. Over "
        f"{len(losses(rows)[CHANGING])} steps the loss is at most so far from that of the layout that never changes: {apart}."
    )


def reconfigure(values):
    """Against the goals, and the medians."""
    report = Report(values=values)
    report.judge(measures(values))
    return f"{report.text()}\n\n{seconds(values)}"


def records(values):
    """Against the goal."""
    report = Report(values=values)
    report.judge(RECORDS)
    return report.text()


def groups(values):
    """Of each order on each network, what an iteration takes."""
    rows = []
    for cell in dict.fromkeys(cell for cell, _, _ in values):
        network, order = cell.rsplit(", ", 1)
        rows.append([network, ORDERS[order], f"{values.median(cell, MODELLED):.1f}", spread(values.of(cell, MEASURED))])
    return table(("network", "order", "by the model, s", "an iteration, s"), rows)
