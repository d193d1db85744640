#!/usr/bin/env python3
"""Trains with a mirror in a bucket, loses the disk, goes on from the bucket, and compares with an uninterrupted run.

Starts an S3 server on this machine (rclone serve s3). The training stands still until the bucket has its first checkpoint,
goes on for some steps, is killed with SIGKILL, and its folder is removed. Then it resumes in an empty folder. The last
line is "demo: PASS" or "demo: FAIL". Installs and builds first what is missing, as scripts/demo does, and rclone. Then it
takes a minute.
Exit status: 0 PASS, 1 FAIL, 2 invalid arguments. `scripts/demo mirror` calls this; it needs only Python's standard library.
"""

import argparse
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from kill_and_resume import Training, demand, demand_same_end, stall_line

KEY, SECRET = "demo", "demo-secret"
TARGET = "s3://bucket/run"
PATIENCE = 60  # Seconds, for what takes a second.


def until(condition, what):
    """Looks ten times a second."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            sys.exit(f"{what}: not after {PATIENCE} s\ndemo: FAIL")
        time.sleep(0.1)
    return found


class Server:
    """An S3 server with an empty bucket."""

    def __init__(self, folder, tools):
        (folder / "objects" / "bucket").mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        path = os.pathsep.join([str(tools), os.environ["PATH"]])
        rclone = shutil.which("rclone", path=path)
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(rclone, "serve", "s3", folder / "objects", "--addr", self.address),
                    *("--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", "--dir-cache-time", "0s"),
                ],
                stdout=log,
                stderr=log,
            )
        until(self.answers, "the S3 server answers")
        for name in [name for name in os.environ if name.startswith(("AWS_", "RCLONE_"))]:
            del os.environ[name]
        os.environ |= {
            "AWS_ENDPOINT_URL_S3": f"http://{self.address}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "PATH": path,
        }

    def answers(self):
        if self.process.poll() is not None:
            sys.exit(f"{self.log.read_text()}the S3 server has ended\ndemo: FAIL")
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return False
        return True

    def end(self):
        self.process.kill()
        self.process.wait()


def mirrored(root):
    """What the root's mirror says of itself: its record, and the steps that are in the bucket."""
    for path in root.glob(".mirrors/*.json"):
        record = json.loads(path.read_text())
        return record, [one["step"] for one in record["checkpoints"]]
    return None, []


def await_mirror(root):
    """Until the job's mirror has ended: on a busy machine it is left behind, and goes on."""
    record = mirrored(root)[0]
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(record["process"])
        select.select([process], [], [], 10 * PATIENCE)
        os.close(process)


def lose_the_disk(options, train, disk):
    """Kills a run in the middle, and removes its folder. Returns it, and the steps in the bucket."""
    run = Training(train("disk/run", "--mirror", TARGET))
    run.first_durable.wait()
    run.process.send_signal(signal.SIGSTOP)  # Whichever of the two is the faster on this machine.
    until(lambda: mirrored(disk / "run")[1], "the bucket has a checkpoint")
    last = max(run.losses, default=0)
    run.process.send_signal(signal.SIGCONT)
    until(
        lambda: max(run.losses, default=0) > last + options.every or run.process.poll() is not None, "training goes on"
    )
    record, there = mirrored(disk / "run")
    with open(os.pidfd_open(record["process"]), "rb", closefd=True) as mirror:
        run.process.kill()
        run.finish()
        shutil.rmtree(disk)
        select.select([mirror], [], [], PATIENCE)  # It finds that its root is gone, and ends.
    print(f"killed after step {max(run.losses)}, and its folder removed; in the bucket were steps {there}")
    return run, there


def compare(options, folder, train):
    print("== uninterrupted", flush=True)
    whole = Training(train("whole"))
    if whole.finish() != 0:
        return demand(False, "the uninterrupted run succeeds")
    report = json.loads((folder / "whole.json").read_text())

    print("== to lose its disk", flush=True)
    lost, there = lose_the_disk(options, train, folder / "disk")

    print("== resumed from the bucket", flush=True)
    resumed = Training(train("disk/run", "--mirror", TARGET, "--restore-from", TARGET, "--resume"))
    if resumed.finish() != 0:
        return demand(False, "the resumed run succeeds")
    resumed_report = json.loads((folder / "run.json").read_text())

    print("== compared")
    print("uninterrupted: " + stall_line(report))
    print("resumed:       " + stall_line(resumed_report))
    start = resumed.resumed_from or 0
    good = demand(start >= max(there), f"resumed from step {start}; step {max(there)} was said to be in the bucket")
    good &= demand(
        all(whole.losses[step] == loss for step, loss in lost.losses.items()),
        f"{len(lost.losses)} losses before the disk was lost equal the uninterrupted run's",
    )
    good &= demand_same_end(
        options, whole, resumed, (report, resumed_report), (folder / "whole", folder / "disk" / "run")
    )
    await_mirror(folder / "disk" / "run")
    good &= demand(options.steps in mirrored(folder / "disk" / "run")[1], "the last checkpoint is in the bucket, too")
    return good


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="scripts/demo mirror", description=__doc__, formatter_class=raw)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--tools", type=pathlib.Path, default=pathlib.Path(), help=argparse.SUPPRESS)
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=24, help="of training; default: 24")
    parser.add_argument("--every", type=int, default=2, help="steps between two saves; default: 2")
    parser.add_argument(
        "--dir", type=pathlib.Path, default=pathlib.Path("build"), help="folder with 1 GB of free space; default: build"
    )
    parser.add_argument("--train-args", nargs=argparse.REMAINDER, default=[], help="more arguments for cairn_train")
    options = parser.parse_args()
    if options.check_arguments:
        return 0

    folder = pathlib.Path(tempfile.mkdtemp(prefix="demo-", dir=options.dir))
    server = None

    def train(name, *more):
        return [
            options.bin / "cairn_train",
            *("--model", "vgg16", "--size", "width=16", "--data", "digits", "--optimizer", "sgd"),
            *("--steps", str(options.steps), "--every", str(options.every)),
            *("--in-flight", "2", "--keep", "1"),
            *("--checkpoint-dir", folder / name, "--report", folder / f"{pathlib.Path(name).name}.json"),
            *options.train_args,
            *more,
        ]

    try:
        server = Server(folder, options.tools)
        good = compare(options, folder, train)
    finally:
        if server is not None:
            server.end()
        shutil.rmtree(folder)
    print("demo: PASS" if good else "demo: FAIL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
