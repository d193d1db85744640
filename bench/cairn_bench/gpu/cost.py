"""D: what saves cost a training of 10 GB of AdamW state, beside DCP's asynchronous save and torch.save; and restores."""

import json
import statistics

from .context import Failed

TITLE = "cost"
SLOWDOWN = 1  # Per cent, with a save every 10 steps.
# Milliseconds of the GPU's time that a captured GB takes from the training.
GPU_TIME, GPU_TIME_STAGED = 0.5, 0.8
CAPTURED = 1.1  # Of the time that the link takes for a save's bytes.
STAGED_FENCE = 20e-3  # Seconds.
RESTORE = 0.9  # Of the slower of disk and link.
GB = 1e9
STATE = 10 * GB
POOL = 1 << 30
STEP, LONGEST_STEP = 0.4, 1.5  # Seconds.
SHORT_STEP, SHORT_TURN = 0.2, 10  # Seconds, and steps.
# Title, arguments, how often it saves, and the goal of its slowdown in per cent.
RUNS = (
    ("Cairn, pool of the state, every 10", ("--system", "cairn", "--idle", "3"), 10, SLOWDOWN),
    ("Cairn, staging, every 10", ("--system", "cairn", "--pool", POOL, "--staging", "--idle", "3"), 10, SLOWDOWN),
    ("Cairn, pool of 1 GiB, every 10", ("--system", "cairn", "--pool", POOL), 10, SLOWDOWN),
    ("DCP, asynchronous and pinned, every 10", ("--system", "dcp"), 10, None),
    ("torch.save, every 10", ("--system", "torch.save"), 10, None),
    ("Cairn, pool of the state, checksums by the GPU, every 10", ("--system", "cairn", "--gpu-checksums"), 10, None),
    ("Cairn, pool of the state, every step", ("--system", "cairn"), 1, None),
    ("Cairn, staging, every step", ("--system", "cairn", "--pool", POOL, "--staging"), 1, None),
    ("Cairn, pool of 1 GiB, every step", ("--system", "cairn", "--pool", POOL), 1, None),
)
DRY_RUNS = (RUNS[1], RUNS[3], RUNS[4])  # One of each system.
SHORT_RUNS = (RUNS[1], RUNS[0], RUNS[6], RUNS[5], RUNS[3], RUNS[4], RUNS[2])
SMALL = (
    "--gigabytes",
    "0.002",
    "--side",
    "64",
    "--tokens",
    "4",
    "--steps",
    "3",
    "--turns",
    "1",
    "--pool",
    str(64 << 20),
)


def run(context, record):
    if context.no_torch:
        record.not_run("everything from Python", context.no_torch)
        return
    rates = rates_of(context, record)
    write = rates["write, fresh file"]
    # A short run takes the state that the disk writes within its steps.
    state = context.sized(STATE, STATE, min(STATE, SHORT_TURN * SHORT_STEP / 1.3 * write))
    writing = state / write
    step = context.sized(min(LONGEST_STEP, max(STEP, 1.3 * writing / 10)), 0, SHORT_STEP)
    held_up = 10 * step < writing
    told = f"{writing:.1f} s for {state / GB:.1f} GB; 10 steps of the training take {10 * step:.1f} s"
    record.fact("a save's bytes take the disk", told)
    for title, words, every, goal in context.sized(RUNS, DRY_RUNS, SHORT_RUNS):
        turns = ("--steps", 20, "--turns", 3) if every > 1 else ("--steps", 5, "--turns", 1)
        short = ("--steps", SHORT_TURN, "--turns", 3 if goal is None else 5, "--gigabytes", state / GB)
        turns = context.sized(turns, SMALL, short)
        words = (*words, "--every", every, "--step-seconds", step, *turns)
        try:
            lines = context.worker("training", "--root", context.folder("cost"), *map(str, words), limit=180)
        except Failed as failed:
            record.require(title, False, str(failed))
            continue
        expected = {"training", "turn"} | ({"save", "restore"} if "--idle" in words else set())
        if missing := expected - {line["what"] for line in lines}:
            record.require(title, False, f"nothing was said of {', '.join(sorted(missing))}")
            continue
        turned = [line for line in lines if line["what"] == "turn"]
        slowdown(record, title, turned, goal, held_up)
        if "cairn" in words:
            size = next(line["bytes"] for line in lines if line["what"] == "training")
            gpu_time(record, title, turned, every, size, judged=goal is not None and not held_up)
        captures(record, title, [line for line in lines if line["what"] == "save"], rates)
        restores(record, title, lines, rates)
    context.folder("cost")


