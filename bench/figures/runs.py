"""What every figure is made of: runs of bench_training, and a CSV that grows with each of them."""

import argparse
import csv
import datetime
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from machine_facts import commit, machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, "build/release/bin/bench_training")
STRATEGIES = ("sync", "checkfreq", "gpm", "gemini", "pccheck", "cairn")
PD_SSD = 480e6  # Bytes per second, disk_profile.h's.
MODELS = ("vgg16", "transformer-xl", "bert", "opt-1.3b")
SKIPPED = 77


# Checkpoints under way at once, for what counts the work that a failure takes: where the disk holds the interval none
# overlap, and where it does not a second one waits, and grows older (PCcheck's artifact has 4, and 2 for OPT-1.3B).
IN_FLIGHT = 1


class Refused(Exception):
    """The run cannot be made, or did not write what it should have; the message is bench_training's own."""


class Skipped(Exception):
    """This machine cannot do what was asked for; the message says what is missing."""


def parser(name, about, repetitions=1, dilation=4):
    """The options that all figures share."""
    made = argparse.ArgumentParser(
        prog=f"scripts/figures {name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("figure", choices=[name])
    made.add_argument("--dir", help="where checkpoints are written; default: build/bench")
    made.add_argument("--repetitions", type=positive(int), default=repetitions, help=f"default: {repetitions}")
    made.add_argument("--disk", choices=["machine", "pd-ssd"], default="machine", help="pd-ssd: a cgroup's 480 MB/s")
    made.add_argument("--disk-bytes-per-second", type=positive(whole), default=0, help="emulated disk; default: none")
    made.add_argument("--pcie-bytes-per-second", type=positive(float), default=25e9, help="emulated link to the host")
    made.add_argument("--device", choices=["emulated", "cuda"], default="emulated", help="cuda: its link, in real time")
    made.add_argument("--dilation", type=positive(float), help=f"times that all takes longer; default: {dilation}")
    made.set_defaults(usual_dilation=dilation)
    made.add_argument("--output", help="default: bench/results/figure-NAME, without .csv and .png")
    made.add_argument("--draw", action="store_true", help="measure nothing; draw what is in the CSV")
    return made


def positive(kind):
    def convert(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected more than 0, found {text}")
        return value

    return convert


def whole(text):
    """A whole number, written as 7e9 as well."""
    value = float(text)
    if not value.is_integer():
        raise ValueError
    return int(value)


def some_of(known):
    def convert(text):
        wanted = text.split(",")
        if unknown := [one for one in wanted if one not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
        return wanted

    return convert


def numbers(kind=int, least=0):
    def convert(text):
        values = [kind(one) for one in text.split(",")]
        if any(value < least for value in values):
            raise argparse.ArgumentTypeError(f"expected numbers of at least {least}, found {text}")
        return values

    return convert


class Table:
    """The figure's CSV. It is whole on disk after every row; what it lacks is said in its head.

    The head's lines begin with "#": date and command, the machine, what is emulated, and "complete", or "partial: n of
    m runs" as long as not all are there.
    """

    def __init__(self, path, args, runs):
        self.path, self.runs, self.rows = path, runs, []
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        command = shlex.join(["scripts/figures", *sys.argv[1:]]).replace(ROOT + "/", "")
        self.head = [f"{now}; {command}", f"machine: {machine(args.dir)}; commit {commit()}"]
        self.notes = []

    def add(self, row):
        self.rows.append(row)
        self.write(f"partial: {len(self.rows)} of {self.runs} runs" if len(self.rows) < self.runs else "complete")

    def note(self, text):
        """For what could not be measured, once."""
        if text not in self.notes:
            print(f"  {text}", flush=True)
            self.notes.append(text)

    def leave_out(self, runs):
        self.runs -= runs

    def write(self, state):
        emulated = sorted({row["emulated"] for row in self.rows if row.get("emulated")})
        text = io.StringIO(newline="")
        for line in (*self.head, *(f"emulated: {one}" for one in emulated), *self.notes, state):
            text.write(f"# {line}\n")
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(self.rows)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path + ".new", "w") as file:
            file.write(text.getvalue())
        os.replace(self.path + ".new", self.path)


def read_table(path):
    """(head, rows) of a figure's CSV; numbers are numbers."""
    if not os.path.exists(path):
        sys.exit(f"figures: {path}: there is no such file; run the figure without --draw")
    with open(path, newline="") as file:
        lines = file.read().splitlines(keepends=True)
    head = [line[2:].rstrip("\n") for line in lines if line.startswith("# ")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    return head, [{name: number(cell) for name, cell in row.items()} for row in rows]


def number(cell):
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell


def flags_of(options):
    flags = []
    for name, value in options.items():
        if value is not None:
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags


def machine_options(args):
    """What each process is told of the emulated machine."""
    names = ("device", "disk", "disk_bytes_per_second", "pcie_bytes_per_second", "dilation")
    return {name: getattr(args, name) for name in names}


def bench_training(args, strategy, journal=None, **options):
    """One run's row. Interrupted, the run is over too, and what it wrote is gone."""
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        path = os.path.join(folder, "row.csv")
        given = {**machine_options(args), **options}
        command = [PROGRAM, "--strategy", strategy, "--csv", path, *flags_of(given)]
        process, said = _finished(command + (["--journal", journal] if journal else []), args.dir)
        if process.returncode == SKIPPED:
            raise Skipped(said.strip())
        if process.returncode != 0:
            raise Refused(f"{shlex.join(command[1:3])}: {said.strip() or f'ended with {process.returncode}'}")
        with open(path, newline="") as file:
            return {name: number(cell) for name, cell in next(csv.DictReader(file)).items()}


def _finished(command, directory):
    """The process that ran in a directory of its own, now gone, and what it said of errors.

    An interrupt between what is made and the word of it would leave both behind: it waits until both can be undone.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        work = tempfile.mkdtemp(prefix="figures-", dir=directory)
        try:
            process = subprocess.Popen(
                [*command, "--dir", work], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                _, said = process.communicate()
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                process.kill()
                process.wait()
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process, said


def check_room(args, strategy, **options):
    """Refused where a run needs more disk or memory than there is, with the scale that fits."""
    command = [PROGRAM, "--check", "--strategy", strategy, "--dir", args.dir, *flags_of(options)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == SKIPPED:
        raise Skipped(done.stderr.strip())
    if done.returncode != 0:
        raise Refused(f"{strategy}: {done.stderr.strip()}")


def measure(args, plan, one):
    """Makes every run of the plan (a list of what `one` takes: it returns a row) and returns the exit code.

    Checks first that there is room for all of them. A run that this machine cannot make is left out with its reason in
    the table's head; one that fails ends the figure.
    """
    args.dir = os.path.abspath(args.dir or os.path.join(ROOT, "build/bench"))
    os.makedirs(args.dir, exist_ok=True)
    table = Table(args.output + ".csv", args, len(plan))
    without = {}
    try:
        for entry in plan:
            if entry["strategy"] in without:
                continue
            try:
                check_room(args, entry["strategy"], **entry["options"])
            except Skipped as reason:
                without[entry["strategy"]] = str(reason)
                table.note(f"without {entry['strategy']}: {reason}")
        kept = [entry for entry in plan if entry["strategy"] not in without]
        table.leave_out(len(plan) - len(kept))
        for done, entry in enumerate(kept):
            if entry["strategy"] in without:
                continue
            labels = " ".join(f"{name} {value}" for name, value in entry["labels"].items())
            print(f"{done + 1}/{len(kept)} {entry['strategy']} {labels}", flush=True)
            try:
                table.add({**entry["labels"], **one(args, entry)})
            except Skipped as reason:
                if args.disk == "pd-ssd" and "cgroup" in str(reason):
                    raise Refused(str(reason)) from None
                without[entry["strategy"]] = str(reason)
                table.note(f"without {entry['strategy']}: {reason}")
                table.leave_out(sum(later["strategy"] == entry["strategy"] for later in kept[done:]))
    except Refused as reason:
        print(f"figures: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"figures: interrupted after {len(table.rows)} of {table.runs} runs", file=sys.stderr)
        return 130
    if table.rows:
        table.write("complete")
    return 0


def parsed(options, arguments):
    """The arguments, with where the figure's files go."""
    args = options.parse_args(arguments)
    if args.device == "cuda" and args.dilation not in (None, 1):
        options.error(f"--dilation {args.dilation:g}: expected 1, as a GPU's link keeps its rate")
    args.dilation = args.dilation or (1 if args.device == "cuda" else args.usual_dilation)
    args.output = args.output or os.path.join(ROOT, f"bench/results/figure-{args.figure}")
    return args


def rate_of_all(args):
    """Bytes per second that each strategy keeps up with, one save after the other, to be paced by."""
    disk = PD_SSD if args.disk == "pd-ssd" else args.disk_bytes_per_second
    return min(0.8e9, disk / 2 or 0.8e9)


def one_run(args, entry):
    return bench_training(args, entry["strategy"], **entry["options"])


def measure_and_draw(args, plan, draw, one=one_run):
    """A figure's command: the exit code. With --draw it measures nothing."""
    code = 0 if args.draw else measure(args, plan, one)
    if code == 0:
        draw(args)
    return code


def middle(values):
    """(median, least, greatest): the error bars are the range of the repetitions."""
    ordered = sorted(values)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return median, ordered[0], ordered[-1]


def grouped(rows, *names):
    """Rows by the values of some columns."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups
