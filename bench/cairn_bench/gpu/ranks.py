"""G: ranks of the libtorch trainer communicate by NCCL, one with itself and two with each other, and train and save.

A dry run does the same on CPUs by gloo, which cannot send to itself.
"""

import os
import subprocess

from ..shared.ranks import run_ranks
from .context import Failed, last_line

TITLE = "ranks"
LIMIT = 120  # Seconds of a job.


def gpus():
    found = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    return len(found.stdout.splitlines()) if found.returncode == 0 else 0


def job(context, world, *words):
    """Runs all ranks; None, or why the job failed: the last line of the first rank that did."""
    backend = context.sized("nccl", "gloo")
    command = [context.program("cairn_train"), "--device", context.device, "--backend", backend, *words]
    try:
        ended = run_ranks(command, world, LIMIT)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT} s"
    failed = (f"rank {rank}, exit {status}: {last_line(errors or out)}"
              for rank, (status, out, errors) in enumerate(ended) if status != 0)  # fmt: skip
    return next(failed, None)


def require(record, what, why):
    record.require(what, why is None, why or "as expected")


def run(context, record):
    try:
        folder = os.path.dirname(context.program("cairn_train"))
    except Failed as failed:
        record.not_run("ranks", f"{failed}: it needs a Python with torch")
        return
    if not context.dry and not os.path.exists(os.path.join(folder, "libcairn_train_nccl.so")):
        record.not_run("NCCL", "libcairn_train_nccl.so is not built: no headers of NCCL and CUDA were found")
        return
    name = context.sized("NCCL", "gloo")
    require(record, f"{name}, one rank: sums, broadcasts, sends to itself", job(context, 1, "--prove-backend"))
    if not context.dry and gpus() < 2:
        record.not_run("NCCL between two GPUs", "this machine has one")
        return
    require(record, f"{name}, two ranks: sums, broadcasts, messages", job(context, 2, "--prove-backend"))
    root = context.folder("ranks")
    small = context.sized(("--steps", 60), ("--steps", 12, "--size", "width=2", "--batch", 4, "--threads", 1))
    train = (*small, "--every", 4, "--checkpoint-dir", root, "--host-memory", "64MiB")
    require(record, f"{name}, two ranks train and save together", job(context, 2, *train))
    status, _, errors = context.run([context.program("cairn"), "verify", root], LIMIT)
    record.require("their checkpoint verifies", status == 0, last_line(errors) if status else "cairn verify")
