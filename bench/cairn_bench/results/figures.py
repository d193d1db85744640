"""The tables of the figures, in markdown, from the rows of their CSVs."""

from ..figures.in_flight import in_pairs, times_alone
from ..figures.over_time import points_of
from ..figures.runs import grouped, middle
from ..figures.throughput import slowdowns
from ..shared.report import table
from .words import STRATEGIES, percent, short, span


def by_strategy(rows):
    """[(name, rows)] in the order in which the tables have them."""
    groups = {strategy: group for (strategy,), group in grouped(rows, "strategy").items()}
    return [(name, groups[strategy]) for strategy, name in STRATEGIES.items() if strategy in groups]


def median_of(rows, column):
    return middle([row[column] for row in rows])[0]


def throughput(rows):
    """What training loses, in per cent."""
    found = slowdowns(rows)
    models = list(dict.fromkeys(row["model"] for row in rows))
    lines = []
    for every in (1, 10):
        for strategy, name in STRATEGIES.items():
            values = [found[model, every, strategy] for model in models]
            lines.append([every, name, *(percent(middle(of)[0] - 1) for of in values)])
    return table(("% lost, every", "", *models), lines)


def goodput(rows):
    """Iterations a second that count."""
    intervals = sorted({row["interval"] for row in rows})
    lines = []
    for name, mine in by_strategy(rows):
        values = [[row["goodput"] for row in mine if row["interval"] == every] for every in intervals]
        lines.append([name, *map(span, values), f"{median_of(mine, 'restart_s'):.2f}"])
    leads = {every: [] for every in intervals}
    for (every, _), runs in grouped(rows, "interval", "repetition").items():
        others = max(row["goodput"] for row in runs if row["strategy"] != "cairn")
        leads[every] += [row["goodput"] / others for row in runs if row["strategy"] == "cairn"]
    lines.append(["Cairn over the best other", *(span(of, "{:.2f}".format) for of in leads.values()), ""])
    off = max(abs(row["goodput"] / row["exact"] - 1) for row in rows)
    titles = ("iterations a second, every", *(f"{every:.0f}" for every in intervals), "a restart takes, s")
    return f"{table(titles, lines)}\n\nNo run is further than {100 * off:.1f} % from what the exact model says."


def one_checkpoint(rows):
    """State over time to durable."""
    sizes = sorted({row["megabytes"] for row in rows})
    lines = []
    for name, mine in by_strategy(rows):
        rates = {size: [row["state_bytes"] / row["to_durable_p50_s"] / 1e9 for row in of]
                 for (size,), of in grouped(mine, "megabytes").items()}  # fmt: skip
        lines.append([name, *(span(rates[size]) if size in rates else "-" for size in sizes)])
    return table(("GB/s", *(f"{size:.0f} MB" if size < 1000 else f"{size / 1000:g} GB" for size in sizes)), lines)


def in_flight(rows):
    alone, ages = times_alone(rows), in_pairs(rows)
    lines = [
        [name, f"{alone[key]:.2f}", span(ages[key], "{:.3f}".format)] for key, name in STRATEGIES.items() if key in ages
    ]
    return table(("", "one checkpoint alone takes, s", "greatest age / (write time + interval)"), lines)


def parallel_writes(rows):
    """Time to durable."""
    at_once, lines = set(), {}
    for row in rows:
        pccheck = row["strategy"] == "pccheck"
        count = row["writers"] if pccheck else row["queue_depth"]
        name = (
            "PCcheck, threads" if pccheck else f"Cairn, queue depth, chunks of {row['chunk_bytes'] / (1 << 20):.0f} MiB"
        )
        at_once.add(count)
        lines.setdefault(name, {}).setdefault(count, []).append(1000 * row["to_durable_p50_s"])
    cells = [[name, *(short(middle(of[count])[0]) if count in of else "-" for count in sorted(at_once))]
             for name, of in sorted(lines.items())]  # fmt: skip
    return table(("ms", *(f"{count:.0f}" for count in sorted(at_once))), cells)


def over_time(ages, stalls, memory):
    lines = []
    for name, mine in by_strategy(ages):
        (age,), (stall,), (held,) = mine, dict(by_strategy(stalls))[name], dict(by_strategy(memory))[name]
        most = max(value for _, value in points_of(held))
        lines.append([name, f"{age['age_max_s']:.1f}", *(short(1000 * stall[f"stall_{what}_s"]) for what in ("p99", "max")),
                      f"{most / 1e6:.0f}"])  # fmt: skip
    titles = ("", "greatest age, s", "stall p99, ms", "longest stall, ms", "most host memory, MB")
    return table(titles, lines)
