#!/usr/bin/env python3
"""Trains, kills the training with SIGKILL at a random moment, resumes, and compares with an uninterrupted run.

`memory`: keeps every step in memory first, on a disk that is held to 100 MB/s, and is killed ten times. No resume may go
back by more than one step.

The last line is "demo: PASS" or "demo: FAIL". Installs and builds first what is missing: torch, unless
python3 has it, and about eight CPU minutes of compiling (an estimate). Then it takes two minutes.
`scripts/demo mirror` loses the disk instead, and goes on from a bucket: see its --help.
Exit status: 0 PASS, 1 FAIL, 2 invalid arguments. scripts/demo calls this; it needs only Python's standard library.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

KILLS = 10


class Training:
    """One run of cairn_train, and its output so far."""

    def __init__(self, command, environment=None):
        self.losses = {}  # By step, as printed: nine digits distinguish any two floats.
        self.durable = []
        self.resumed_from = None
        self.first_durable = threading.Event()
        self.changed = threading.Condition()
        self.ended = False
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            print("  " + line, end="", flush=True)
            if match := re.match(r"step=(\d+) loss=(\S+)", line):
                with self.changed:
                    self.losses[int(match[1])] = match[2]
                    self.changed.notify_all()
            elif match := re.match(r"durable step=(\d+)", line):
                self.durable.append(int(match[1]))
                self.first_durable.set()
            elif match := re.match(r"resumed step=(\d+)", line):
                self.resumed_from = int(match[1])
        self.first_durable.set()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def await_steps(self, number):
        """Waits until it has done so many steps, or has ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended or len(self.losses) >= number)

    def finish(self):
        status = self.process.wait()
        self.reader.join()
        return status


def demand(condition, what):
    print(("ok    " if condition else "WRONG ") + what)
    return bool(condition)


def stall_line(report):
    steps = report["steps"]
    if not steps:  # The kill came between the last checkpoint and the end.
        return "no step was left"
    seconds = sum(step["seconds"] for step in steps)
    return (
        f"{len(steps)} steps in {seconds:.1f} s, stalled {report['stall_seconds']:.3f} s "
        f"({100 * report['stall_seconds'] / seconds:.2f} %) by {len(report['saves'])} saves of "
        f"{report['saves'][0]['bytes'] / 1e6:.0f} MB, loss {report['first_loss']:.4f} -> {report['last_loss']:.4f}"
    )


def kill_at_random(options, train, folder, per_step):
    """Kills a run at a random moment after its first durable save. If the run ended before, tries again earlier."""
    span = 0.7 * per_step * (options.steps - options.every)
    for _ in range(3):
        run = Training(train("killed"))
        run.first_durable.wait()
        delay = random.uniform(0, span)
        try:
            run.process.wait(delay)
            ended = True
        except subprocess.TimeoutExpired:
            run.process.kill()
            ended = False
        run.finish()
        if not ended:
            print(f"killed {delay:.3f} s after the first durable save")
            return run
        span /= 3
        shutil.rmtree(folder / "killed")
    sys.exit("the run ended three times before it could be killed\ndemo: FAIL")


