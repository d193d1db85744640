"""Measures what a pipeline gains if a checkpoint's copies pause while a stage sends (Checkpointer::PauseCopies).

Each iteration saves. The same iterations run without saves, with saves and no pauses, with pauses while a stage sends,
and with copies only in the bubbles: while a stage waits for a neighbour. In turns, in adjacent pairs. `modelled`: 1F1B
in four stages of eight micro-batches, each stage with an emulated GPU whose messages and checkpoint share a link to the
host (bench_pipeline). A message is as long as two of the checkpoint's chunks, or one; what else differs is how long a
forward takes, and how much is saved. `processes`: two processes, PyTorch's Schedule1F1B over gloo, CPU tensors, which
share no link but the CPU. Without --only it writes bench/results/pipeline.{md,csv}. Takes 20 minutes, 3 GB of memory
and 1 GB of disk.
"""

import json
import subprocess
import sys
import tempfile

from .python import pipeline_processes
from .shared import program
from .shared.files import begun
from .shared.measures import Measure
from .shared.options import add_directory, add_only, add_repetitions
from .shared.report import Report

LINK = 62_500_000
# Milliseconds of a forward, MiB of a message and of a stage's state.
CELLS = {
    "a message takes 1/3 of a forward": (100, 2, 64),
    "the same, twice the state": (100, 2, 128),
    "a message takes 1/10 of a forward": (165, 1, 64),
}
PROCESSES = "two processes, gloo"

MEASURES = (
    Measure(".*", "gaps s", "as-is s", goal=1, title="pauses while sending, of no pauses: {}"),
    Measure(".*", "bubbles s", "as-is s", goal=1, title="copies only in bubbles, of no pauses: {}"),
    Measure(".*", "as-is s", "none s", title="no pauses, of no saves: {}"),
    Measure(".*", "gaps s", "none s", title="pauses while sending, of no saves: {}"),
)


def modelled(report, args):
    for name, (forward, message, state) in CELLS.items():
        with tempfile.TemporaryDirectory(prefix="pipeline-", dir=args.dir) as root:
            command = [program("bench_pipeline"), "--root", root, "--rounds", str(args.pairs)]
            command += ["--iterations", "1", "--link", str(LINK), "--message-bytes", str(message << 20)]
            command += ["--state-bytes", str(state << 20), "--forward", str(forward), "--backward", str(2 * forward)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout:
                    row = json.loads(line)
                    report.single(name, row["round"], f"{row['way']} s", row["seconds"])
                    report.single(name, row["round"], f"{row['way']} fence s", row["fence"])
            if process.returncode:
                sys.exit(f"bench_pipeline failed: {name}")


def processes(report, args):
    with tempfile.TemporaryDirectory(prefix="pipeline-", dir=args.dir) as root:
        for round_, way, seconds in pipeline_processes.measure(root, args.pairs):
            report.single(PROCESSES, round_, f"{way} s", seconds)


PARTS = {"modelled": modelled, "processes": processes}


def add_arguments(parser):
    add_directory(parser)
    add_repetitions(parser, 15, "--pairs")
    add_only(parser, "parts", PARTS)


def run(args):
    report = Report()
    emulated = "GPU (host memory, a link of 62.5 MB/s), forward and backward (a deadline) of the modelled part"
    head = [*begun(args.dir), f"emulated: {emulated}"]
    with report.kept("pipeline", head):
        for name in args.only or PARTS:
            PARTS[name](report, args)
            report.judge(MEASURES)
    print(report.text())
    if not args.only:
        report.write("pipeline", head, "".join(f"\n- {line}" for line in head[1:]) + "\n")
