"""Kills a training with SIGKILL at a random moment, resumes it, and compares it with a run that was never killed.

    python examples/kill_and_resume.py

The training is plain_pytorch.py, which lies beside this file. Prints at which step it was killed and from which
checkpoint it resumed, and then "PASS" if all losses and the final weights are bit by bit those of the uninterrupted
run, else "FAIL".
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


def run(folder: Path, kill_after: float | None = None) -> tuple[list[str], float, bool]:
    """What the training printed, the seconds from its first line on, and whether it was killed."""
    command = [sys.executable, TRAINING, folder, "--steps", "1000", "--every", "50"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    begin = time.monotonic()
    timer = threading.Timer(threading.TIMEOUT_MAX if kill_after is None else kill_after, process.kill)
    timer.start()
    lines += process.stdout.readlines()
    timer.cancel()
    return [line for line in lines if line.endswith("\n")], time.monotonic() - begin, process.wait() != 0


def main() -> bool:
    with tempfile.TemporaryDirectory(prefix="cairn-") as temporary:
        folder = Path(temporary)
        whole, seconds, failed = run(folder / "whole")
        was_killed, attempt = False, 0
        while not (failed or was_killed):  # Again, if the training ended before it could be killed.
            attempt += 1
            killed, _, was_killed = run(folder / f"killed-{attempt}", random.uniform(0, seconds / attempt))
        if failed:
            return False
        resumed, _, failed = run(folder / f"killed-{attempt}")
    print(f"killed after {len(killed) - 1} steps; {resumed[0].strip()}")
    same_before = killed[1:] == whole[1 : len(killed)]
    same_after = resumed[1:] == whole[-len(resumed[1:]) :]
    print(f"{len(killed) - 1} losses before the kill are {'the same' if same_before else 'DIFFERENT'}")
    print(f"{len(resumed) - 2} losses after it and the weights are {'the same' if same_after else 'DIFFERENT'}")
    return same_before and same_after and not failed


if __name__ == "__main__":
    passed = main()
    print("PASS" if passed else "FAIL")
    sys.exit(0 if passed else 1)
