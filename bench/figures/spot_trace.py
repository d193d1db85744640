"""A spot cluster's trace: how many GPUs it had, at regular times. bench/data/README.md says what counts as a failure."""

import itertools
import math
import os
import statistics
from typing import NamedTuple

HEADER = ",Time,GPUs"
SPOT_GPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/spot_gpus_trace.csv")


class BadTrace(ValueError):
    """The file is no such trace; the message has file, line, what was expected and what was found."""


class Trace(NamedTuple):
    """Samples, in the order of time."""

    seconds: list[float]  # Since the first one, which is at 0.
    gpus: list[int]


def read(path):
    """The trace in a CSV file: number of the sample, seconds since any epoch, GPUs.

    Nothing is repaired: a sample that is missing may have been a failure. BadTrace for whatever is not as it should be.
    """
    try:
        with open(path, encoding="ascii", errors="backslashreplace") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise BadTrace(f"{path}: expected a trace, found: {error.strerror}") from None
    if lines[:1] != [HEADER]:
        raise _bad(path, 1, f'the columns "{HEADER}"', f'"{lines[0] if lines else ""}"')
    samples = [_sample(path, line, index, text) for index, (line, text) in enumerate(enumerate(lines[1:], start=2))]
    if len(samples) < 2:
        raise _bad(path, len(lines) + 1, "at least two samples", str(len(samples)))
    times = [time for time, _ in samples]
    _check_regular(path, times)
    return Trace([time - times[0] for time in times], [gpus for _, gpus in samples])


def failures(trace, draw=None):
    """When the cluster lost GPUs, in seconds since the first sample: each drop is one, whatever its size.

    It is told at the sample that shows it. With `draw`, a random.Random, it falls anywhere between that and the one before:
    the trace knows no more, and failures that all come at multiples of a period keep step with the checkpoints.
    """
    drops = [index for index in range(1, len(trace.gpus)) if trace.gpus[index] < trace.gpus[index - 1]]
    if draw is None:
        return [trace.seconds[index] for index in drops]
    return [draw.uniform(trace.seconds[index - 1], trace.seconds[index]) for index in drops]


def _bad(path, line, expected, found):
    return BadTrace(f"{path}:{line}: expected {expected}, found {found}")


def _sample(path, line, index, text):
    cells = text.split(",")
    if len(cells) != 3:
        raise _bad(path, line, "3 cells", str(len(cells)))
    if cells[0] != str(index):
        raise _bad(path, line, f"sample {index}", f'"{cells[0]}"')
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
