"""What a rank writes with --export-timing-csv: instructions-<rank>.csv, time-energy-<rank>.csv, and rank 0 a trace.json of all.

Times are seconds of the machine's monotonic clock, which its processes share. Files appear at the end, all of one run: every
rank writes beside those of an earlier run, and only once all have written they take their names.
"""

import contextlib
import csv
import json
import os
import re
import tempfile

import torch.distributed as dist

from . import perfetto
from .energy import Meter
from .instructions import Recorder, Span

COLUMNS = ("instruction", "start", "end", "step", "rank", "stage", "micro_batch")
ENERGY_COLUMNS = ("time", "energy_j", "source")
OURS = re.compile(r"(?:instructions|time-energy)-([0-9]+)\.csv")
PART = ".part"
# How many of Cairn's events a rank keeps, the newest. A save has two for each chunk, a fence one.
TRACE_EVENTS = 1 << 16
# Cairn's own spans, as its trace calls them. Chunks are copied to the host from the tensors, or from staging memory.
OF_CAIRN = {
    "fence": "fence",
    "stage": "stage",
    "chunk": "capture",
    "write": "write",
    "durable": "save",
    "failed": "save",
}


def prepare(folder):
    """Makes the folder. OSError if nothing can be written in it."""
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


class Recording:
    """Of one rank, from before its first step until `write`."""

    def __init__(self, trainer, folder):
        """As `prepare`."""
        self._trainer, self._folder = trainer, folder
        prepare(folder)
        self._recorder, self._meter = Recorder(trainer), Meter(trainer.device)

    @contextlib.contextmanager
    def step(self, number):
        """Records the step that runs inside."""
        self._meter.sample()
        with self._recorder.step(number):
            yield
        self._meter.sample()

    def write(self, checkpointer, group):
        """Replaces the files of an earlier run, removes those of ranks that this run has not, and returns this rank's paths.

        Every rank calls it. OSError, on every rank and with the earlier files as they were, if one of them cannot write.
        """
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        paths = [os.path.join(self._folder, f"{kind}-{rank}.csv") for kind in ("instructions", "time-energy")]
        mine, failure = _tried(self._write_parts, checkpointer, rank, paths)
        traces = [None] * world if rank == 0 else None
        dist.gather_object(mine, traces, group=group)
        if rank == 0:
            paths.append(perfetto.path_in(self._folder))
            if all(traces):
                _, failure = _tried(perfetto.write, paths[-1] + PART, traces)
        failures = [None] * world
        dist.all_gather_object(failures, failure, group=group)
        if any(failures):
            for path in paths:
                with contextlib.suppress(OSError):
                    os.remove(path + PART)
            raise OSError(next(filter(None, failures)))
        for path in paths:
            os.replace(path + PART, path)
        self._remove_further_ranks(world)
        return paths

    def _write_parts(self, checkpointer, rank, paths):
        """What rank 0 needs for the trace of all."""
        spans = self._recorder.spans()
        events = [
            event for event in trace_of(checkpointer, self._folder) if not spans or _ends_after(event, spans[0].start)
        ]
        everything = sorted([*spans, *of_cairn(events)], key=lambda span: (span.start, span.end))
        write_spans(paths[0] + PART, rank, self._trainer.stage, everything)
        write_energy(paths[1] + PART, self._meter)
        return perfetto.RankTrace(rank, self._trainer.stage, spans, self._meter.samples, events, *perfetto.host_clock())

    def _remove_further_ranks(self, world):
        for name in os.listdir(self._folder):
            if (ours := OURS.fullmatch(name)) and int(ours[1]) >= world:
                with contextlib.suppress(FileNotFoundError):  # Another rank removes it too.
                    os.remove(os.path.join(self._folder, name))


def _tried(work, *arguments):
    """(result, None), or (None, why not)."""
    try:
        return work(*arguments), None
    except OSError as reason:
        return None, str(reason)


def trace_of(checkpointer, folder):
    """The events of the Checkpointer's own trace."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".trace-") as file:
        checkpointer.write_trace(file.name)
        return json.load(file)["traceEvents"]


def _ends_after(event, seconds):
    return event["ph"] != "X" or event["ts"] + event["dur"] >= 1e6 * seconds


def of_cairn(events):
    """A Span for each event that is one."""
    return [
        Span(OF_CAIRN[event["name"]], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6, event["args"]["step"])
        for event in events
        if event["ph"] == "X"
    ]


def write_spans(path, rank, stage, spans):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for span in spans:
            micro_batch = "" if span.micro_batch is None else span.micro_batch
            writer.writerow(
                (span.instruction, f"{span.start:.9f}", f"{span.end:.9f}", span.step, rank, stage, micro_batch)
            )


def write_energy(path, meter):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(ENERGY_COLUMNS)
        for at, joules in meter.samples:
            writer.writerow((f"{at:.9f}", "" if joules is None else f"{joules:.3f}", meter.source))
