"""X: experiments. What the design of the GPU's path rests on, and how a captured GB's price comes about, in minutes."""

import os
import shutil
import statistics

from ..shared.filesystems import MEMORY
from ..shared.report import interval
from . import correct, cost
from .context import Failed
from .programs.ways import KINDS, STAGED, STRIDED_BLOCKS, THEN

TITLE = "experiments"
SLOWDOWN = 1.01  # Of matrix products beside copies.
STAGED_IDLE = 3  # Milliseconds for 3.2 GB, on an idle GPU.
LONGEST_LAUNCH = 200  # Microseconds, of another thread.
# What a lane may have outstanding: 256, a batch more, and its event (src/device/cuda_device.cc).
OUTSTANDING = 256 + 3 * 128 + 1
MORE = 4096  # Than any queue takes.
SMALL = ("--chunk", 64 << 10, "--products", 4, "--side", 64, "--rounds", 2)
FEW_BLOCKS, BLOCKS = 16, 64
GB = 1e9
# Of training that saves into memory, so that no disk holds it up: arguments, and how often it saves.
SAVES = {
    "pool of the state": ("--system", "cairn"),
    "staging": ("--system", "cairn", "--pool", 1 << 30, "--staging"),
    "checksums by the GPU": ("--system", "cairn", "--gpu-checksums"),
}
STATE = 3.2  # GB
TURNS = {
    1: ("--steps", 3, "--turns", 10, "--step-seconds", 0.5),
    10: ("--steps", 10, "--turns", 5, "--step-seconds", 0.2),
}
SHORT_TURNS = {
    1: ("--steps", 2, "--turns", 6, "--step-seconds", 0.5),
    10: ("--steps", 10, "--turns", 3, "--step-seconds", 0.2),
}


def run(context, record):
    if context.no_torch:
        record.not_run("every experiment", context.no_torch)
        return
    # A dry run leaves out the same with one connection, and what step C runs.
    parts = context.sized(
        (ends, ends_by_one_connection, launch_queue, staging, blocks, torn_and_large, saves),
        (ends, launch_queue, staging, blocks, saves),
    )
    for part in parts:
        try:
            part(context, record)
        except Failed as failed:
            record.require(f"{part.__name__.replace('_', ' ')}: measured", False, str(failed))


def asked(context, what, *words, limit, env=None, expected):
    """The lines of programs/beside.py, by their way. Failed if it leaves one out."""
    library = context.program("libbench_beside.so")
    words = ("--library", library, "--what", what, *words)
    lines = context.worker("beside", *map(str, words), limit=limit, env=context.double | (env or {}))
    found = {way: [line for line in lines if line["way"] == way] for way in expected}
    if missing := [str(way) for way, of in found.items() if not of]:
        raise Failed(f"nothing was said of {', '.join(missing)}")
    return found


def prices(lines):
    """Milliseconds that a GB takes from the products that it is copied beside, of each round."""
    within = [line["bytes"] / GB * min(1, line["beside"] / line["copied"]) for line in lines]
    return [1e3 * (line["beside"] - line["alone"]) / copied for line, copied in zip(lines, within)]


def price(record, title, lines, goal=None):
    """`goal`: milliseconds a GB; then the products' slowdown is judged, too."""
    slower = [line["beside"] / line["alone"] for line in lines]
    if goal is None:
        told = f"{statistics.median(prices(lines)):.3g} ms a GB; products {statistics.median(slower):.3f} of alone"
        record.fact(title, told, prices(lines))
    else:
        record.judge(f"{title}: time of the products a copied GB", prices(lines), goal, unit=" ms")
        record.judge(f"{title}: products beside, of alone", slower, SLOWDOWN)


def answer(record, question, more):
    """Yes if the values are above zero, no if they are below."""
    median, low, high = interval(more)
    found = f"{median:.3g} [{low:.3g}, {high:.3g}], n = {len(more)}"
    if low <= 0 <= high:
        record.not_resolved(question, found)
    else:
        record.fact(question, f"{'yes' if low > 0 else 'no'}: {found}", more)


def differences(more, less):
    return [one - other for one, other in zip(more, less)]


def ends_by_one_connection(context, record):
    """As Megatron sets it."""
    ends(context, record, "CUDA_DEVICE_MAX_CONNECTIONS=1", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})


def ends(context, record, title="ends of copies", env=None):
    """What tells of a copy's end: nothing, events, host functions, or a thread that waits for an event, as Cairn does."""
    found = asked(context, "to-host", *context.sized((), SMALL), *context.sized((), ("--count", 8)), limit=90, env=env,
                  expected=THEN)  # fmt: skip
    for then, lines in found.items():
        price(record, f"{title}, {then}", lines, cost.GPU_TIME if then == "threads" else None)
    more = differences(prices(found["host functions"]), prices(found["threads"]))
    answer(record, f"{title}: a host function costs the products more than a thread that waits, ms a GB", more)


