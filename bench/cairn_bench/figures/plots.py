"""How the figures look: readable in grey, with units, and with the head of the CSV under them."""

import os
import textwrap

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from ..shared.report import middle
from . import arguments

LABELS = {strategy: label.split(" (")[0] for strategy, label in arguments.LABELS.items()}
# Each strategy always has the same marker, line and grey; colour only helps.
LOOKS = {
    "none": {"color": "#000000", "marker": "", "linestyle": ":"},
    "sync": {"color": "#b5b5b5", "marker": "s", "linestyle": "-"},
    "torch-save": {"color": "#7d7d7d", "marker": "X", "linestyle": (0, (1, 1))},
    "checkfreq": {"color": "#7fa7cf", "marker": "^", "linestyle": "--"},
    "gpm": {"color": "#d9a066", "marker": "v", "linestyle": "-."},
    "gemini": {"color": "#8c6bb1", "marker": "P", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
    "pccheck": {"color": "#4d8f4d", "marker": "D", "linestyle": (0, (5, 2))},
    arguments.IN_MEMORY: {"color": "#e0663a", "marker": "*", "linestyle": (0, (7, 1)), "linewidth": 2, "zorder": 4},
    "cairn": {"color": "#8b0000", "marker": "o", "linestyle": "-", "linewidth": 2.4, "zorder": 5},
}

pyplot.rcParams.update({"font.size": 9, "axes.grid": True, "grid.color": "#e2e2e2", "axes.axisbelow": True,
                        "lines.linewidth": 1.4, "lines.markersize": 5, "errorbar.capsize": 3})  # fmt: skip


def strategy_line(axes, strategy, points, spread=middle):
    line(axes, points, LABELS[strategy], LOOKS[strategy], spread)


def line(axes, points, label, looks, spread=middle):
    """A line through {x: [values]}, with the range that `spread` gives of the values at each x."""
    xs = sorted(points)
    found = [spread(points[x]) for x in xs]
    ranges = [[m - low for m, low, _ in found], [high - m for m, _, high in found]]
    axes.errorbar(xs, [m for m, _, _ in found], ranges if any(map(any, ranges)) else None, label=label, **looks)


def interval_axis(axes, rows):
    axes.set_xlabel("checkpoint interval (iterations)")
    axes.set_xscale("log")
    axes.set_xticks(sorted({row["interval"] for row in rows}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def save(figure, path, title, head):
    """Writes the picture, with the head of its CSV under it."""
    figure.suptitle(title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if labels:
        figure.legend(
            handles, labels, loc="lower center", ncol=min(4, len(labels)), bbox_to_anchor=(0.5, 0.0), frameon=False
        )
    width = int(figure.get_figwidth() * 17)
    small = "\n".join(part for text in head for part in textwrap.wrap(text, width))
    rows = -(-len(labels) // 4) if labels else 0
    figure.tight_layout(rect=(0, 0.03 + 0.045 * rows, 1, 1))
    figure.text(0.01, -0.01, small, va="top", fontsize=6, color="#555555")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    print(f"wrote {os.path.relpath(path)}", flush=True)
