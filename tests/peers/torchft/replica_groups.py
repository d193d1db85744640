"""A lighthouse and replica groups, each in a process of its own, whose lines a test waits for."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import ENVIRONMENT
from programs import EXAMPLES

if TYPE_CHECKING:
    from typing_extensions import Self

LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="[::]:0", min_replicas=int(sys.argv[1]), join_timeout_ms=int(sys.argv[2]))
input()
"""


class Process:
    """A program whose lines are waited for. Its stderr, torchft's log, goes to a file, or to its lines."""

    def __init__(self, log: Path | None, *command: Any, **environment: str) -> None:
        self.lines: list[str] = []
        self._log = log
        with open(log or os.devnull, "w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors if log else subprocess.STDOUT,
                text=True,
                env=ENVIRONMENT | {"OMP_NUM_THREADS": "1"} | environment,
            )
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)  # A full pipe would stop the lighthouse.
        self._reader.start()

    def wait_for(self, wanted: str) -> str:
        """The next line that has it."""
        while line := self._said.get(timeout=300):
            self.lines.append(line.rstrip("\n"))
            if wanted in line:
                return self.lines[-1]
        raise AssertionError(f"{self.lines}\n{self._log_tail()}")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def finish(self) -> list[str]:
        """Its lines, once it has ended well."""
        while line := self._said.get(timeout=300):
            self.lines.append(line.rstrip("\n"))
        assert self._process.wait(timeout=300) == 0, f"{self.lines}\n{self._log_tail()}"
        return self.lines

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put("")

    def _log_tail(self) -> str:
        return self._log.read_text()[-4000:] if self._log else ""


def lighthouse(min_replicas: int, join_timeout_ms: int) -> tuple[Process, str]:
    """A lighthouse, whose lines are its log, and its address."""
    process = Process(None, "-c", LIGHTHOUSE, min_replicas, join_timeout_ms)
    return process, process.wait_for("Lighthouse listening on: ").rpartition(" ")[2]


class Job:
    """A lighthouse, and the replica groups of the example."""

    def __init__(self, folder: Path, min_replicas: int, *arguments: Any) -> None:
        self.root = folder / "run"
        self._folder, self._arguments = folder, ("--min-replicas", min_replicas, *arguments)
        folder.mkdir(exist_ok=True)
        self._started: list[Process] = []
        self.lighthouse, self._address = lighthouse(min_replicas, 60000)

    def start(self, replica: int, *arguments: Any) -> Process:
        command = [EXAMPLES / "torchft_text.py", self.root, "--replica", replica, *self._arguments, *arguments]
        log = self._folder / f"log-{len(self._started)}"
        self._started.append(Process(log, *command, TORCHFT_LIGHTHOUSE=self._address))
        return self._started[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._started, self.lighthouse]:
            process.kill()
