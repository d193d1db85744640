"""The tables of the figures, in markdown, from the rows of their CSVs."""

from ..figures import cluster as clusters
from ..figures import profile as profiling
from ..figures import slack as slacks
from ..figures.arguments import LABELS
from ..figures.in_flight import in_pairs, times_alone
from ..figures.networks import ORDERS, gains, published_of, totals
from ..figures.one_checkpoint import with_rates
from ..figures.over_time import points_of
from ..figures.pipeline import PUBLISHED, published_slowdown
from ..figures.runs import by
from ..figures.throughput import agreed, slowdowns
from ..shared.report import middle, short, spread, table

tenths = "{:.1f}".format
TABLED = (1, 10)  # Intervals of figure 8.
LEAST_RUNS = 5  # Of what is called ahead.


def by_strategy(rows):
    """[(name, rows)] in the order of the tables."""
    groups = by(rows, "strategy")
    return [(name, groups[strategy]) for strategy, name in LABELS.items() if strategy in groups]


def by_values(rows, column):
    """{strategy: [...]} of a column."""
    return {strategy: [row[column] for row in of] for strategy, of in by(rows, "strategy").items()}


def throughput(rows):
    """What training loses, in per cent. In bold: the least, if it is clearly so (leaders)."""
    kept, others = agreed(slowdowns(rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    lost = {}  # By column, and in it by strategy.
    for (model, every, strategy), values in kept.items():
        if strategy != "none":
            lost.setdefault((model, every), {})[strategy] = [100 * (one - 1) for one in values]
    ahead = leaders(lost, [(model, every) for model, every, _ in others])
    lines = []
    for every in TABLED:
        for strategy, name in list(LABELS.items())[:-1]:
            if any((row["strategy"], row["interval"]) == (strategy, every) for row in rows):
                cells = [cell(lost, ahead, (model, every), strategy) for model in models]
                lines.append([f"{every:.0f}", name, *cells])
    points = sum(strategy != "none" for *_, strategy in (*kept, *others))
    more = f"\n\n{len(others)} of {points} points differ between the dilations and were left out (-)." if others else ""
    return table(("% lost, every", "", *models), lines) + more


def leaders(values, unknown=(), best=min):
    """{column: strategy}: where the strategy has at least LEAST_RUNS runs, all of them better than any of another one.

    Columns that are in `unknown` have strategies without values: nobody leads.
    """
    found = {}
    for column, of in values.items():
        worst = min if best is max else max
        first = best(of, key=lambda strategy: worst(of[strategy]))
        others = [one for strategy, runs in of.items() if strategy != first for one in runs]
        clear = others and best([*others, worst(of[first])]) not in others
        if clear and len(of[first]) >= LEAST_RUNS and column not in unknown:
            found[column] = first
    return found


def cell(values, ahead, column, strategy, form=short):
    """The median with its range; bold for who leads."""
    if strategy not in values.get(column, {}):
        return "-"
    mark = "**" if ahead.get(column) == strategy else ""
    return f"{mark}{spread(values[column][strategy], form)}{mark}"


def pipeline(rows):
    """What training loses, in per cent. In bold: the least, if it is clearly so (leaders)."""
    lost = {}
    for (_, every, strategy), values in agreed(slowdowns(rows))[0].items():
        if strategy != "none":
            lost.setdefault(every, {})[strategy] = [100 * (one - 1) for one in values]
    ahead = leaders(lost)
    lines = []
    for strategy, name in list(LABELS.items())[:-1]:
        if any(strategy in of for of in lost.values()):
            paper = short(100 * (published_slowdown(strategy) - 1)) if strategy in PUBLISHED else ""
            lines.append([name, *(cell(lost, ahead, every, strategy) for every in sorted(lost)), paper])
    return table(("% lost, every", *(f"{every:.0f}" for every in sorted(lost)), "the paper, every 10"), lines)


def goodput(rows):
    """Iterations a second that count."""
    intervals = sorted(by(rows, "interval"))
    counted = {every: by_values(of, "goodput") for every, of in by(rows, "interval").items()}
    ahead, lines = leaders(counted, best=max), []
    for name, mine in by_strategy(rows):
        restart = middle([row["restart_s"] for row in mine])[0]
        strategy = mine[0]["strategy"]
        lines.append([name, *(cell(counted, ahead, every, strategy, tenths) for every in intervals), f"{restart:.2f}"])
    off = max(abs(row["goodput"] / row["exact"] - 1) for row in rows)
    titles = ("iterations a second, every", *(f"{every:.0f}" for every in intervals), "a restart takes, s")
    return f"{table(titles, lines)}\n\nNo run is further than {100 * off:.1f} % from what the exact model says."


def one_checkpoint(rows):
    """State over time to durable."""
    sizes = sorted(by(rows, "megabytes"))
    rates = {size: by_values(of, "GB/s") for size, of in by(with_rates(rows), "megabytes").items()}
    ahead = leaders(rates, best=max)
    lines = [[name, *(cell(rates, ahead, size, mine[0]["strategy"], tenths) for size in sizes)]
             for name, mine in by_strategy(rows)]  # fmt: skip
    return table(("GB/s", *(f"{size:.0f} MB" if size < 1000 else f"{size / 1000:g} GB" for size in sizes)), lines)


def in_flight(rows):
    alone, ages = times_alone(rows), in_pairs(rows)
    lines = [
        [name, f"{alone[key]:.2f}", spread(ages[key], "{:.3f}".format)] for key, name in LABELS.items() if key in ages
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
    """The three figures are made of equal runs: what each of them measures is taken from all."""
    lines = []
    for name, of in by_strategy(ages):
        held = dict(by_strategy(memory))[name]
        mine = [*of, *dict(by_strategy(stalls))[name], *held]
        most = [max(value for _, value in points_of(row)) / 1e6 for row in held]
        held_up = [spread([1000 * row[column] for row in mine]) for column in ("stall_p99_s", "stall_max_s")]
        age = spread([row["age_max_s"] for row in mine], tenths)
        lines.append([name, age, *held_up, spread(most, "{:.0f}".format)])
    titles = ("", "greatest age, s", "stall p99, ms", "longest stall, ms", "most host memory, MB")
    return table(titles, lines)


def networks(rows):
    """The modelled cost of each order, and what the authors of DT-FM measured."""
    orders = (*ORDERS, "found in random")
    published, lines = published_of(rows), []
    for network, found in totals(rows).items():
        costs = [spread([row["total_seconds"] for row in found[order]], "{:.2f}".format) for order in orders]
        lines.append([network, *costs, spread(gains(published[network]), "{:.2f}".format)])
    titles = [*ORDERS.values(), "found, listed at random", "published: efficiency, scheduled over random"]
    golden = [row for row in rows if isinstance(row["golden_seconds"], float)]
    off = max(abs(row["total_seconds"] - row["golden_seconds"]) for row in golden)
    cells = sum(row["published"] == row["recomputed"] for row in rows if row["setting"])
    return (
        f"{table(('seconds of an iteration', *titles), lines)}\n\n"
        f"{len(golden)} golden costs: none is further off than {off:.0e} s. Published efficiencies that their times "
        f"give again: {cells}."
    )


def slack(rows):
    """Of each pipeline the longest path and what its stages wait."""
    lines = []
    for source, found in slacks.stages(rows).items():
        whole = found[0]
        idle = [100 * row["idle_s"] / whole["path_s"] for row in found]
        longest = max(found, key=lambda row: row["longest_s"])
        lines.append([source, f"{len(found)}", f"{whole['micro_batches']:.0f}", f"{whole['path_s']:.4g}",
                      f"{whole['known_s']:.4g}", f"{whole['path_s'] / whole['known_s']:.3f}",
                      f"{sum(idle) / len(idle):.1f}", f"{idle[0]:.1f}", f"{idle[-1]:.1f}",
                      f"{longest['longest_s']:.3g}, {longest['stage']:.0f}"])  # fmt: skip
    titles = ("", "stages", "micro-batches", "longest path, s", "published or recorded, s", "ratio", "idle, %",
              "of the first stage", "of the last", "longest window, s, and its stage")  # fmt: skip
    fits = sum(abs(of[0]["path_s"] / of[0]["known_s"] - 1) < 1e-9 for source, of in slacks.stages(rows).items()
               if not source.startswith("recorded"))  # fmt: skip
    return f"{table(titles, lines)}\n\n{fits} of 16 longest paths are the published time of the fastest iteration."


def profiles(rows):
    """What each job needs, and how far predictions are off."""
    lines = []
    for job, mine in by(rows, "job").items():
        whole = profiling.whole_of(mine)
        cores, off = profiling.axes_of(mine)["cores"], profiling.errors(mine)
        least = min((row for row in cores if row["what"] == "samples"), key=lambda row: row["cores"])
        memory = f"{whole['knee_memory_bytes'] / (1 << 20):.0f}" if whole["full_memory_bytes"] else "-"
        runs = sum(row["what"] == "samples" for row in mine)
        few = f"{least['throughput'] / whole['throughput']:.2f} of it with {least['cores']:g}"
        knee = f"{whole['knee_cores']:.2f} of {whole['cores']:g}"
        errors = f"{100 * middle(off)[0]:.1f}, {100 * max(off):.1f} of {len(off)}" if off else "-"
        threads = f"{whole['worker_threads']:.0f}"
        lines.append([job, f"{whole['throughput']:.1f}", few, knee, memory, runs, threads, errors])
    titles = ("job", "iterations/s", "and with few cores", "knee, cores", "knee, MiB", "runs", "`worker_threads`",
              "prediction off, %: median, most")  # fmt: skip
    off = profiling.errors(rows)
    near = f"Of {len(off)} predictions {sum(one <= 0.1 for one in off)} are within 10 % of what was measured."
    return f"{table(titles, lines)}\n\n{near}"


def cluster(rows):
    """What a node's jobs leave, and the slowest job when saves take cores."""
    lines = []
    for (mix, shares), (cores, memory) in clusters.budgets(rows).items():
        mine = [row for row in rows if (row["mix"], row["shares"]) == (mix, shares)]
        blind, profiled = (clusters.speeds(mine, way) for way in clusters.WAYS)
        few = [f"{clusters.at(values, 0.1):.0f}, {clusters.at(values, 0.5):.0f}" for values in (cores, memory)]
        none = sum(value < 1e-3 for value in cores) / len(cores)
        lines.append([mix, shares, *few, f"{100 * none:.0f}", *(f"{way[1]:.3f}" for way in (blind, profiled)),
                      *(f"{way[4]:.3f}" for way in (blind, profiled))])  # fmt: skip
    titles = ("jobs: image/language/speech, %", "shares", "spare cores: p10, median", "spare GB", "nodes without any, %",
              "slowest job, 1 core from all alike", "spare first", "4 cores from all alike", "spare first")  # fmt: skip
    return table(titles, lines)
