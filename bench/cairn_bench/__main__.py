"""Cairn's benchmarks. scripts/bench WHAT --help says what one measures, needs and writes, and how long it takes.

Results go to build/results: a CSV, and of a figure a picture. The end says where. With --record they go to bench/results,
over the committed ones; nothing else writes there but `results`, which makes the tables of the pages.
What is missing is installed and built first: a few CPU minutes the first
time, and the download of torch for what uses it.
Exit status: 0 measured, 2 invalid arguments or nothing to be measured here, 130 interrupted.
"""

import argparse
import os
import sys

from . import compare, figures, memory, micro, pipeline, profiled, results, roofline, training, tuner
from .engine import measure as engine
from .python import fall_back, unfenced
from .python import run as python
from .reconfigure import groups
from .reconfigure import measure as reconfigure
from .reconfigure import overhead as records
from .shared import filesystems
from .shared.options import add_command, check

WHAT = {
    "roofline": (roofline, "saves and restores beside fio on the same disk"),
    "micro": (micro, "small operations, each beside a peer that does the same work"),
    "memory": (memory, "the root in memory beside a plain copy, and while the disk hangs"),
    "python": (python, "the Python API beside torch.save, safetensors, DCP, torchsnapshot and others"),
    "pipeline": (pipeline, "what pauses of copies gain in a pipeline whose sends share the link"),
    "training": (training, "what saving costs real training on the CPU"),
    "profiled": (profiled, "training beside saves, with the budget from a profile and with the default one"),
    "tuner": (tuner, "what `cairn tune` chooses and predicts, beside a sweep"),
    "fall-back": (fall_back, "what a group pays to fall back over a damaged checkpoint"),
    "unfenced": (unfenced, "what it costs to find tensors that are overwritten without a fence"),
    "reconfigure": (reconfigure, "a job's change of layout beside DCP's own files and one central rank"),
    "pccheck": (engine, "the strategy pccheck beside PCcheck's own engine"),
    "groups": (groups, "a job's iterations on DT-FM's networks beside what its cost model says"),
    "records": (records, "what it costs an iteration to record a pipeline's instructions"),
    "compare": (compare, "a new run beside the committed one: better, worse, or not resolved"),
    "figure": (figures, "a figure of the evaluation: strategies in a training loop"),
    "results": (results, "the tables in README.md and in the pages of bench/results, made from the CSVs"),
}


def main(arguments):
    only_check = arguments[:1] == ["--check-arguments"]  # scripts/bench asks for this before it builds and installs.
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="what", metavar="WHAT")
    for name, (module, about) in WHAT.items():
        add_command(commands, name, about, module)
    args = parser.parse_args(arguments[only_check:])
    if args.what is None:
        parser.error(f"expected a WHAT, of {', '.join(WHAT)}")
    what, _ = WHAT[args.what]
    check(what, args)
    if only_check:
        return 0
    if "dir" not in args:
        return what.run(args)
    os.makedirs(args.dir, exist_ok=True)
    try:
        with filesystems.in_memory(args.dir, args.disk_in_memory) as args.dir:
            return what.run(args)
    except filesystems.Unavailable as reason:
        print(f"scripts/bench: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("scripts/bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
