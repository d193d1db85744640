"""C: correctness from Python: each allocator and kind of stream, torch.compile, strange tensors, 1,000 fenced saves."""

import functools
import itertools
import os
import re

from ..shared import ROOT
from .context import Failed, last_line

TITLE = "correctness from Python"
ALLOCATORS = {
    "default": {},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
STREAMS = ("default", "side", "graph")
# Of tests/python: those that are parametrised over devices.
SUITES = ("test_checkpointer.py", "test_protect.py", "test_unfenced.py", "test_partial_restore.py", "test_dcp.py")
SUITES_DRY = ("test_partial_restore.py::test_new_tensors_are_made_on_the_device_that_is_asked_for",)
STATES = ("channels_last", "tied", "many_small", "dtypes", "odd_offsets", "large")  # Of programs/states.py.
WAYS = ("pool", "small", "staged", "unfenced", "found")  # Of programs/torn.py.
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")


def run(context, record):
    if context.no_torch:
        record.not_run("everything from Python", context.no_torch)
        return
    # What takes longest begins first.
    parts = [suites, torn]
    parts += [functools.partial(compiled, mode=mode) for mode in context.sized(MODES, ("eager",))]
    allocators, streams = context.sized((ALLOCATORS, STREAMS), ({"default": {}}, ("graph",)))
    for (allocator, env), how in itertools.product(allocators.items(), streams):
        parts.append(functools.partial(round_trips, title=f"{allocator} allocator, {how} stream", how=how, env=env))
    for how in context.sized(STREAMS[:2], ()):
        one = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        title = f"CUDA_DEVICE_MAX_CONNECTIONS=1, {how} stream"
        parts.append(functools.partial(round_trips, title=title, how=how, env=one))
    context.together([functools.partial(part, context, record) for part in parts])


def asked(context, record, title, name, *words, limit, env=None, key="mode", expected=()):
    """The program's lines; none, and a missed line of the record, if it failed, or did not print one line for each that
    is expected."""
    root = context.folder("-".join([name, *(word for word in re.split(r"\W+", title) if word)]))
    try:
        lines = context.worker(name, "--root", root, *words, limit=limit, env=env)
    except Failed as failed:
        record.require(title, False, str(failed))
        return []
    if missing := [value for value in expected if value not in [line[key] for line in lines]]:
        record.require(title, False, f"nothing was said of {', '.join(missing)}")
    return lines


def round_trips(context, record, title, how, env, states=STATES):
    words = ("--how", how, "--count", str(context.sized(100_000, 300, 20_000)), "--states", *states)
    lines = asked(context, record, title, "round_trip", *words, limit=180, env=env, key="state", expected=states)
    for line in lines:
        problems = [f"{line['wrong']} of {line['tensors']} tensors differ"] if line["wrong"] else []
        problems += [] if line["cleared"] else ["nothing was overwritten before the restore"]
        problems += [] if line["in_place"] else ["tensors were replaced, not filled in place"]
        problems += [] if line["refused"] else ["a save within a capture was not refused"]
        found = "; ".join(problems) or f"{line['tensors']:,} tensors, bit-exact, in place"
        record.require(f"{title}: {line['state'].replace('_', ' ')}", not problems, found)


def compiled(context, record, mode):
    title = f"torch.compile, {mode}: every checkpoint is of its step"
    words = ("--mode", mode, "--steps", str(context.sized(20, 3)))
    for line in asked(context, record, title, "compiled", *words, limit=240, expected=(mode,)):
        good = line["wrong"] == 0 and line["checkpoints"] > 0
        record.require(title, good, f"{line['checkpoints']} checkpoints, {line['wrong']} wrong")


def torn(context, record):
    words = context.sized((), ("--sets", "1", "--part", "0.01"))
    lines = asked(context, record, "fenced saves", "torn", *words, limit=480, key="way", expected=WAYS)
    for line in lines:
        if line["way"] == "found":
            # A busy CPU may capture it before it is overwritten.
            title = "a save that is overwritten without a fence fails by itself"
            record.require(title, line["found"], str(line["found"]), gpu_only=True)
            continue
        found = f"{line['torn']} of {line['saves']} torn, {line['staged']} staged"
        if line["way"] != "unfenced":
            record.require(f"overwritten right after the fence, {line['way']}: none torn", line["torn"] == 0, found)
            late = f"{line['late']} of {line['saves']}; every third has work of 5 ms before it"
            title = f"{line['way']}: calls that returned before their values were written, at least a quarter"
            record.require(title, 4 * line["late"] >= line["saves"], late, gpu_only=True)
            if line["way"] == "staged":
                record.require("each of these was staged", line["staged"] == line["saves"], found, gpu_only=True)
        elif line["torn"]:
            record.require("without the fence saves are torn, so the lines above prove something", True, found)
        else:
            record.not_resolved("without the fence saves are torn, so the lines above prove something", found)


def suites(context, record):
    """The Python suites that are parametrised over devices, on this one."""
    title = "Python's suites on this device: all pass, 0 skipped"
    files = [os.path.join(ROOT, "tests/python", name) for name in context.sized(SUITES, SUITES_DRY)]
    words = [context.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ROOT]
    if context.run([context.python, "-c", "import xdist"], 60)[0] == 0:
        words += ["-n", str(context.sized(4, 0))]
    status, out, errors = context.run([*words, "--devices", context.device, *files], 420)
    if "No module named" in errors and "pytest" in errors:
        record.not_run(title, last_line(errors))
        return
    last = last_line(out or errors)
    failed = "; ".join(line[:200] for line in out.splitlines() if line.startswith(("FAILED", "ERROR")))
    record.require(title, status == 0 and "skipped" not in last, last + (f": {failed}" if failed else ""))
