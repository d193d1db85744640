"""What a rank writes with --export-timing-csv: instructions-<rank>.csv, time-energy-<rank>.csv, and rank 0 a trace.json of all.

Times are seconds of the machine's monotonic clock, which its processes share.
"""

import contextlib
import csv
import json
import os
import tempfile

import torch.distributed as dist

from . import perfetto
from .energy import Meter
from .instructions import Recorder, Span

COLUMNS = ("instruction", "start", "end", "step", "rank", "stage", "micro_batch")
ENERGY_COLUMNS = ("time", "energy_j", "source")
# How many of Cairn's events a rank keeps. A save has two for each chunk, a fence one.
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


class Recording:
    """Of one rank, from before its first step until `write`."""

    def __init__(self, trainer, folder):
        """OSError if nothing can be written in the folder."""
        self._trainer, self._folder = trainer, folder
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        self._recorder, self._meter = Recorder(trainer), Meter(trainer.device)

    @contextlib.contextmanager
    def step(self, number):
        """Records the step that runs inside."""
        self._meter.sample()
        with self._recorder.step(number):
            yield
        self._meter.sample()

    def write(self, checkpointer, group):
        """Writes the files, and returns their paths. Every rank calls it."""
        rank, spans = dist.get_rank(group), self._recorder.spans()
        events = [
            event for event in trace_of(checkpointer, self._folder) if not spans or _ends_after(event, spans[0].start)
        ]
        paths = [os.path.join(self._folder, f"{kind}-{rank}.csv") for kind in ("instructions", "time-energy")]
        everything = sorted([*spans, *of_cairn(events)], key=lambda span: (span.start, span.end))
        write_spans(paths[0], rank, self._trainer.stage, everything)
        write_energy(paths[1], self._meter)
        mine = perfetto.RankTrace(rank, self._trainer.stage, spans, self._meter.samples, events, *perfetto.host_clock())
        traces = [None] * dist.get_world_size(group) if rank == 0 else None
        dist.gather_object(mine, traces, group=group)
        if rank == 0:
            paths.append(perfetto.path_in(self._folder))
            perfetto.write(paths[-1], traces)
        return paths


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
