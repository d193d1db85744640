"""Kills a training with SIGKILL at a random moment, resumes it, and compares it with a run that was never killed.

    python examples/kill_and_resume.py

The training is plain_pytorch.py, which lies beside this file, with a save every 50 steps. Prints at which step it was
killed and from which checkpoint it resumed, and then "PASS" if all losses and the final weights are bit by bit those of
the uninterrupted run, else "FAIL". A kill after the last step leaves nothing to resume: then it tries again.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TRAINING = Path(__file__).with_name("plain_pytorch.py")
STEPS, EVERY = 1000, 50


def run(folder: Path, kill_after: float | None = None) -> tuple[list[str], float, bool]:
    """What the training printed, the seconds from its first line on, and whether it was killed."""
    command = [sys.executable, TRAINING, folder, "--steps", str(STEPS), "--every", str(EVERY)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    begin = time.monotonic()
    timer = threading.Timer(threading.TIMEOUT_MAX if kill_after is None else kill_after, process.kill)
    timer.start()
    lines += process.stdout.readlines()
    timer.cancel()
    return [line for line in lines if line.endswith("\n")], time.monotonic() - begin, process.wait() != 0


def losses(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("step=")]


def main() -> bool:
    with tempfile.TemporaryDirectory(prefix="cairn-") as temporary:
        folder = Path(temporary)
        whole, seconds, failed = run(folder / "whole")
        killed, attempt, was_killed = whole, 0, False
        while not failed and (not was_killed or len(losses(killed)) == STEPS):  # Again, if it came too late.
            attempt += 1
            killed, _, was_killed = run(folder / f"killed-{attempt}", random.uniform(0, seconds / attempt))
        if failed:
            return False
        resumed, _, failed = run(folder / f"killed-{attempt}")
    before, after = losses(killed), losses(resumed)
    print(f"killed after {len(before)} steps, with a save every {EVERY}; {resumed[0].strip()}")
    same_before = before == whole[1 : len(before) + 1]
    same_after = resumed[1:] == whole[-len(resumed[1:]) :]
    print(f"{len(before)} losses before the kill are {'the same' if same_before else 'DIFFERENT'}")
    print(f"{len(after)} losses after it and the weights are {'the same' if same_after else 'DIFFERENT'}")
    return same_before and same_after and not failed


if __name__ == "__main__":
    passed = main()
    print("PASS" if passed else "FAIL")
    sys.exit(0 if passed else 1)
