"""README's table and its chart: what a save costs with Cairn and with what people have, from python-A.csv."""

import html
import re
from dataclasses import dataclass

from ..python.catalogue import CAIRN, CAIRN_WHOLE, PEERS
from ..shared.report import middle, short, spread, table

# What no benchmark measures, for torch.save, DCP's async_save and Cairn. tests/python/test_front_page.py tries the
# first three rows on all three; the others are tested by what the comment names.
FACTS = (
    ("killed in the middle of a save", "the file is cut off, and what it replaced is gone",
     "a folder that does not load; yours to find and remove", "the save before it, whole"),
    ("a flipped bit in the file", "is loaded", "is loaded", "is found: CRC32C over every byte"),
    ("who can open the files", "torch (pickle)", "torch (pickle)", "whatever reads safetensors; no pickle"),
    # tests/checkpointer/crash_test.cc, tests/engine: recorded power cuts.
    ("power cut after the save has ended", "may be lost: nothing is synced", "may be lost: files are synced, their names are not",
     "there: files, names and folders are synced"),
    # tests/python/test_memory.py
    ("host memory beside the state", "little", "the whole state", "a pool: the state's size, at most a quarter of what is free; or your limit"),
    # tests/python/test_layouts.py, test_dcp_ranks.py
    ("another number of ranks", "no", "yes", "yes, through `cairn.dcp`; plain trees: what is replicated"),
    ("object storage", "through other libraries", "through fsspec", "copies, by rclone"),
    ("on GPUs", "everywhere, for years", "everywhere, for years", "minutes on one H200"),
)  # fmt: skip

MEASURED = (
    ("the call blocks training for", "steady blocked s"),
    ("tensors may change after", "steady free s"),
    ("safe on the disk after", "steady durable s"),
    ("cold load of the whole", "load s"),
)
COLUMNS = {"torch.save": "torch.save", "DCP's async_save": "dcp.async_save", "Cairn": "cairn-whole"}
LABELS = {"cairn-whole": "Cairn, pool of the state's size", "cairn": "Cairn, pool of 1 GiB"}


def comparison(measured):
    head, values = measured
    rows = [
        (title, *(span(values.of(f"A {name}", measure)) for name in COLUMNS.values())) for title, measure in MEASURED
    ]
    return f"{table(('', *COLUMNS), [*rows, *FACTS])}\n\n{origin(head)}\n"


def span(seconds):
    """The median and the range, in the unit in which they are read best."""
    if max(seconds) < 0.1:
        return spread([1000 * value for value in seconds], lambda value: f"{value:.1f}") + " ms"
    return spread(seconds) + " s"


def origin(head):
    date, command = next(line for line in head if re.match(r"\d{4}-\d\d-\d\d ", line)).split("; ", 1)
    state = next(line for line in head if line.startswith("state ")).split(": ")[1]
    return (
        f"First four rows: {state} of CPU tensors; medians, with the least and the greatest; {head.machine}; "
        f"{date[:10]}, `{command}`. torch.save syncs nothing: for the third row the benchmark does it."
    )


@dataclass(frozen=True)
class Bar:
    label: str
    free: list
    durable: list


# In pixels.
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 250, 150, 58, 42, 14
FREE, DURABLE, INK = "#c44e4e", "#eccaca", "#222222"


def chart(measured):
    """The chart as SVG: for each system until tensors may change, and until the save is durable."""
    head, values = measured
    bars = [
        Bar(LABELS.get(entry.name, entry.title), values.of(f"A {entry.name}", "steady free s"), values.of(f"A {entry.name}", "steady durable s"))
        for entry in (CAIRN_WHOLE, CAIRN, *PEERS)
        if values.of(f"A {entry.name}", "steady durable s")
    ]  # fmt: skip
    most = max(max(bar.durable) for bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(bars) + 40
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect {size} fill="#ffffff"/>',
        text(12, 22, "One save of 2.1 GB, in seconds: shorter is better", size=15),
        f'<rect x="{LEFT}" y="34" width="12" height="12" fill="{FREE}"/>',
        text(LEFT + 18, 45, "until training may change the tensors"),
        f'<rect x="{LEFT + 250}" y="34" width="12" height="12" fill="{DURABLE}"/>',
        text(LEFT + 268, 45, "until a power cut cannot lose it"),
    ]
    for at, bar in enumerate(bars):
        top = TOP + ROW * at
        parts.append(text(LEFT - 10, top + ROW / 2 + 2, bar.label, anchor="end"))
        for offset, seconds, colour in ((4, bar.free, FREE), (4 + BAR + 2, bar.durable, DURABLE)):
            parts += drawn(top + offset, seconds, colour, scale)
    parts.append(text(12, height - 14, footnote(head), size=11))
    return "\n".join([*parts, "</svg>"]) + "\n"


def drawn(top, seconds, colour, scale):
    """A bar up to the median, a line over the range, and both in numbers."""
    median, least, most = middle(seconds)
    centre = top + BAR / 2
    return [
        f'<rect x="{LEFT}" y="{top:g}" width="{median * scale:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<path d="M{LEFT + least * scale:.1f} {centre:g}H{LEFT + most * scale:.1f}" stroke="{INK}"/>',
        text(LEFT + most * scale + 6, top + BAR - 3, f"{short(median)} ({short(least)} to {short(most)})", size=11),
    ]


def footnote(head):
    date = next(line for line in head if re.match(r"\d{4}-\d\d-\d\d ", line))[:10]
    return f"{head.machine}; {date}. + without an fsync of its own: the benchmark adds it."


def text(x, y, words, size=12, anchor="start"):
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{html.escape(words)}</text>'
