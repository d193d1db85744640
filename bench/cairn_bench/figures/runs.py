"""What every figure is made of: runs of bench_training, and a CSV that grows with each of them."""

import csv
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

from ..shared import files, program

PROGRAM = program("bench_training")
PD_SSD = 480e6  # Bytes per second, as disk_profile.h has it.
SKIPPED = 77


class Refused(Exception):
    """The run cannot be made, or did not write what it should have; the message is bench_training's own."""


class Skipped(Exception):
    """This machine cannot do what was asked for; the message says what is missing."""


class Table:
    """The figure's CSV. It is whole on disk after every row; its head ends with "complete", or "partial: n of m runs"."""

    def __init__(self, path, args, runs):
        self.path, self.runs, self.rows = path, runs, []
        self.head = files.begun(args.dir)
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
        head = [*self.head, *(f"emulated: {one}" for one in emulated), *self.notes, state]
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        files.write(self.path, head, columns, [[row.get(name, "") for name in columns] for row in self.rows])


def read_table(path):
    """(head, rows) of a figure's CSV; numbers are numbers."""
    head, columns, rows = files.parse(files.content(path), path)
    return head, [dict(zip(columns, map(number, cells))) for _, cells in rows]


def number(cell):
    try:
        return float(cell)
    except ValueError:
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
        print(f"scripts/bench figure: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"scripts/bench figure: interrupted after {len(table.rows)} of {table.runs} runs", file=sys.stderr)
        return 130
    if table.rows:
        table.write("complete")
    return 0


def rate_of_all(args):
    """Bytes per second that each strategy keeps up with, one save after the other, to be paced by."""
    disk = PD_SSD if args.disk == "pd-ssd" else args.disk_bytes_per_second
    return min(0.8e9, disk / 2 or 0.8e9)


def planned(strategy, options, **labels):
    """One run of a plan; the labels are its first columns."""
    return {"strategy": strategy, "options": options, "labels": labels}


def one_run(args, entry):
    return bench_training(args, entry["strategy"], **entry["options"])


def measure_and_draw(args, plan, draw, one=one_run):
    """A figure's command: the exit code. With --draw it measures nothing."""
    code = 0 if args.draw else measure(args, plan, one)
    try:
        if code == 0:
            draw(args)
    except files.BadResult as reason:
        print(f"scripts/bench figure: {reason}", file=sys.stderr)
        return 2
    return code


def middle(values):
    """(median, least, greatest): the error bars are the range of the repetitions."""
    return statistics.median(values), min(values), max(values)


def grouped(rows, *names):
    """Rows by the values of some columns."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups
