"""Mirrors beside a job: a process of `cairn mirror` for each, so that no storage, however slow or hung, is in training's
way; and where a root's checkpoints are."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _threads
from ._arguments import several, whole
from ._errors import FailedPrecondition, InvalidArgument
from ._paths import local_path
from ._tree.paths import shown

_log = logging.getLogger("cairn")
_RECORDS = ".mirrors"  # See docs/format.md.
_STORES = ("s3://", "gs://", "az://", "rclone:")
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # Seconds before it is started again, doubled each time.


@dataclass(frozen=True)
class Mirror:
    """A copy of a root's checkpoints elsewhere, for Checkpointer(mirrors=...).

    target      a directory of its own, made if it is missing; or a place in an object store, by rclone: s3://BUCKET/PREFIX,
                gs://, az:// or rclone:REMOTE:PATH
    every       only steps divisible by it
    keep_last   checkpoints to keep there, newest first; 0 keeps all
    keep_every  with keep_last: also keep each step divisible by it; 0: none
    """

    target: str | os.PathLike[str]
    every: int = 1
    keep_last: int = 0
    keep_every: int = 0


def commands_of(mirrors: Any, root: str) -> list[list[str]]:
    """What each of them runs. InvalidArgument for what is no mirror, FailedPrecondition without the `cairn` command."""
    commands = []
    for mirror in several("mirrors", mirrors):
        if not isinstance(mirror, Mirror):
            raise InvalidArgument(f"mirrors: expected cairn.Mirror(target, ...), found {shown(mirror)}")
        target = mirror.target
        if not (isinstance(target, str) and target.startswith(_STORES)):
            target = local_path(target, "Mirror")
        commands.append([_program(), "mirror", root, target, "--with-stdin"])
        for name in ("every", "keep_last", "keep_every"):
            number = whole(f"Mirror({str(mirror.target)!r}): {name}", getattr(mirror, name))
            if name == "every" and number == 0:
                raise InvalidArgument(f"Mirror({str(mirror.target)!r}): every: expected 1 or more, found 0")
            if number:
                commands[-1] += [f"--{name.replace('_', '-')}", str(number)]
    return commands


def _program() -> str:
    """The command that was installed with this package, or else the one in PATH."""
    for folder in (sysconfig.get_path("scripts"), Path(__file__).parents[1] / "bin"):
        if os.access(program := os.path.join(folder, "cairn"), os.X_OK):
            return program
    if found := shutil.which("cairn"):
        return found
    raise FailedPrecondition(
        "mirrors: the command `cairn`, which is installed with this package, is neither beside this Python nor in PATH"
    )


class RunningMirror:
    """Runs the command until it is told to end; if it dies before, starts it again. What it says on stderr is logged.

    The command reads stdin. Once that is closed, also because this process has died, it copies what is due, and ends."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._name = f"{command[2]}: mirror {command[3]}"
        self._said: set[str] = set()  # In its last run: what repeats itself is not logged again.
        self._told = threading.Event()
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._thread = _threads.start(threading.Thread(target=self._run, name="cairn-mirror", daemon=True))

    def tell(self) -> None:
        """That it should end. Waits for nothing."""
        if os.getpid() != self._owner:
            return  # In a forked child.
        self._told.set()
        with self._mutex:
            self._close_stdin()

    def wait(self, timeout: float) -> None:
        """Until it has ended after that. Else it is named, and goes on."""
        if os.getpid() != self._owner:
            return
        self._thread.join(timeout)
        if self._thread.is_alive() and (process := self._process):
            _log.warning(
                "%s: has not ended after %.1f s, and is left behind (process %d): it copies what is due, then ends",
                *(self._name, timeout, process.pid),
            )

    def _run(self) -> None:
        pause = _PAUSE
        while True:
            begun = time.monotonic()
            last = self._told.is_set()
            ended = self._run_once()
            if last or (self._told.is_set() and ended == "with exit code 0"):
                return
            if not self._told.is_set():
                pause = _PAUSE if time.monotonic() - begun > _LONGEST_PAUSE else pause
                self._told.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _run_once(self) -> str:
        """How it ended."""
        said: set[str] = set()
        try:
            process = self._start()
        except OSError as error:
            self._say(f"cannot be started: {error}", said)
            return "not at all"
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._say(line.strip(), said)
        code = process.wait()
        with self._mutex:
            self._close_stdin()
        ended = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        if code != 0 or not self._told.is_set():
            self._say(f"has ended {ended}" + ("" if self._told.is_set() else ", and is started again"), said)
        self._said = said
        return ended

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the job, which may save once more.
        )
        with self._mutex:
            self._process = process
            if self._told.is_set():
                self._close_stdin()
        return process

    def _close_stdin(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):  # It has died, or was told before.
            self._process.stdin.write("\n")  # A forked worker of the job may have the pipe, too.
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _say(self, line: str, said: set[str]) -> None:
        if line and line not in said and line not in self._said:
            _log.warning("%s: %s", self._name, line)
        said.add(line)


def tell(mirrors: Iterable[RunningMirror]) -> None:
    for mirror in mirrors:
        mirror.tell()


def targets_of(root: str) -> dict[str, list[str]]:
    """The targets that have a checkpoint, by its attempt, as the root's mirrors have last said."""
    targets: dict[str, list[str]] = {}
    for path in sorted(Path(root, _RECORDS).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # It is a hint.
            record = json.loads(path.read_bytes())
            for one in record["checkpoints"]:
                targets.setdefault(str(one["attempt"]), []).append(str(record["target"]))
    return targets
