"""Measures what it costs to find tensors that are overwritten without a fence: the time that the training thread spends
in `save` and in the fence after it, with unfenced_writes="fail" and "ignore".

Two Checkpointers in one process save the same tensors (--tensors of 64 KiB and 4 bytes each, above what `save` copies)
in pairs, in turns; before each save the caches are swept, as a training step does. The cost is the median of the
pairs' differences. The goal is 0.2 ms for 1,000 tensors. Needs torch, and 7 * tensors * 64 KiB of disk. Takes a minute (an estimate).
"""

import os
import statistics
import tempfile
import time

from ..shared.options import add_directory, add_repetitions, positive

GOAL = 0.2e-3  # Seconds for 1,000 tensors.
SWEPT = 64 << 20  # Bytes.
CAPTURED = 1  # EventKind::kSaveCaptured.


def add_arguments(parser):
    add_directory(parser)
    add_repetitions(parser, 41, "--pairs")
    parser.add_argument("--tensors", type=positive(int), default=1000, help="default: 1000")


def measure(checkpointer, step, tree, sweep):
    """Seconds in `save`, and in the fence once the save is captured: the fence checks then, and waits for nothing."""
    sweep()
    checkpointer._engine.core.begin_step()  # Keeps the watching thread from checking before the fence does.
    begun = time.perf_counter()
    save = checkpointer.save(step, tree)
    saved = time.perf_counter() - begun
    checkpointer._engine.core.begin_step()
    while not any(kind == CAPTURED for kind, *_ in checkpointer._engine.core.events.take()):
        time.sleep(0.001)
    sweep()
    begun = time.perf_counter()
    checkpointer.fence()
    fenced = time.perf_counter() - begun
    save.wait()
    return saved, fenced


def run(args):
    import cairn
    import torch

    tree = {"model": {f"layer{i}.weight": torch.ones(16_385) for i in range(args.tensors)}}
    swept = torch.ones(SWEPT, dtype=torch.uint8)
    differences, base = [], []
    with tempfile.TemporaryDirectory(prefix="cairn-unfenced-", dir=args.dir) as folder:
        made = {
            how: cairn.Checkpointer(os.path.join(folder, how), keep_last=1, host_memory="256MiB", unfenced_writes=how)
            for how in ("fail", "ignore")
        }
        for pair in range(-2, args.pairs):
            seconds = {}
            for how in list(made)[:: 1 if pair % 2 else -1]:
                seconds[how] = measure(made[how], pair + 3, tree, lambda: swept.add_(1))
            if pair >= 0:
                differences.append(sum(seconds["fail"]) - sum(seconds["ignore"]))
                base.append(sum(seconds["ignore"]))
        for one in made.values():
            one.close()
    cost, goal = statistics.median(differences), GOAL * args.tensors / 1000
    ratio = 1 + cost / statistics.median(base)
    print(
        f"{args.tensors} tensors, {args.pairs} pairs: save and fence cost {cost * 1e3:.3f} ms more with the check "
        f"({ratio:.2f} times {statistics.median(base) * 1e3:.2f} ms), goal {goal * 1e3:.1f} ms: "
        f"{'met' if cost <= goal else 'missed'}"
    )
