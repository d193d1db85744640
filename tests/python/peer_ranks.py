"""Ranks of `cairn doctor --peers`: processes of the real command, and one that does what no real rank does."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from jobs import COMMAND
from networks import Host

Process = subprocess.Popen[str]
HELLO = {"protocol": "cairn doctor --peers", "version": 1}
# A rank that is not there is missed after that long. The ranks of a test begin together.
TIMEOUT = "60s"


def free_port() -> int:
    """Below those that the kernel gives to anybody, who might have this one before it is used."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("", port))
            return port


class Ranks:
    """The ranks of a job, each a process of the real command; killed if the test leaves them behind."""

    def __init__(self, world: int, nodes: Sequence[Host] | None = None) -> None:
        self.world, self.nodes = world, nodes
        self.port = free_port()
        self.processes: list[Process] = []

    def start(self, rank: int, *options: Any, **environment: str) -> Process:
        command = [str(COMMAND), "doctor", "--peers", *map(str, options)]
        for usual in ("--pair-time=300ms", f"--timeout={TIMEOUT}"):
            if not any(option.startswith(usual.partition("=")[0]) for option in command):
                command.append(usual)
        given = {
            "RANK": str(rank), "WORLD_SIZE": str(self.world), "MASTER_PORT": str(self.port),
            "MASTER_ADDR": self.nodes[0].address if self.nodes else "localhost",
        }  # fmt: skip
        started = subprocess.Popen(
            self.nodes[rank].inside(*command) if self.nodes else command,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | given | environment,
        )  # fmt: skip
        self.processes.append(started)
        return started

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def end(process: Process) -> tuple[str, str]:
    return process.communicate(timeout=120)


def good(*processes: Process) -> list[tuple[str, str]]:
    ends = [end(process) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), ends
    return ends


class Rank:
    """A rank of the test's own, which does what no real one does: it joins, and then only what the test says."""

    def __init__(self, job: Ranks, rank: int, **hello: Any) -> None:
        self.listener = socket.create_server(("localhost", 0))
        while True:  # Until rank 0 listens.
            try:
                self.control = socket.create_connection(("localhost", job.port), timeout=120)
                break
            except ConnectionRefusedError:
                assert job.processes[0].poll() is None, end(job.processes[0])
        self.lines = self.control.makefile()
        port = self.listener.getsockname()[1]
        mine = {"rank": rank, "world": job.world, "host": "elsewhere", "domain": "elsewhere", "port": port}
        self.say(HELLO | mine | hello)

    def say(self, message: dict[str, Any]) -> None:
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        return dict(json.loads(self.lines.readline()))

    def close(self) -> None:
        self.lines.close()
        self.control.close()
        self.listener.close()


def failed(*processes: Process) -> str:
    """What all of them say."""
    ends = [end(process)[1] for process in processes]
    assert [process.returncode for process in processes] == [2] * len(processes), ends
    reasons = {said.splitlines()[-1].partition(": ")[2].partition(": ")[2] for said in ends}
    assert len(reasons) == 1, reasons
    return reasons.pop()
