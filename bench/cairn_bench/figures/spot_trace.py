"""A spot cluster's trace: how many GPUs it had, at regular times. bench/data/README.md says what a failure is."""

import csv
import itertools
import math
import os
import statistics
from typing import NamedTuple

from ..shared import ROOT

HEADER = ["", "Time", "GPUs"]
SPOT_GPUS = os.path.join(ROOT, "bench/data/spot_gpus_trace.csv")


class BadTrace(ValueError):
    """The file is not such a trace. Says file, line, what was expected and what was found."""


class Trace(NamedTuple):
    """Samples, in the order of time."""

    seconds: list[float]  # Since the first one, which is at 0.
    gpus: list[int]


def read(path):
    """The trace in a CSV file: number of the sample, seconds since any epoch, GPUs.

    Nothing is repaired: a missing sample may have been a failure. BadTrace for whatever is not as it should be.
    """
    try:
        with open(path, encoding="ascii", errors="backslashreplace", newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise BadTrace(f"{path}: expected a trace, found: {error.strerror}") from None
    if rows[:1] != [HEADER]:
        found = ",".join(rows[0]) if rows else ""
        raise _bad(path, 1, f'the columns "{",".join(HEADER)}"', f'"{found}"')
    samples = [_sample(path, line, cells) for line, cells in enumerate(rows[1:], start=2)]
    if len(samples) < 2:
        raise _bad(path, len(rows) + 1, "at least two samples", str(len(samples)))
    times = [time for time, _ in samples]
    _check_regular(path, times)
    return Trace([time - times[0] for time in times], [gpus for _, gpus in samples])


def failures(trace, draw=None):
    """When the cluster lost GPUs, in seconds since the first sample: each drop is one, whatever its size.

    Its time is that of the sample that shows it. With `draw`, a random.Random, it is anywhere between that sample and
    the one before. The trace does not say more, and failures at multiples of a period would keep step with the
    checkpoints.
    """
    drops = [index for index in range(1, len(trace.gpus)) if trace.gpus[index] < trace.gpus[index - 1]]
    if draw is None:
        return [trace.seconds[index] for index in drops]
    return [draw.uniform(trace.seconds[index - 1], trace.seconds[index]) for index in drops]


def _bad(path, line, expected, found):
    return BadTrace(f"{path}:{line}: expected {expected}, found {found}")


def _sample(path, line, cells):
    if len(cells) != 3:
        raise _bad(path, line, "3 cells", str(len(cells)))
    if cells[0] != str(line - 2):
        raise _bad(path, line, f"sample {line - 2}", f'"{cells[0]}"')
    try:
        time = float(cells[1])
    except ValueError:
        time = math.nan
    if not (math.isfinite(time) and time >= 0):
        raise _bad(path, line, "a time of 0 s or more", f'"{cells[1]}"')
    if not cells[2].isdecimal():
        raise _bad(path, line, "GPUs, 0 or more", f'"{cells[2]}"')
    return time, int(cells[2])


def _check_regular(path, times):
    steps = [after - before for before, after in itertools.pairwise(times)]
    usual = statistics.median(steps)
    for line, (step, time) in enumerate(zip(steps, times[1:]), start=3):
        if step <= 0:
            raise _bad(path, line, f"a time after {time - step!r}", repr(time))
        if step > 1.5 * usual:
            raise _bad(path, line, f"a sample {usual:g} s after the last one, as usual here", f"a gap of {step:g} s")
