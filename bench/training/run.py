"""Measures what checkpointing costs the libtorch trainer, against training that saves nothing, in one run.

    scripts/bench training [--dir DIR] [--repetitions N] [--steps N] [--only MODEL,...]

Each repetition is, for each model, one fio run and three fresh cairn_train processes on the same text: one that saves
nothing between one that saves every 10 steps and one that saves every step, two in flight, the pool larger than the
state. All three must end with the same weights, and the checkpoints that are left must verify. The first 20 steps are
not counted: memory and files are there only then. Writes bench/results/training.{md,csv} where every model was
measured. About 15 minutes a model on two cores with five repetitions; 12 GB of disk, 10 GB of memory.

The slowdown of a step cannot be less than its bound: the largest of the CPU seconds that Cairn's threads take for a save
over the cores; the time that the disk takes for a save's bytes less the time between two saves; and the time in which a
save is captured less forward and backward, each over the steps from one save to the next. This machine's speed drifts
from one process to the next by more than 1 %: the slowdown against the same process's steps without a save in flight,
where there are such, is told beside it.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "bench/support"), os.path.join(ROOT, "bench/python")]

from fio import LINE, fio, hugepages
from machine import touch
from report import Report

BIN = os.path.join(ROOT, "build/release/bin")
TEXT = "/usr/share/common-licenses"
MODELS = {"bert-base": "wordpiece", "opt-125m": "bpe"}  # And the tokens that they learn from.
SHAPE = ("--sequence", "32", "--batch", "2", "--optimizer", "adamw")
NEVER, RARELY, ALWAYS = 0, 10, 1
WARM = 20
STEPS, REPETITIONS = 60, 5  # At least what a result that is written comes from.
POOL = 3 << 30  # Bytes: more than two saves of either model.
TOUCHED = POOL + (3 << 30)  # And what training takes.
CORES = len(os.sched_getaffinity(0))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["training"])
    parser.add_argument("--dir", help="where to write; default: build/bench")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", default="", help="models, by comma: " + ", ".join(MODELS))
    args = parser.parse_args()
    args.models = list(filter(None, args.only.split(","))) or list(MODELS)
    if unknown := set(args.models) - set(MODELS):
        parser.error(f"unknown: {', '.join(unknown)}")
    if args.steps < WARM + RARELY:
        parser.error(f"--steps {args.steps}: expected at least {WARM + RARELY}")
    args.dir = os.path.abspath(args.dir or os.path.join(ROOT, "build/bench"))
    return args


def prepare(directory, model):
    out = os.path.join(directory, f"text-{model}")
    command = [os.path.join(ROOT, "scripts/prepare-data"), "text", TEXT, out, "--kind", MODELS[model]]
    subprocess.run(command, check=True)
    return out


def train(directory, model, text, every, steps):
    """What a training reports of itself, having seen that its checkpoints are whole."""
    touch(TOUCHED)
    root, report = os.path.join(directory, "run"), os.path.join(directory, "report.json")
    command = [
        f"{BIN}/cairn_train",
        "--model",
        model,
        "--data",
        text,
        *SHAPE,
        "--steps",
        str(steps),
        "--report",
        report,
    ]
    if every:
        command += ["--checkpoint-dir", root, "--every", str(every), "--in-flight", "2", "--host-memory", str(POOL)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {ran.returncode}\n{ran.stderr}")
    if every:
        subprocess.run([f"{BIN}/cairn", "verify", root], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(root)
        os.sync()
    with open(report) as file:
        return json.load(file)


def steady(run):
    return run["steps"][WARM:]


def mean(steps, key):
    return statistics.mean(step[key] for step in steps)


def percentile99(values):
    return sorted(values)[int(0.99 * (len(values) - 1) + 0.5)]


class Model:
    """The figures of one model, a repetition at a time."""

    def __init__(self, name):
        self.name = name
        self.figures = {}
        self.losses = ()
        self.bytes = 0

    def add(self, pair, runs, rate, report):
        def single(every, name, value):
            self.figures.setdefault((every, name), []).append(value)
            report.single(f"{self.name}, every {every}" if every else self.name, pair, name, value)

        quiet = steady(runs[NEVER])
        step = mean(quiet, "seconds")
        self.losses = runs[NEVER]["first_loss"], runs[NEVER]["last_loss"]
        single(NEVER, "step s", step)
        single(NEVER, "forward and backward s", mean(quiet, "model_seconds"))
        single(NEVER, "fio bytes/s", rate)
        # Of two runs, so that what both take once, as to touch the pool, is no save's.
        rare, always = runs[RARELY], runs[ALWAYS]
        more = len(always["saves"]) - len(rare["saves"])
        cpu = (always["engine_cpu_seconds"] - rare["engine_cpu_seconds"]) / more
        single(ALWAYS, "CPU s a save", cpu)
        for every in (RARELY, ALWAYS):
            run = runs[every]
            saves = [save for save in run["saves"] if save["step"] >= WARM]
            self.bytes = saves[0]["bytes"]
            costs = {
                "CPU": cpu / CORES,
                "disk": self.bytes / rate - every * step,
                "capture": statistics.median(save["captured_seconds"] for save in saves) - mean(quiet, "model_seconds"),
            }
            bound = 100 * max(costs.values()) / (every * step)
            slowdown = 100 * (mean(steady(run), "seconds") / step - 1)
            fences = [one["fence_seconds"] for one in steady(run) if one["saves_in_flight"] > 0]
            for name, seconds in costs.items():
                single(every, f"bound by {name} s", seconds)
            single(every, "captured s", statistics.median(save["captured_seconds"] for save in saves))
            single(every, "durable s", statistics.median(save["durable_seconds"] for save in saves))
            single(every, "bound %", bound)
            single(every, "slowdown %", slowdown)
            if alone := [one for one in steady(run) if one["saves_in_flight"] == 0]:
                own = 100 * (mean(steady(run), "seconds") / mean(alone, "seconds") - 1)
                single(every, "slowdown against its own steps without a save %", own)
            single(every, "slowdown less bound %", slowdown - bound)
            single(every, "fence p99 of a step %", 100 * percentile99(fences) / step if fences else 0.0)

    def judge(self, report):
        for every in (RARELY, ALWAYS):
            what = f"{self.name}, every {every} step{'s' if every > 1 else ''}"
            report.figure(
                f"{what}: slowdown less its bound", self.figures[every, "slowdown less bound %"], 1, False, " %"
            )
            if statistics.median(self.figures[every, "bound by capture s"]) <= 0:  # Else the fence must wait.
                fences = self.figures[every, "fence p99 of a step %"]
                report.figure(f"{what}: stall of the fence, p99", fences, 1, False, " %")

    def text(self):
        """What the figures come from: medians, and the least and most."""
        rows = {}
        for (every, name), values in self.figures.items():
            cell = f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            rows.setdefault(name, {})[every] = cell
        first, last = self.losses
        lines = [
            f"\n**{self.name}**, {self.bytes / 1e9:.2f} GB a checkpoint; first loss {first:.3f}, last {last:.3f}\n",
            "| | saves nothing | every 10 steps | every step |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name} | " + " | ".join(row.get(k, "") for k in (NEVER, RARELY, ALWAYS)) + " |"
            for name, row in rows.items()
        ]
        return "\n".join(lines) + "\n"


def main():
    args = arguments()
    os.makedirs(args.dir, exist_ok=True)
    subprocess.run([os.path.join(ROOT, "scripts/build"), "release", "cairn_train", "cairn_cli"], check=True)
    memory = hugepages()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="training-", dir=args.dir) as directory:
        texts = {model: prepare(directory, model) for model in args.models}
        models = [Model(name) for name in args.models]
        for pair in range(args.repetitions):
            for model in models:
                rate, _ = fio(os.path.join(directory, "fio.data"), "write", memory, 2 << 30)
                order = (RARELY, NEVER, ALWAYS) if pair % 2 == 0 else (ALWAYS, NEVER, RARELY)
                runs = {every: train(directory, model.name, texts[model.name], every, args.steps) for every in order}
                if len({run["weights_crc64"] for run in runs.values()}) != 1:
                    sys.exit(f"{model.name}: training that saves ended with other weights")
                model.add(pair, runs, rate, report)
                print(f"{model.name}: repetition {pair + 1} of {args.repetitions}", flush=True)
    for model in models:
        model.judge(report)
    details = "".join(model.text() for model in models)
    print(report.text(), details, sep="\n")
    if not args.only and args.steps == STEPS and args.repetitions >= REPETITIONS:
        report.write("training", [LINE, f"{TEXT}; {' '.join(SHAPE)}; {CORES} cores"], details)


if __name__ == "__main__":
    main()