def demand_same_end(options, whole, resumed, reports, folders):
    """Whether the resumed run ends as the whole one: reports and folders are those of the whole one, then the other's."""
    after = range((resumed.resumed_from or 0) + 1, options.steps + 1)
    good = demand(
        set(resumed.losses) == set(after) and all(whole.losses[step] == resumed.losses[step] for step in after),
        f"{len(after)} losses after the resume point are identical, the last {whole.losses[options.steps]}",
    )
    digests = [report["weights_crc64"] for report in reports]
    good &= demand(digests[0] == digests[1], f"final weights: crc64 {digests[0]} and {digests[1]}")
    diff = subprocess.run(
        [options.bin / "cairn", "diff", *(folder / f"step-{options.steps:020d}" for folder in folders)],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return good & demand(
        diff.returncode == 0,
        "final checkpoints (weights, optimizer, generators, position): cairn diff finds no difference",
    )


def compare(options, folder, train):
    print("== uninterrupted", flush=True)
    whole = Training(train("whole"))
    if whole.finish() != 0:
        return demand(False, "the uninterrupted run succeeds")
    report = json.loads((folder / "whole.json").read_text())

    print("== to be killed", flush=True)
    times = sorted(step["seconds"] for step in report["steps"])
    killed = kill_at_random(options, train, folder, times[len(times) // 2])
    last = max(killed.losses, default=0)
    started = [step for step in range(options.every, last + 1, options.every)]
    print(
        f"at the kill: step {last} done, durable {killed.durable}, in flight {sorted(set(started) - set(killed.durable))}"
    )

    print("== resumed", flush=True)
    resumed = Training(train("killed", "--resume"))
    if resumed.finish() != 0:
        return demand(False, "the resumed run succeeds")
    resumed_report = json.loads((folder / "killed.json").read_text())

    print("== compared")
    print("uninterrupted: " + stall_line(report))
    print("resumed:       " + stall_line(resumed_report))
    start = resumed.resumed_from or 0
    good = demand(
        start >= max(killed.durable), f"resumed from step {start}; step {max(killed.durable)} was reported durable"
    )
    good &= demand(
        all(whole.losses[step] == loss for step, loss in killed.losses.items()),
        f"{len(killed.losses)} losses before the kill equal the uninterrupted run's",
    )
    return good & demand_same_end(
        options, whole, resumed, (report, resumed_report), (folder / "whole", folder / "killed")
    )


def kill_often(options, folder, train):
    """Ten kills, each after some steps more."""
    print("== uninterrupted, without saves", flush=True)
    whole = Training([*train(None), "--report", folder / "whole.json"])
    if whole.finish() != 0:
        return demand(False, "the uninterrupted run succeeds")
    report = json.loads((folder / "whole.json").read_text())
    step_seconds = statistics.median(step["seconds"] for step in report["steps"])

    library = folder / "slow_disk.so"
    source = pathlib.Path(__file__).with_name("slow_disk.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    slow = os.environ | {"LD_PRELOAD": library, "SLOW_DISK": "100e6"}
    command = [*train("killed", "--resume"), "--memory-root", options.memory_root]
    good = True
    done = 0
    for number in range(1, KILLS + 2):
        last = number > KILLS
        print("== the last run, to its end" if last else f"== run {number}, to be killed", flush=True)
        run = Training(command, slow)
        if not last:
            run.await_steps(random.randint(1, 3))
            time.sleep(random.uniform(0, step_seconds))
            run.process.kill()
        status = run.finish()
        if last:
            good &= demand(status == 0, "the last run succeeds")
        start = run.resumed_from or 0
        lost = max(0, done - start)
        good &= demand(
            lost <= 1, f"resumed from step {start}: of {done} steps that were done {lost} had to be repeated"
        )
        good &= demand(
            all(whole.losses[step] == loss for step, loss in run.losses.items()),
            f"{len(run.losses)} losses are those of the uninterrupted run",
        )
        done = max(run.losses, default=start)
    final = json.loads((folder / "killed.json").read_text())
    saves = final["checkpointer"]
    print(f"the last run kept {saves['saves_kept']} saves, of which the disk got {saves['saves_durable']}")
    return good & demand(
        report["weights_crc64"] == final["weights_crc64"],
        f"final weights: crc64 {report['weights_crc64']} and {final['weights_crc64']}",
    )


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__, formatter_class=raw)
    parser.add_argument("what", nargs="?", choices=("disk", "memory"), default="disk", help="see above; default: disk")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help="of training; default: 24, with memory 45")
    parser.add_argument("--every", type=int, help="steps between two saves; default: 2, with memory 1")
    parser.add_argument("--memory-root", default="/dev/shm", help="of memory: a folder on tmpfs; default: /dev/shm")
    parser.add_argument(
        "--dir", type=pathlib.Path, default=pathlib.Path("build"), help="folder with 6 GB of free space; default: build"
    )
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[], help="more arguments for cairn_train")
    options = parser.parse_args()
    if options.check_arguments:
        return 0
    in_memory = options.what == "memory"
    options.steps = options.steps or (45 if in_memory else 24)
    options.every = options.every or (1 if in_memory else 2)

    folder = pathlib.Path(tempfile.mkdtemp(prefix="demo-", dir=options.dir))

    def train(name, *more):
        saves = ["--checkpoint-dir", folder / name, "--report", folder / f"{name}.json"] if name else []
        return [
            options.bin / "cairn_train",
            "--model",
            "vgg16",
            "--data",
            "digits",
            "--optimizer",
            "sgd",
            "--steps",
            str(options.steps),
            "--every",
            str(options.every),
            "--in-flight",
            "2",
            "--keep",
            "1",
            *saves,
            *options.train_args,
            *more,
        ]

    try:
        good = (kill_often if in_memory else compare)(options, folder, train)
    finally:
        shutil.rmtree(folder)
    print("demo: PASS" if good else "demo: FAIL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
