"""How figure 9 looks: a panel for each strategy, with its models, and one that compares the strategies."""

import textwrap

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from report import interval

# A marker, a line and a grey of its own for each; colour only helps.
LOOKS = {
    "none": {"color": "#000000", "marker": "x", "linestyle": ":"},
    "sync": {"color": "#b5b5b5", "marker": "s", "linestyle": "-"},
    "checkfreq": {"color": "#7fa7cf", "marker": "^", "linestyle": "--"},
    "gpm": {"color": "#d9a066", "marker": "v", "linestyle": "-."},
    "gemini": {"color": "#8c6bb1", "marker": "P", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
    "pccheck": {"color": "#4d8f4d", "marker": "D", "linestyle": (0, (5, 2))},
    "cairn": {"color": "#8b0000", "marker": "o", "linestyle": "-", "linewidth": 2.4, "zorder": 5},
}
LABELS = {"none": "no checkpoints", "sync": "sync (torch.save + fsync)", "checkfreq": "CheckFreq", "gpm": "GPM",
          "gemini": "Gemini", "pccheck": "PCcheck", "cairn": "Cairn"}  # fmt: skip
MODELS = {  # Column: how it is drawn.
    "ideal": {"color": "#9a9a9a", "linestyle": ":", "label": "ideal: checkpoints and restarts for nothing"},
    "published": {"color": "#555555", "linestyle": "--", "label": "model as published by PCcheck"},
    "exact": {"color": "#000000", "linestyle": "-", "label": "exact model"},
    "walked": {
        "color": "#000000",
        "linestyle": "",
        "marker": "_",
        "markersize": 9,
        "label": "exact, failure by failure",
    },
}


def draw(head, rows, path):
    """Writes the picture. Under it stands the head of the CSV."""
    pyplot.rcParams.update({"font.size": 9, "axes.grid": True, "grid.color": "#e6e6e6", "axes.axisbelow": True,
                            "lines.linewidth": 1.2, "lines.markersize": 5, "errorbar.capsize": 3})  # fmt: skip
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    across = min(3, len(strategies) + 1)
    down = -(-(len(strategies) + 1) // across)
    figure, axes = pyplot.subplots(down, across, figsize=(3.7 * across, 2.9 * down + 1.2), squeeze=False)
    panels = list(axes.flat)
    tallest = max(max(row["goodput"], row["ideal"]) for row in rows)
    for panel, strategy in zip(panels, strategies):
        mine = [row for row in rows if row["strategy"] == strategy]
        for column, look in MODELS.items():
            points = by_interval(mine, column)
            panel.plot(points.keys(), [interval(values)[0] for values in points.values()], **look)
        look = {"color": "#8b0000", "linestyle": "", "marker": LOOKS[strategy]["marker"], "label": "measured"}
        bars(panel, by_interval(mine, "goodput"), **look)
        panel.set_title(LABELS[strategy])
        panel.set_ylabel("goodput (iterations/s)")
        panel.set_ylim(0, 1.05 * tallest)
    shares = panels[len(strategies)]
    for strategy in strategies:
        mine = [{**row, "share": 100 * row["goodput"] / row["ideal"]} for row in rows if row["strategy"] == strategy]
        bars(shares, by_interval(mine, "share"), label=LABELS[strategy], **LOOKS[strategy])
    shares.set_title("all, measured")
    shares.set_ylabel("goodput (% of ideal)")
    shares.set_ylim(0, 105)
    shares.legend(fontsize=7)
    for panel in panels[: len(strategies) + 1]:
        panel.set_xscale("log")
        panel.set_xticks(sorted({row["every"] for row in rows}))
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        panel.set_xlabel("checkpoint interval (iterations)")
    for panel in panels[len(strategies) + 1 :]:
        panel.axis("off")
    figure.legend(
        *panels[len(strategies) - 1].get_legend_handles_labels(),
        loc="lower center",
        bbox_to_anchor=(0.5, 0.0),
        ncol=3,
        frameon=False,
    )
    figure.suptitle(title(rows[0]))
    figure.tight_layout(rect=(0, 0.03 + 0.3 / figure.get_figheight(), 1, 1))
    small = "\n".join(part for line in head for part in textwrap.wrap(line, int(20 * figure.get_figwidth())))
    figure.text(0.01, -0.01, small, va="top", fontsize=6, color="#555555")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)


def title(row):
    return (
        f"Goodput under a spot cluster's failures, by real kills: {row['model']} at scale {row['scale']:.3g} "
        f"({row['state_bytes'] / 1e6:.0f} MB, {1000 * row['iteration_seconds']:.3g} ms an iteration), emulated GPU"
    )


def by_interval(rows, column):
    """{interval: values of the repetitions}, in order, without what a model has no word on."""
    points = {}
    for row in sorted(rows, key=lambda row: row["every"]):
        if row[column] is not None:
            points.setdefault(row["every"], []).append(row[column])
    return points


def bars(panel, points, **look):
    """Medians, with the bootstrap 95 % interval where there are repetitions."""
    found = [interval(values) for values in points.values()]
    middles = [middle for middle, _, _ in found]
    spread = [[middle - low for middle, low, _ in found], [high - middle for middle, _, high in found]]
    panel.errorbar(list(points), middles, spread if any(map(any, spread)) else None, **look)
