"""E: the libtorch trainer on the GPU is killed at a random moment, resumed, and compared with one that never was."""

import os
import sys

from ..shared import ROOT
from .context import Failed, last_line

TITLE = "killed and resumed"


def run(context, record):
    try:
        context.program("cairn_train")
    except Failed as failed:
        record.not_run("the trainer", f"{failed}: it needs a Python with torch")
        return
    small = context.sized((), ("--size", "width=4", "--batch", "4", "--threads", "1"))
    for number in range(1, context.sized(3, 1, 2) + 1):
        words = [sys.executable, "-B", os.path.join(ROOT, "scripts/kill_and_resume.py")]
        words += ["--bin", os.path.join(context.build, "bin"), "--dir", context.folder("trainer")]
        words += ["--steps", context.sized(60, 24), "--every", 2, "--train-args", "--device", context.device, *small]
        title = f"kill {number}"
        try:
            status, out, errors = context.run(words, 120)
        except Failed as failed:
            record.require(title, False, str(failed))
            continue
        for line in out.splitlines():
            word, _, found = line.partition(" ")
            if word in ("ok", "WRONG"):
                record.require(f"{title}: {found.strip()}", word == "ok", "compared")
            elif line.startswith("killed "):
                record.fact(title, line)
        passed = status == 0 and "demo: PASS" in out
        record.require(f"{title}: bit-exact", passed, "demo: PASS" if passed else last_line(errors or out))
