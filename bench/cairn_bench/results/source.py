"""Where a table comes from: what its files say about date, command, commit, repetitions and emulation."""

import os
import re
from collections import Counter

from ..figures.runs import read_table
from ..figures.sweep import figures_of
from ..shared import RESULTS
from ..shared.files import content
from ..shared.measures import read

# What tells the runs of a figure apart, besides the repetition.
LABELS = ("strategy", "interval", "of", "megabytes", "filesystem", "what", "in_flight", "chunk_bytes", "queue_depth", "writers",
          "network", "order", "setting", "layers", "batch",
          "job", "cores", "memory_bytes", "mix", "shares", "seed", "node",
          "run", "step", "before", "source", "stage", "instruction", "micro_batch")  # fmt: skip


def figure(name):
    """(head, rows) of a figure's CSV, without those of a sweep."""
    head, rows = read_table(os.path.join(RESULTS, f"{name}.csv"))
    return head, figures_of(rows)


def suite(name):
    """(head, Values) of the CSV of a suite that is no figure."""
    path = os.path.join(RESULTS, f"{name}.csv")
    return read(content(path), path)


def provenance(sources):
    """A list in markdown. `sources`: (name of the file, head, how many repetitions its cells have)."""
    lines, about = [], []
    for name, head, counts in sources:
        runs = [line.split("; ", 1) for line in head if re.match(r"\d{4}-\d\d-\d\d ", line)]
        commits = re.findall(r"(?m)(?:^|; )commit (\S+)", "\n".join(head)) or ["not recorded"]
        lines += [
            f"{date}, commit {commit}: `{command}`" for (date, command), commit in zip(runs, commits, strict=True)
        ]
        times = " to ".join(dict.fromkeys(str(count) for count in (min(counts), max(counts))))
        each = f"{'one run' if times == '1' else f'{times} runs'} for each value"
        lines.append(f"[{name}.csv]({name}.csv): {each}; {head.machine}")
        about += emulated(head)
    if about:
        lines.append(f"emulated: {', '.join(dict.fromkeys(about))}")
    return "".join(f"- {line}\n" for line in lines)


def emulated(head):
    """What the runs had emulated, in parts."""
    for line in head.emulated:
        machine, *failures = line.split("; failures")
        yield from re.split(r", (?![^(]*\))", machine)
        yield from (f"failures{text}" for text in failures)


def counts_of_rows(rows):
    """How often each run of a figure was repeated."""
    return Counter(tuple(row.get(label) for label in LABELS) for row in rows).values()


def counts_of_values(values):
    """How many pairs each figure of a suite has."""
    return Counter((cell, name) for cell, _, name in values).values()
