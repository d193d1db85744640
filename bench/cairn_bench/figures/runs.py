"""What every figure is made of: runs of bench_training, and a CSV that grows with each of them."""

import argparse
import csv
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from ..shared import files, filesystems, program

PROGRAM = program("bench_training")
PD_SSD = 480e6  # Bytes per second, as disk_profile.h has it.
SKIPPED = 77


class Refused(Exception):
    """The run cannot be made, or did not write what it should have; the message is bench_training's own."""


class Skipped(Exception):
    """This machine cannot do what was asked for; the message says what is missing."""


class Table:
    """The figure's CSV. It is whole after every row. Its head ends with "complete" or "partial: n of m runs"."""

    def __init__(self, path, args, about=()):
        self.path, self.head = path, [*files.begun(args.dir), *about]
        self.rows, self.notes = [], []

    def add(self, row, left):
        self.rows.append(row)
        self.write(f"partial: {len(self.rows)} of {len(self.rows) + left} runs" if left else "complete")

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
    """The options of bench_training that say what machine it emulates."""
    names = ("device", "compute", "disk", "disk_bytes_per_second", "pcie_bytes_per_second", "dilation")
    return {name: getattr(args, name) for name in names}


def bench_training(args, strategy, journal=None, **options):
    return run_program(PROGRAM, args, strategy, {**machine_options(args), **options}, journal)


def run_program(program, args, strategy, options, journal=None):
    """One run's row. An interrupt ends the run, too, and removes what it wrote."""
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        path = os.path.join(folder, "row.csv")
        command = [program, "--strategy", strategy, "--csv", path, *flags_of(options)]
        process, said = _finished(command + (["--journal", journal] if journal else []), args.dir)
        if process.returncode == SKIPPED:
            raise Skipped(said.strip())
        if process.returncode != 0:
            raise Refused(f"{shlex.join(command[1:3])}: {said.strip() or f'ended with {process.returncode}'}")
        with open(path, newline="") as file:
            return {name: number(cell) for name, cell in next(csv.DictReader(file)).items()}


def _finished(command, directory):
    """The process, which ran in a directory that is removed again, and its standard error.

    An interrupt is held back while something is made and not yet known to a `finally`, so that nothing is left behind.
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


def check_room(args, entry):
    """Refused if a run needs more disk or memory than there is. Says which scale would fit."""
    strategy = entry["strategy"]
    command = [entry["program"], "--check", "--strategy", strategy, "--dir", args.dir, *flags_of(entry["options"])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == SKIPPED:
        raise Skipped(done.stderr.strip())
    if done.returncode != 0:
        raise Refused(f"{strategy}: {done.stderr.strip()}")


def measure(args, plan, one, about=(), places=None):
    """Makes every run of the plan (`one` takes an entry and returns a row) and returns the exit code.

    Checks first that there is room for all of them. A run that this machine cannot make is left out, with its reason in
    the table's head. One that fails ends the figure. The head has `about`, too. A run with a label "filesystem" is made in
    that one of `places`, which the head describes.
    """
    places = places or {}
    table = Table(args.output + ".csv", args, [*about, *filesystems.lines(places)])
    left = list(plan)

    def leave_out(strategy, reason):
        print(f"  without {strategy}: {reason}", flush=True)
        table.notes.append(f"without {strategy}: {reason}")
        left[:] = [entry for entry in left if entry["strategy"] != strategy]

    try:
        for entry in plan:
            if entry in left:
                try:
                    check_room(placed(args, entry, places), entry)
                except Skipped as reason:
                    leave_out(entry["strategy"], reason)
        while left:
            entry, done = left[0], len(table.rows)
            labels = " ".join(f"{name} {value}" for name, value in entry["labels"].items())
            print(f"{done + 1}/{done + len(left)} {entry['strategy']} {labels}", flush=True)
            try:
                row = one(placed(args, entry, places), entry)
            except Skipped as reason:
                if args.disk == "pd-ssd" and "cgroup" in str(reason):
                    raise Refused(str(reason)) from None
                leave_out(entry["strategy"], reason)
            else:
                del left[0]
                table.add({**entry["labels"], **row}, len(left))
    except Refused as reason:
        print(f"scripts/bench figure: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        done = len(table.rows)
        print(f"scripts/bench figure: interrupted after {done} of {done + len(left)} runs", file=sys.stderr)
        return 130
    if table.rows:
        table.write("complete")
    return 0


def placed(args, entry, places):
    """The arguments, with the directory of the entry's filesystem."""
    return argparse.Namespace(**{**vars(args), "dir": places.get(entry["labels"].get("filesystem"), args.dir)})


def rate_of_all(args):
    """Bytes per second at which every strategy can save one checkpoint after the other; sets the pace."""
    disk = PD_SSD if args.disk == "pd-ssd" else args.disk_bytes_per_second
    return min(0.8e9, disk / 2 or 0.8e9)


def planned(strategy, options, program=PROGRAM, **labels):
    """One run of a plan; the labels are its first columns."""
    return {"strategy": strategy, "options": options, "program": program, "labels": labels}


def one_run(args, entry):
    return bench_training(args, entry["strategy"], **entry["options"])


def grouped(rows, *names):
    """Rows by the values of some columns."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def by(rows, name):
    """{value: rows} of one column."""
    return {value: group for (value,), group in grouped(rows, name).items()}


def series(rows, x, y):
    """{x: [values of y]} in the order of x, without empty cells."""
    groups = by([row for row in rows if isinstance(row[y], float)], x)
    return {at: [row[y] for row in groups[at]] for at in sorted(groups)}
