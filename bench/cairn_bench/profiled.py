"""Training beside saves: with the budget that `cairn profile` and `cairn tune` find, and with the default one.

A loader-bound job (figures/training_job.py) uses all cores. `cairn tune` for a job whose cores are idle, as it takes a GPU's
to be (--training-cores 0), chooses interval and memory; so does `cairn tune --profile` after `cairn profile`. Then each
repetition is a job that saves nothing, one with the default choice, one with the profiled choice, and one with the
profiled threads and memory at the default interval, one after the other. Slowdowns are beside the job that saves nothing,
of the whole run after its first steps. Writes profiled.csv. About three minutes; 1 GB of disk and memory.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

from .figures import profile, training_job
from .shared import program
from .shared.files import begun
from .shared.options import add_directory, add_record, add_repetitions, positive
from .shared.report import Report

STATE = 128 << 20
SCALE = 10  # Of the job: a step of some 50 ms on two cores, in which the state can be copied.
WARM = 10
CORES = len(os.sched_getaffinity(0))


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 3)
    parser.add_argument("--steps", type=positive(int), default=160, help="of each run; default: 160")
    parser.add_argument("--slowdown", type=positive(float), default=0.01, help="that tune allows; default: 0.01")


def output_of(command):
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        sys.exit(f"scripts/bench profiled: {command[0]} {command[1]}: exit status {ran.returncode}")
    return ran.stdout


def job(data, *more):
    return profile.job_command("loader", data, "--scale", str(SCALE), *more)


def train(args, data, choice=None):
    """Seconds of each step."""
    command = job(data, "--steps", str(args.steps), "--warm-up", str(WARM))
    command += ["--state-bytes", str(STATE)]
    with tempfile.TemporaryDirectory(dir=args.dir) as root:
        if choice:
            command += ["--root", root, "--every", str(choice["interval"])]
            command += ["--host-memory", str(choice["host_memory_bytes"])]
            command += ["--worker-threads", str(choice.get("worker_threads", 0))]
        return json.loads(output_of(command).splitlines()[-1])


def choices(args, data, step_seconds):
    """What `cairn tune` chooses, without a profile and with one."""
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        out = os.path.join(folder, "profile.json")
        command = [program("cairn"), "profile", "--out", out, "--cores-only", "--iterations", "30"]
        output_of([*command, "--", *job(data)])
        tune = [program("cairn"), "tune", args.dir, "--json", "--state-bytes", str(STATE), "--mtbf", "1h"]
        tune += [
            "--slowdown",
            str(args.slowdown),
            "--iteration-time",
            f"{step_seconds:.6f}",
            "--memory",
            str(2 * STATE),
        ]
        default = json.loads(output_of([*tune, "--training-cores", "0"]))
        profiled = json.loads(output_of([*tune, "--profile", out]))
    return default, profiled


def run(args):
    os.makedirs(args.dir, exist_ok=True)
    data = os.path.join(args.dir, "profile-data")
    training_job.write_data(data, profile.DATA_BYTES)
    alone = statistics.mean(train(args, data))
    default, profiled = choices(args, data, alone)
    same = {**profiled["choice"], "interval": default["choice"]["interval"]}
    arms = {"default": default["choice"], "profiled": profiled["choice"], "profiled, default interval": same}
    report = Report(args.folder)
    head = [*begun(args.dir), "emulated: GPU (the loop waits; the state is in host memory)"]
    ratios = {name: [] for name in arms}
    halves = []
    with report.kept("profiled", head):
        for repetition in range(args.repetitions):
            alone = sum(train(args, data))
            for name, choice in arms.items():
                slowdown = 100 * (sum(train(args, data, choice)) / alone - 1)
                report.single(name, repetition, "slowdown %", slowdown)
                report.single(name, repetition, "interval", choice["interval"])
                report.single(name, repetition, "worker threads", choice.get("worker_threads", min(CORES, 4)))
                ratios[name].append(slowdown)
            halves.append(ratios["profiled"][-1] - ratios["default"][-1] / 2)
    for name, choice in arms.items():
        about = f"every {choice['interval']}, {choice.get('worker_threads', 'default')} threads"
        report.figure(f"{name} ({about}): slowdown", ratios[name], unit=" %")
    report.figure("profiled less half of the default's, points", halves, 0)
    print(report.text())
    report.write("profiled", head)
    return 0
