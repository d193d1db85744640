"""The options that all figures share."""

import os

from ..shared import RESULTS, ROOT
from ..shared.options import add_directory, add_record, add_repetitions, numbers, positive, some_of, whole

STRATEGIES = ("sync", "torch-save", "checkfreq", "gpm", "gemini", "pccheck", "cairn")
# Also to be had, by name: what it calls durable is lost with the machine.
IN_MEMORY = "cairn-memory"
# As tables name them, in their order. Pictures leave out what is in brackets.
LABELS = {"cairn": "Cairn", IN_MEMORY: "Cairn in memory (kept: survives the process, not the machine)",
          "checkfreq": "CheckFreq's pipeline (no GPU snapshot, no serialisation, no tuner)",
          "pccheck": "PCcheck", "gpm": "GPM", "sync": "plain write + fsync",
          "torch-save": "torch.save + fsync", "gemini": "Gemini (its peer shares the two cores)", "none": "no checkpoints"}  # fmt: skip
MODELS = ("vgg16", "transformer-xl", "bert", "opt-1.3b")
# Checkpoints in flight, where the work that a failure takes is counted: if the disk keeps up none overlap, and if not,
# a second one waits and grows older (PCcheck's artifact has 4, and 2 for OPT-1.3B).
IN_FLIGHT = 1


def add_emulation(parser, repetitions=1, dilation=4, disk=0):
    """What every figure has: where, how often, and what machine is emulated. Several dilations: each point at each."""
    add_directory(parser)
    add_repetitions(parser, repetitions)
    about = f"emulated disk; default: {disk:g}" if disk else "emulated disk; default: none"
    parser.add_argument("--disk-bytes-per-second", type=positive(whole), default=disk, help=about)
    parser.add_argument("--pcie-bytes-per-second", type=positive(float), default=25e9, help="emulated link to the host")
    several = isinstance(dilation, list)
    usual = ",".join(map(str, dilation)) if several else dilation
    about = f"times that all takes longer{', by comma: each point at each' if several else ''}; default: {usual}"
    parser.add_argument("--dilation", type=numbers(least=1) if several else positive(float), help=about)
    parser.set_defaults(usual_dilation=dilation, device="emulated")


def add_output(parser):
    add_record(parser)
    parser.add_argument("--output", help="another FOLDER/NAME, without .csv and .png; default: figure-NAME")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw what is in the CSV")


def add_common(parser, repetitions=1, dilation=4):
    add_emulation(parser, repetitions, dilation)
    parser.add_argument("--disk", choices=["machine", "pd-ssd"], default="machine", help="pd-ssd: a cgroup's 480 MB/s")
    parser.add_argument("--device", choices=["emulated", "cuda"], default="emulated", help="cuda: in real time")
    about = "products: of matrices, by libtorch, on the GPU with --device cuda; default: forward and backward only wait"
    parser.add_argument("--compute", choices=["paced", "products"], default="paced", help=about)


def add_strategies(parser, known=STRATEGIES, default=None):
    parser.add_argument("--strategies", type=some_of(known), default=list(default or known), help="by comma")


def add_intervals(parser, default):
    parser.add_argument("--intervals", type=numbers(least=1), default=default, help="iterations, by comma")


def add_scale(parser, default, what="state, memory and time"):
    parser.add_argument("--scale", type=positive(float), default=default, help=f"of {what}; default: {default:g}")


def add_in_flight(parser, default=IN_FLIGHT):
    about = f"checkpoints in flight, of strategies that can have several; default: {default}"
    parser.add_argument("--in-flight", type=positive(int), default=default, help=about)


def settle(args):
    """Fills in what depends on other options."""
    folder, name = os.path.split(args.output or f"figure-{args.figure}")
    if not args.output or os.path.abspath(folder) == RESULTS:  # The committed results are written with --record alone.
        args.output = os.path.join(args.folder, name)
    elif args.folder == RESULTS:
        args.error(f"--record: expected an --output in {os.path.relpath(RESULTS, ROOT)}, found {args.output}")
    if "dilation" not in args:
        return  # A figure without bench_training.
    own = [1] if isinstance(args.usual_dilation, list) else 1
    if args.device == "cuda" and args.dilation not in (None, own):
        args.error(f"--dilation {args.dilation}: expected 1, as a GPU's link keeps its rate")
    args.dilation = args.dilation or (own if args.device == "cuda" else args.usual_dilation)
