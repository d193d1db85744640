"""The CSV files of results: lines of "# " that say where the figures come from, then columns and rows.

The head's first line has date and command; then come machine and commit, what was emulated, and other notes.
"""

import csv
import datetime
import io
import os
import re
import shlex
import sys

from . import ROOT
from .machine import commit, machine


class BadResult(Exception):
    """A file that is no result, or one of another kind. Says what was expected and what was found."""


class Head(list):
    """The head's lines, without "# "."""

    @property
    def run(self):
        """Date and command."""
        return self[0] if self else ""

    @property
    def machine(self):
        return self._found(r"machine: (.*?)(; commit .*)?") or "not recorded"

    @property
    def load(self):
        return self._found(r"(load: .*)")

    @property
    def emulated(self):
        return [line.removeprefix("emulated: ") for line in self if line.startswith("emulated: ")]

    def _found(self, pattern):
        return next((found[1] for line in self if (found := re.fullmatch(pattern, line))), "")


def begun(directory):
    """The head of a run that begins now and works in `directory`."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    given = (word for word in sys.argv[1:] if word != "--record")  # Who measures anew need not record it.
    command = shlex.join(["scripts/bench", *given]).replace(ROOT + "/", "")
    return [f"{now}; {command}", f"machine: {machine(directory)}; commit {commit()}"]


def write(path, head, columns, rows):
    """Replaces the file at once; it is never there in part."""
    text = io.StringIO(newline="")
    text.writelines(f"# {line}\n" for line in head)
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", newline="") as file:
        file.write(text.getvalue())
    os.replace(path + ".new", path)


def content(path):
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadResult(f"{path}: {error.strerror if isinstance(error, OSError) else 'no text'}") from error


def parse(text, name):
    """(head, columns, [(line number, cells)]) of a result's text. `name` is for messages."""
    lines = text.splitlines(keepends=True)
    head = Head(line[1:].strip() for line in lines if line.startswith("#"))
    ahead = next((number for number, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
    reader = csv.reader(lines[ahead:])
    columns = next(reader, [])
    rows = []
    for cells in reader:
        if cells:
            rows.append((ahead + reader.line_num, cells))
            if len(cells) != len(columns):
                raise BadResult(f"{name}:{rows[-1][0]}: expected {len(columns)} fields, found {len(cells)}")
    return head, columns, rows
