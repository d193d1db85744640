"""Proves on a machine with a GPU what no test without one can, step by step. Called by scripts/prove-gpu, which builds.

X experiments     the price of a captured GB and what it is made of: ends of copies, launch queue, staging, blocks
A first contact   cairn doctor --gpu, the contract suites with no test skipped, compute-sanitizer
B copies          Cairn's lanes beside one large copy, pinning, many small pieces, staging, other threads' launches
C correctness     from Python: allocators, streams, graphs, torch.compile, strange tensors, 1,000 fenced saves
D cost            what saves cost the steps of a training, beside DCP and torch.save; restores
E kill            training on the GPU is killed, resumed, and compared bit by bit
F failures        a lost context, an exit without close, forked loaders, staging that does not fit
G ranks           NCCL with one rank, and with two where there are two GPUs; they train and save together

Writes gpu-STEP.{json,md} to build/results, or with --record to bench/results, and prints a table at the end. A step whose
result has the same source, device and driver is not run again; what no record has run is listed last. X takes about 8
minutes, A to C at most 30 on an H100, D to G 15; with --short X should take 6 and A to G 8 to 10, with fewer and shorter
runs (estimates). --minutes ends all after that time, counted from the start of scripts/prove-gpu. Without torch the
steps that need it are not run, and say so. --dry-run runs every step on the CPU and the driver's test double, at tiny
sizes: it writes to build/prove-gpu and proves only that the steps themselves run. Before that it builds, 15 CPU minutes
the first time (an estimate).
Exit status: 0 every line of the steps is met, 1 not, 2 invalid arguments.
"""

import argparse
import math
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from ..shared import ROOT
from ..shared.options import add_directory, add_record
from ..shared.report import table
from . import contact, copies, correct, cost, experiments, failures, ranks, trainer
from .context import Context, Failed, OutOfTime
from .record import Record, finished, never_ran

STEPS = {"X": experiments, "A": contact, "B": copies, "C": correct, "D": cost, "E": trainer, "F": failures, "G": ranks}


def parsed(arguments):
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/prove-gpu", description=__doc__, formatter_class=raw)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; default: all")
    parser.add_argument("--again", action="store_true", help="run finished steps again")
    parser.add_argument(
        "--short", action="store_true", help="fewer and shorter runs, for a GPU that is lent for minutes"
    )
    parser.add_argument("--dry-run", action="store_true", help="on the CPU and the driver's test double")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for all, with the build; default: no limit")
    parser.add_argument("--spent", type=float, default=0, help=argparse.SUPPRESS)  # Seconds, on the build.
    parser.add_argument("--python", default=sys.executable, help="a Python with torch and cairn")
    parser.add_argument("--results", help=argparse.SUPPRESS)
    add_directory(parser)
    add_record(parser)
    # scripts/prove-gpu asks for this before it builds.
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if unknown := [step for step in args.steps if step.upper() not in STEPS]:
        parser.error(f"unknown {', '.join(unknown)}; there are {', '.join(STEPS)}")
    args.steps = [step.upper() for step in args.steps] or list(STEPS)
    return args


def prove(step, context, record):
    """Runs a step. What ends it early is a line of its own, and the step is run again the next time."""
    try:
        STEPS[step].run(context, record)
        record.complete = True
    except Failed as failed:
        record.require("the step ends", False, str(failed))
    except OutOfTime as over:
        print(f"{step}: {over}", flush=True)
    except Exception as error:  # noqa: BLE001  One broken step must not cost the others' results.
        traceback.print_exc()
        record.require("the step ends", False, f"{type(error).__name__}: {error}")


def main(arguments):
    args = parsed(arguments)
    if args.check_arguments:
        return 0
    os.makedirs(args.dir, exist_ok=True)
    folder = args.results or (os.path.join(ROOT, "build/prove-gpu") if args.dry_run else args.folder)
    context = Context(args.dir, args.python, args.dry_run, args.short, 60 * args.minutes - args.spent)
    try:
        about = context.about()
    except Failed as failed:
        print(f"scripts/prove-gpu: {failed}", file=sys.stderr)
        return 1

    def result_of(step):
        kept = None if args.again else finished(folder, step, about)
        print(f"== {step}: {STEPS[step].TITLE}" + (f" (kept, of {kept.about['date']})" if kept else ""), flush=True)
        record = kept or Record(step, STEPS[step].TITLE, about, folder)
        if kept is None and context.left() > 0:  # Else what an earlier run has found stays.
            prove(step, context, record)
            record.write(folder)
        return record

    # A dry run measures nothing, so its steps may run beside each other.
    with ThreadPoolExecutor(os.cpu_count() if args.dry_run else 1) as pool:
        records = list(pool.map(result_of, args.steps))
    print(f"\n{about['device']}, driver {about['driver']}; {os.path.relpath(folder, ROOT)}\n")
    print(table(("step", "", "lines"), [row(record) for record in records]))
    if never := [f"- {missing}" for step in STEPS for missing in never_ran(folder, step, STEPS[step].TITLE)]:
        print("\n".join(["\nWhat no record there has run:", *never]))
    return 0 if all(record.proven for record in records) else 1


def row(record):
    counts = ", ".join(f"{count} {word}" for word, count in record.counts().items())
    words = ("ran", "FAILED") if record.about["dry_run"] else ("proven", "NOT proven")
    return f"{record.step} {record.title}", words[not record.proven], counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
