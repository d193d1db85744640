"""Measures what a pipeline gains if a checkpoint's copies pause while a stage sends (Checkpointer::PauseCopies).

Each iteration saves. The same iterations run without saves, with saves and no pauses, with pauses while a stage sends,
and with copies only in the bubbles: while a stage waits for a neighbour. In turns, in adjacent pairs. Modelled: 1F1B
in four stages of eight micro-batches, each stage with an emulated GPU whose messages and checkpoint share a link to the
host (bench_pauses). A message is as long as a chunk of the checkpoint, and takes a third (`third`, `twice`) or a
tenth (`tenth`) of a forward; `twice` saves twice as much. `processes`: two processes, PyTorch's Schedule1F1B over gloo,
CPU tensors, which share no link but the CPU. Writes pipeline-PART.csv. Takes 15 minutes, 1 GB of
memory and 1 GB of disk.
"""

import functools
import json
import subprocess
import sys
import tempfile

from .python import pipeline_processes
from .shared import program
from .shared.files import begun
from .shared.measures import Measure
from .shared.options import add_directory, add_only, add_record, add_repetitions
from .shared.report import Report

LINK = 62_500_000
MESSAGE = 1 << 20
# Its name in results, milliseconds of a forward, MiB of a stage's state.
CELLS = {
    "third": ("a message takes 1/3 of a forward", 50, 32),
    "twice": ("the same, twice the state", 50, 64),
    "tenth": ("a message takes 1/10 of a forward", 165, 64),
}
PROCESSES = "two processes, gloo"

MEASURES = (
    Measure(".*", "gaps s", "as-is s", goal=1, title="pauses while sending, of no pauses: {}"),
    Measure(".*", "bubbles s", "as-is s", goal=1, title="copies only in bubbles, of no pauses: {}"),
    Measure(".*", "as-is s", "none s", title="no pauses, of no saves: {}"),
    Measure(".*", "gaps s", "none s", title="pauses while sending, of no saves: {}"),
)


def modelled(report, args, name, forward, mib):
    with tempfile.TemporaryDirectory(prefix="pipeline-", dir=args.dir) as root:
        command = [program("bench_pauses"), "--root", root, "--rounds", str(args.pairs), "--iterations", "1"]
        command += ["--link", str(LINK), "--message-bytes", str(MESSAGE), "--state-bytes", str(mib << 20)]
        command += ["--forward", str(forward), "--backward", str(2 * forward)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                row = json.loads(line)
                report.single(name, row["round"], f"{row['way']} s", row["seconds"])
                report.single(name, row["round"], f"{row['way']} fence s", row["fence"])
        if process.returncode:
            sys.exit(f"bench_pauses failed: {name}")


def processes(report, args):
    with tempfile.TemporaryDirectory(prefix="pipeline-", dir=args.dir) as root:
        for round_, way, seconds in pipeline_processes.measure(root, args.pairs):
            report.single(PROCESSES, round_, f"{way} s", seconds)


PARTS = {
    **{part: functools.partial(modelled, name=name, forward=forward, mib=mib)
       for part, (name, forward, mib) in CELLS.items()},
    "processes": processes,
}  # fmt: skip


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 15, "--pairs")
    add_only(parser, "parts", PARTS)


def run(args):
    emulated = "emulated: GPU (host memory, a link of 62.5 MB/s), forward and backward (a deadline)"
    for part in args.only or PARTS:
        report = Report(args.folder)
        output = f"pipeline-{part}"
        head = [*begun(args.dir), *([emulated] if part in CELLS else [])]
        with report.kept(output, head):
            PARTS[part](report, args)
        report.judge(MEASURES)
        report.write(output, head)
