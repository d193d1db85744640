"""Measures what checkpointing costs the libtorch trainer, beside training that saves nothing, in one run.

Each repetition is, for each model, one fio run and three fresh cairn_train processes on the same text: one saves
nothing, one saves every 10 steps, one saves every step; two saves in flight, the pool larger than the state. All three
must end with the same weights, and the checkpoints that are left must verify. The first 20 steps are not counted:
memory and files are laid out in them. Writes training.csv if every model was measured five times or
more. Takes about 17 minutes a model on two cores with five repetitions; 12 GB of disk, 10 GB of memory.

A step cannot be slowed down by less than its bound, the largest of three times, each over the steps from one save to
the next: the CPU time that Cairn's threads take for a save, over the cores; the time that the disk takes for a save's
bytes, less the time between two saves; and the time in which a save is captured, less forward and backward. This
machine's speed drifts by more than 1 % from one process to the next. So the slowdown against the same process's own
steps without a save in flight is reported too.

--ranks 2 does the same with two data-parallel ranks, with a thread each and half of the batch, and writes
training-ranks.csv. Then Cairn's CPU time is that of rank 0 times the ranks.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from .shared import ROOT, program
from .shared.files import begun
from .shared.fio import LINE, fio, hugepages
from .shared.machine import fill_page_cache
from .shared.options import add_directory, add_only, add_record, add_repetitions, positive
from .shared.ranks import run_ranks
from .shared.report import Report

TEXT = "/usr/share/common-licenses"
MODELS = {"bert-base": "wordpiece", "opt-125m": "bpe"}  # And the tokens that they learn from.
SHAPE = ("--sequence", "32", "--optimizer", "adamw")
BATCH = 2  # Samples of a step, of all ranks.
NEVER, RARELY, ALWAYS = 0, 10, 1
WARM = 20
STEPS, REPETITIONS = 60, 5  # A result that is written comes from at least as many.
POOL = 3 << 30  # Bytes: more than two saves of either model.
MEMORY = POOL + (3 << 30)  # And what training takes.
CORES = len(os.sched_getaffinity(0))
OWN = "slowdown against its own steps without a save %"


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, REPETITIONS)
    parser.add_argument("--steps", type=positive(int), default=STEPS, help=f"default: {STEPS}")
    parser.add_argument("--ranks", type=positive(int), default=1, help="processes that train together; default: 1")
    add_only(parser, "models", MODELS)


def prepare(directory, model):
    out = os.path.join(directory, f"text-{model}")
    command = [os.path.join(ROOT, "scripts/prepare-data"), "text", TEXT, out, "--kind", MODELS[model]]
    subprocess.run(command, check=True)
    return out


def train(directory, model, text, every, steps, ranks):
    """What a training reports of itself, after its checkpoints were verified."""
    fill_page_cache(MEMORY)
    root, report = os.path.join(directory, "run"), os.path.join(directory, "report.json")
    command = [program("cairn_train"), "--model", model, "--data", text, *SHAPE, "--batch", str(BATCH // ranks)]
    command += ["--steps", str(steps), "--report", report, *(("--threads", "1") if ranks > 1 else ())]
    if every:
        command += ["--checkpoint-dir", root, "--every", str(every), "--in-flight", "2"]
        command += ["--host-memory", str(POOL // ranks)]
    for status, _, errors in run_ranks(command, ranks):
        if status != 0:
            sys.exit(f"{' '.join(command)}: exit status {status}\n{errors}")
    if every:
        subprocess.run([program("cairn"), "verify", root], check=True, stdout=subprocess.DEVNULL)
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

    def __init__(self, name, report, ranks):
        self.name, self.report, self.ranks = name, report, ranks

    def cell(self, every):
        return f"{self.name}, every {every}" if every else self.name

    def add(self, pair, runs, rate):
        def single(every, name, value):
            self.report.single(self.cell(every), pair, name, value)

        quiet = steady(runs[NEVER])
        step = mean(quiet, "seconds")
        single(NEVER, "step s", step)
        single(NEVER, "forward and backward s", mean(quiet, "model_seconds"))
        single(NEVER, "fio bytes/s", rate)
        # The difference of two runs: what both take once, such as touching the pool, belongs to no save.
        rare, always = runs[RARELY], runs[ALWAYS]
        more = len(always["saves"]) - len(rare["saves"])
        cpu = self.ranks * (always["engine_cpu_seconds"] - rare["engine_cpu_seconds"]) / more
        single(ALWAYS, "CPU s a save", cpu)
        for every in (RARELY, ALWAYS):
            run = runs[every]
            saves = [save for save in run["saves"] if save["step"] >= WARM]
            captured = statistics.median(save["captured_seconds"] for save in saves)
            costs = {
                "CPU": cpu / CORES,
                "disk": saves[0]["bytes"] / rate - every * step,
                "capture": captured - mean(quiet, "model_seconds"),
            }
            bound = 100 * max(costs.values()) / (every * step)
            slowdown = 100 * (mean(steady(run), "seconds") / step - 1)
            fences = [one["fence_seconds"] for one in steady(run) if one["saves_in_flight"] > 0]
            for name, seconds in costs.items():
                single(every, f"bound by {name} s", seconds)
            single(every, "captured s", captured)
            single(every, "durable s", statistics.median(save["durable_seconds"] for save in saves))
            single(every, "bound %", bound)
            single(every, "slowdown %", slowdown)
            if alone := [one for one in steady(run) if one["saves_in_flight"] == 0]:
                single(every, OWN, 100 * (mean(steady(run), "seconds") / mean(alone, "seconds") - 1))
            single(every, "slowdown less bound %", slowdown - bound)
            single(every, "fence p99 of a step %", 100 * percentile99(fences) / step if fences else 0.0)


def judged(report):
    """The report, with every cell beside its goals."""
    values = report.values
    for cell in dict.fromkeys(cell for cell, _, name in values if name == "slowdown less bound %"):
        report.figure(f"{cell}: slowdown less its bound", values.of(cell, "slowdown less bound %"), 1, unit=" %")
        if statistics.median(values.of(cell, "bound by capture s")) <= 0:  # Else the fence must wait.
            report.figure(f"{cell}: stall of the fence, p99", values.of(cell, "fence p99 of a step %"), 1, unit=" %")
    return report


def check(args):
    if args.steps < WARM + RARELY:
        args.error(f"--steps {args.steps}: expected at least {WARM + RARELY}")
    if BATCH % args.ranks != 0:
        args.error(f"--ranks {args.ranks}: expected a divisor of the batch of {BATCH}")


def run(args):
    memory = hugepages()
    report = Report(args.folder)
    head = [*begun(args.dir), LINE, f"{TEXT}; {' '.join(SHAPE)} --batch {BATCH}; ranks: {args.ranks}"]
    with tempfile.TemporaryDirectory(prefix="training-", dir=args.dir) as directory:
        models = [Model(name, report, args.ranks) for name in args.only or MODELS]
        texts = {model: prepare(directory, model.name) for model in models}
        for pair in range(args.repetitions):
            for model in models:
                rate, _ = fio(os.path.join(directory, "fio.data"), "write", memory, 2 << 30)
                order = (RARELY, NEVER, ALWAYS) if pair % 2 == 0 else (ALWAYS, NEVER, RARELY)
                given = (args.steps, args.ranks)
                runs = {every: train(directory, model.name, texts[model], every, *given) for every in order}
                if len({run["weights_crc64"] for run in runs.values()}) != 1:
                    sys.exit(f"{model.name}: training that saves ended with other weights")
                model.add(pair, runs, rate)
                print(f"{model.name}: repetition {pair + 1} of {args.repetitions}", flush=True)
    print(judged(report).text())
    if not args.only and args.steps == STEPS and args.repetitions >= REPETITIONS:
        report.write("training" if args.ranks == 1 else "training-ranks", head)