def rates_of(context, record):
    """What disk and link give, in bytes per second, as `cairn doctor` measures them."""
    words = ("--gpu-memory", context.sized("512MiB", "8MiB"), "--probe-time", context.sized("6s", "100ms", "2s"))
    command = [context.program("cairn"), "doctor", context.folder("doctor"), "--gpu", "--json", *words]
    status, out, errors = context.run(command, 120, context.double)
    if status != 0:
        raise Failed(f"cairn doctor: exit {status}: {errors.strip()[:200]}")
    found = {finding["name"]: finding["value"] for finding in json.loads(out)}
    names = ("write, fresh file", "read", "cuda:0 one copy to the host", "cuda:0 one copy from the host")
    for name in names:
        record.fact(name, f"{found[name] / GB:.2f} GB/s")
    return found


def percentile(values, part):
    return sorted(values)[round(part * (len(values) - 1))]


def slowdown(record, title, turns, goal, held_up):
    """How much longer a step takes on average with saves, of the steps without them just before."""
    quiet = [seconds for turn in turns for seconds in turn["quiet"]]
    busy = [seconds for turn in turns for seconds in turn["busy"]]
    told = (f"{name} p50 {1e3 * percentile(of, 0.5):.0f} ms, p99 {1e3 * percentile(of, 0.99):.0f} ms"
            for name, of in (("without saves", quiet), ("with", busy)))  # fmt: skip
    record.fact(f"{title}: a step", "; ".join(told))
    lost = [100 * (statistics.mean(turn["busy"]) / statistics.mean(turn["quiet"]) - 1) for turn in turns]
    if goal is None:
        record.fact(f"{title}: slowdown", f"{statistics.median(lost):.2f} %", lost)
    elif held_up:
        why = f"{statistics.median(lost):.2f} %, but the disk needs longer for a save than 10 steps take"
        record.not_resolved(f"{title}: slowdown", why, f"<= {goal} %")
    else:
        record.judge(f"{title}: slowdown", lost, goal, unit=" %")


def gpu_time(record, title, turns, every, size, judged):
    """What a captured GB takes from the training, whatever the state's size and the interval are."""
    name = f"{title}: time of the training a captured GB"
    lost = []
    for turn in turns:
        saves = len(range(0, len(turn["busy"]), every))
        quiet = statistics.mean(turn["quiet"]) * len(turn["busy"])
        lost.append(1e3 * (sum(turn["busy"]) - quiet) / (saves * size / GB))
    if judged:
        record.judge(name, lost, GPU_TIME_STAGED if "staging" in title else GPU_TIME, unit=" ms")
    else:
        record.fact(name, f"{statistics.median(lost):.3g} ms", lost)


def captures(record, title, saves, rates):
    if not saves:
        return
    record.fact(f"{title}: durable", f"{statistics.median(save['durable'] for save in saves):.2f} s after the call")
    if "staging" in title:
        staged = all(save["staged"] for save in saves)
        record.require(f"{title}: each save was staged", staged, f"{len(saves)} saves", gpu_only=True)
        record.judge(
            f"{title}: fence on an idle GPU", [1e3 * save["fenced"] for save in saves], 1e3 * STAGED_FENCE, unit=" ms"
        )
        return
    link = rates["cuda:0 one copy to the host"]
    ratios = [save["captured"] / (save["bytes"] / link) for save in saves]
    record.judge(f"{title}: captured, of the link's time for its bytes", ratios, CAPTURED)


def restores(record, title, lines, rates):
    found = [line["seconds"] for line in lines if line["what"] == "restore"]
    if not found:
        return
    slower = min(rates["read"], rates["cuda:0 one copy from the host"])
    size = next(line["bytes"] for line in lines if line["what"] == "training")
    ratios = [size / seconds / slower for seconds in found]
    record.judge(f"{title}: restore, of the slower of disk and link", ratios, RESTORE, more_is_better=True)
