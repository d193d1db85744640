"""The records of all ranks as one file of Chrome trace JSON, which Perfetto opens: a process for each rank, with its
instructions, its messages, Cairn's own trace and the power that it drew.

Cairn's trace has microseconds of the machine's monotonic clock; so have these. Ranks of other hosts are shifted by the
difference of the hosts' wall clocks.
"""

import json
import os
import time
from dataclasses import dataclass

from .instructions import COMPUTED, MOVED

# Messages overlap each other and what is computed, so each kind has a row of its own. Cairn's rows come behind.
ROWS = {name: (1, "instructions") for name in COMPUTED} | {
    name: (2 + at, name.replace("_", " ")) for at, name in enumerate(MOVED.values())
}


@dataclass
class RankTrace:
    """What one rank recorded, to be sent to the one that writes."""

    rank: int
    stage: int
    spans: list  # Of instructions alone.
    samples: list  # Of energy: (seconds, joules or None).
    cairn: list  # The events of Cairn's trace.
    host: str  # Whose monotonic clock the times are of.
    wall: float  # The wall clock's seconds when that clock is 0.


def host_clock():
    """(host, wall) for a RankTrace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip(), time.time() - time.monotonic()


def write(path, traces):
    """Replaces the file. `traces`: a RankTrace for each rank."""
    first = traces[0]
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        events = []
        for one in traces:
            events += _events(one, 0 if one.host == first.host else one.wall - first.wall)
        file.write(",\n".join(map(json.dumps, events)))
        file.write("\n]}\n")


def _events(trace, later):
    def span(name, start, end, row, about):
        return {"ph": "X", "pid": trace.rank, "tid": row, "name": name, "ts": round(1e6 * (start + later), 3),
                "dur": round(1e6 * (end - start), 3), "args": about}  # fmt: skip

    yield _name(trace.rank, "process_name", 0, f"rank {trace.rank}, stage {trace.stage}")
    yield {"ph": "M", "pid": trace.rank, "tid": 0, "name": "process_sort_index", "args": {"sort_index": trace.rank}}
    for row, title in dict(ROWS.values()).items():
        yield _name(trace.rank, "thread_name", row, title)
    for one in trace.spans:
        name = one.instruction if one.micro_batch is None else f"{one.instruction} {one.micro_batch}"
        yield span(name, one.start, one.end, ROWS[one.instruction][0], {"step": one.step})
    for event in trace.cairn:
        here = {"pid": trace.rank, "tid": event["tid"] + len(ROWS)}
        if event["ph"] == "M":
            yield event | here | {"args": {"name": f"cairn {event['args']['name']}"}}
        else:
            yield event | here | {"ts": event["ts"] + 1e6 * later}
    for (begin, before), (end, after) in zip(trace.samples, trace.samples[1:]):
        if after is not None and end > begin:
            power = {"W": round((after - before) / (end - begin), 3)}
            yield {"ph": "C", "pid": trace.rank, "name": "power", "ts": round(1e6 * (begin + later), 3), "args": power}


def _name(rank, kind, row, title):
    return {"ph": "M", "pid": rank, "tid": row, "name": kind, "args": {"name": title}}


def path_in(folder):
    return os.path.join(folder, "trace.json")
