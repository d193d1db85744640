"""What recording costs an iteration (--export-timing-csv): steps with and without it, in adjacent pairs of one job.

The GPT of cairn_bench.reconfigure trains in two pipeline stages, 8 micro-batches a step, real processes on CPUs over gloo. Which
of a pair comes first changes from one to the next; a step lasts from when the first rank begins it until the last has ended it.
Only recording differs: instructions, messages, energy. Cairn's own trace is not a part of it. Needs torch; two minutes. Writes
records.csv.
"""

import contextlib
import os
import tempfile
import time

from ..shared import files
from ..shared.measures import Measure
from ..shared.options import add_directory, add_record, positive
from ..shared.report import Report
from .jobs import Job
from .layout import Layout
from .sizes import model_name
from .train import Settings, join

ARMS = ("recorded", "not recorded")
MEASURES = [
    Measure(".*", "recorded s", "not recorded s", goal=1.01, title="an iteration of {}, recorded over not recorded")
]
WARM_UP = 3  # Pairs.


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    parser.add_argument("--pairs", type=positive(int), default=200, help="default: 200")
    parser.add_argument("--model", type=model_name, default="small", help="default: small")
    parser.add_argument("--micro-batch", type=positive(int), default=32, help="samples in each; default: 32")


def alternate(settings, pairs, tell):
    """One rank: tells of each step [pair, whether it was recorded, begin, end]."""
    import torch
    import torch.distributed as dist

    from .parallel import Trainer
    from .records import Recording

    torch.set_num_threads(1)
    device, group = join(settings.timeout)
    trainer = Trainer(settings, device)
    trainer.initialize()
    recording = Recording(trainer, settings.export_timing_csv)
    steps, number = [], 0
    for pair in range(-WARM_UP, pairs):
        for recorded in (True, False) if pair % 2 else (False, True):
            number += 1
            dist.barrier(group)
            begin = time.monotonic()
            with recording.step(number) if recorded else contextlib.nullcontext():
                trainer.step(number)
            steps.append((pair, recorded, begin, time.monotonic()))
    tell("steps", steps=steps)
    dist.destroy_process_group()


def go(args, report):
    """Adds each pair's seconds to the report."""
    with tempfile.TemporaryDirectory(prefix="records-", dir=args.dir) as folder:
        settings = Settings("", Layout(2, 1, 1), 0, model=args.model, micro_batch=args.micro_batch,
                            batch=8 * args.micro_batch, export_timing_csv=os.path.join(folder, "records"))  # fmt: skip
        with Job(settings.layout.world, alternate, settings, args.pairs) as job:
            job.finish(1200)
    for ranks in zip(*(told["steps"] for told in job.all("steps")), strict=True):
        pair, recorded = ranks[0][:2]
        if pair >= 0:
            seconds = max(end for *_, end in ranks) - min(begin for _, _, begin, _ in ranks)
            report.single(f"{args.model}, 2 stages", pair, f"{ARMS[0] if recorded else ARMS[1]} s", seconds)


def run(args):
    head = files.begun(args.dir)
    report = Report(args.folder)
    with report.kept("records", head):
        go(args, report)
    report.judge(MEASURES)
    report.write("records", head)
    return 0