def launch_queue(context, record):
    """How much a stream takes that stands still, and what another thread's launches then take."""
    counts = ("--count", OUTSTANDING, "--more", MORE)
    found = asked(context, "queue", *counts, "--chunk", 64 << 10, limit=60, expected=KINDS)
    for kind in KINDS[:-1]:  # Cairn enqueues no host function.
        line = found[kind][0]
        title = f"a stream that stands still takes {OUTSTANDING} {kind}"
        enough = line["taken"] >= OUTSTANDING
        record.require(title, enough, f"{line['taken']}" if enough else f"a call blocked after {line['taken']}")
        record.most(f"{title}: another thread's longest launch", 1e6 * line["longest"], LONGEST_LAUNCH, " µs")
    for kind, (_, line) in found.items():
        where = f"after {line['taken']}" if line["taken"] < MORE else f"not after {line['taken']}"
        told = f"{where}; another thread's longest launch {1e6 * line['longest']:.0f} µs"
        record.fact(f"a call blocks that gives {kind} to a stream that stands still", told)


def staging(context, record):
    words = context.sized(("--count", 381, "--rounds", 7), (*SMALL, "--count", 40))
    found = asked(context, "staging", *words, limit=90, expected=STAGED)
    for way, lines in found.items():
        idle = [1e3 * line["idle"] for line in lines]
        title = f"staging of {lines[0]['bytes'] / GB:.1f} GB, {way}"
        if way == "batches":  # Cairn's.
            record.judge(f"{title}, on an idle GPU", idle, STAGED_IDLE, unit=" ms")
        else:
            record.fact(f"{title}, on an idle GPU", f"{statistics.median(idle):.2f} ms", idle)
        price(record, title, lines, cost.GPU_TIME_STAGED if way == "batches" else None)
    for more, less in (("chunks", "batches"), ("batches", "overlapping batches")):
        question = f"staging by {more} costs the products more than by {less}, ms a GB"
        answer(record, question, differences(prices(found[more]), prices(found[less])))


def blocks(context, record):
    """Of the kernel that copies strided tensors to the host."""
    words = context.sized(("--count", 200, "--rounds", 10), (*SMALL, "--count", 2))
    found = asked(context, "strided", *words, limit=90, expected=STRIDED_BLOCKS)
    rates = {way: [line["bytes"] / line["copied"] / GB for line in lines] for way, lines in found.items()}
    for way, lines in found.items():
        record.fact(f"strided copies by {way} blocks", f"{statistics.median(rates[way]):.1f} GB/s", rates[way])
        price(record, f"strided copies by {way} blocks, products", lines)
    enough = [few / many - 0.9 for few, many in zip(rates[FEW_BLOCKS], rates[BLOCKS])]
    answer(record, f"{FEW_BLOCKS} blocks copy at more than 0.9 of the rate of {BLOCKS}, of it", enough)
    less = differences(prices(found[BLOCKS]), prices(found[FEW_BLOCKS]))
    answer(record, f"{BLOCKS} blocks cost the products more than {FEW_BLOCKS}, ms a GB", less)


def torn_and_large(context, record):
    """Of step C what is most likely to fail: saves that are overwritten, and tensors larger than an allocator's handle."""
    correct.torn(context, record)
    for allocator, env in context.sized(correct.ALLOCATORS, {"default": {}}).items():
        correct.round_trips(context, record, f"{allocator} allocator", "default", env, states=("large",))


def saves(context, record):
    """Training that saves each step, and every tenth, into memory: no disk holds anything up."""
    if not context.dry and (free := shutil.disk_usage(MEMORY).free) < 4 * STATE * GB:
        record.not_run("saves into memory", f"{MEMORY} has {free / GB:.1f} GB free, and this takes {4 * STATE:.1f}")
        return
    for every, turns in context.sized(TURNS, TURNS, SHORT_TURNS).items():
        for way, words in context.sized(SAVES, {"staging": SAVES["staging"]} if every == 1 else {}).items():
            title = f"saves into memory, {way}, every {every}"
            small = ("--step-seconds", 0, *cost.SMALL)
            words = (*words, "--every", every, *context.sized((*turns, "--gigabytes", STATE), small))
            try:
                trained(context, record, title, words, every, judged="checksums" not in way)
            except Failed as failed:
                record.require(title, False, str(failed))


def trained(context, record, title, words, every, judged):
    root = os.path.join(context.sized(MEMORY, context.directory), "prove-gpu-saves")
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    try:
        lines = context.worker("training", "--root", root, *map(str, words), limit=90)
    finally:
        shutil.rmtree(root)
    turned = [line for line in lines if line["what"] == "turn"]
    sizes = [line["bytes"] for line in lines if line["what"] == "training"]
    if not turned or not sizes:
        raise Failed("nothing was said of its steps")
    cost.slowdown(record, title, turned, None, held_up=False)
    cost.gpu_time(record, title, turned, every, sizes[0], judged)
