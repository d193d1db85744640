"""Ranks as real processes, driven line by line: code goes in, what it evaluates to (or raised) comes back.

A line is JSON {"code"} and is run in one namespace that lasts; the answer is JSON {"value"} or {"error", "message"}.
`hold(kind)` in a rank stops its messages of that kind ("attempt", "prepared", "outcome") before they reach the store, until
`release(kind)`. `die(key, when)` ends a rank by SIGKILL at the message of that key ("attempt/0": of the first save): when
it is "said", counted in the store and not there yet; "given", when the store has it; "heard", when it comes from another rank,
before the engine has it.
Ranks are forked off a process that has imported torch already, or, with `fresh`, are interpreters of their own.
"""

from __future__ import annotations

import ast
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

_context = multiprocessing.get_context("forkserver")
# A process that starts reads the exit codes of all that have ended, also of other threads': two that read one get 255.
_exit_codes = threading.Lock()
_context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.nn.parallel", "cairn.dcp", "ranks"])


class Rank:
    """One process. Its environment is what torchrun would set."""

    def __init__(self, rank: int, world: int, port: int, fresh: bool, **more: str) -> None:
        self.rank = rank
        environment = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_CPP_LOG_LEVEL": "FATAL",
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", **more,
        }  # fmt: skip
        self._popen: subprocess.Popen[str] | None = None
        if fresh:
            self._popen = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | environment,
            )
            assert self._popen.stdin is not None and self._popen.stdout is not None
            self._to: TextIO = self._popen.stdin  # type: ignore[assignment]
            self._from: TextIO = self._popen.stdout  # type: ignore[assignment]
            return
        there, here = multiprocessing.Pipe(), multiprocessing.Pipe()
        self._fork = _context.Process(target=_forked, args=(there[0], here[1], environment), daemon=True)
        with _exit_codes:
            self._fork.start()
        there[0].close()
        here[1].close()
        self._to = os.fdopen(os.dup(there[1].fileno()), "w")
        self._from = os.fdopen(os.dup(here[0].fileno()))
        there[1].close()
        here[0].close()

    def start(self, code: str) -> Rank:
        self._to.write(json.dumps({"code": code}) + "\n")
        self._to.flush()
        return self

    def answer(self) -> dict[str, Any]:
        try:
            line = self._from.readline()
        except ConnectionResetError:
            line = ""
        return json.loads(line) if line else {"error": "EOFError", "message": f"rank {self.rank} has ended"}

    def value(self) -> Any:
        answer = self.answer()
        assert "value" in answer, f"rank {self.rank}: {answer}"
        return answer["value"]

    def run(self, code: str) -> Any:
        return self.start(code).value()

    def kill(self) -> None:
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
        else:
            self._fork.kill()
            self.ended()

    def signal(self, number: signal.Signals) -> None:
        pid = self._popen.pid if self._popen is not None else self._fork.pid
        assert pid is not None
        os.kill(pid, number)
        # Each of its threads runs on until it has seen the signal. It may be the fork server's child: not to be waited for.
        while number == signal.SIGSTOP and not all(_stands_still(task) for task in Path(f"/proc/{pid}/task").iterdir()):
            os.sched_yield()

    def leave(self) -> None:
        """Lets it come to its end by itself."""
        self._to.close()

    def ended(self) -> int | None:
        """Its exit code."""
        if self._popen is not None:
            return self._popen.wait(timeout=60)
        multiprocessing.connection.wait([self._fork.sentinel], 60)
        with _exit_codes:
            return self._fork.exitcode


class World:
    """All ranks of a job. The store is hosted by the test, by a rank, or (`hosted_by` is the world) by `store`, a
    process of its own. `environment` is added to that of the ranks, which must be `fresh` to preload a library by it.
    """

    def __init__(
        self, world: int, root: Path, hosted_by: int | None = None, fresh: bool = False, **environment: str
    ) -> None:
        import torch.distributed

        self.root = root
        port = 0
        if hosted_by is None:
            self.host = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            port = self.host.port
        self.ranks = [Rank(rank, world, port, fresh, **environment) for rank in range(world)]
        self.store = Rank(world, world, port, fresh) if hosted_by == world else None
        if hosted_by is not None:
            port = (self.store or self[hosted_by]).run("serve()")
        self.all(f"connect({port})")

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def all(self, code: str) -> list[Any]:
        """Runs it on every rank at once; what each evaluates to, or its error."""
        return [answer.get("value", answer) for answer in self.answers(code)]

    def answers(self, code: str) -> list[dict[str, Any]]:
        for rank in self.ranks:
            rank.start(code)
        return [rank.answer() for rank in self.ranks]

    def open(self, options: str = "", timeout: float = 20) -> None:
        opened = self.all(f"open({str(self.root)!r}, group_timeout={timeout}, {options})")
        assert opened == [None] * len(self.ranks), opened

    def end(self) -> None:
        for rank in self.ranks + ([self.store] if self.store else []):
            rank.kill()


def _forked(commands: Any, answers: Any, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    _serve(os.fdopen(commands.fileno(), closefd=False), os.fdopen(answers.fileno(), "w", closefd=False))


def _serve(commands: TextIO, answers: TextIO) -> None:
    """What a rank does."""
    import cairn
    import torch
    import torch.distributed as dist
    from cairn._ranks.store_link import unpack
    from cairn._ranks.stores import Connection

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    names: dict[str, Any] = {"torch": torch, "dist": dist, "cairn": cairn, "rank": rank, "world": world}
    held: dict[str, threading.Event] = {}
    reached = threading.Event()
    deadly: set[tuple[str, str]] = set()
    put, get = Connection.set_if_absent, Connection.get

    def key_of(name: str, entry: bytes) -> str:
        """A message's, in the inbox or the log."""
        if name.split("/")[-2] not in ("inbox", "log"):
            return ""
        kind, parts = unpack(entry)
        return parts[1].decode() if kind == "message" else ""

    def die_at(key: str, when: str) -> None:
        if (key, when) in deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def held_put(self: Any, name: str, entry: bytes) -> bool:
        key = key_of(name, entry)
        if event := held.get(key.partition("/")[0]):
            reached.set()
            event.wait()
        die_at(key, "said")
        done = put(self, name, entry)
        die_at(key, "given")
        return done

    def deadly_get(self: Any, name: str) -> bytes | None:
        value = get(self, name)
        if value is not None:
            die_at(key_of(name, value), "heard")
        return value

    Connection.set_if_absent = held_put  # type: ignore[method-assign]
    Connection.get = deadly_get  # type: ignore[method-assign]

    def serve() -> int:
        names["store"] = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        return int(names["store"].port)

    def connect(port: int) -> None:
        if "store" not in names:
            names["store"] = dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)

    def open_one(root: str, **options: Any) -> None:
        small = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, "worker_threads": 1}
        names["c"] = cairn.Checkpointer(root, **{**small, "group": (names["store"], rank, world), **options})

    names |= {
        "serve": serve,
        "connect": connect,
        "open": open_one,
        "hold": lambda kind: held.update({kind: threading.Event()}),
        "release": lambda kind: held.pop(kind).set(),
        "reached": lambda: reached.wait(30),
        "die": lambda key, when: deadly.add((key, when)),
    }
    for line in commands:
        tree = ast.parse(json.loads(line)["code"])
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        try:
            exec(compile(tree, "rank", "exec"), names)  # noqa: S102
            answer = {"value": eval(compile(ast.Expression(last.value), "rank", "eval"), names) if last else None}  # type: ignore[attr-defined]
        except BaseException as error:  # noqa: BLE001 (DCP's CheckpointException is no Exception)
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer, default=repr), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Torch 2.8 and 2.9 print "[Gloo] Rank 0 is connected" where the answers go.
    _serve(sys.stdin, answers)


def _stands_still(task: Path) -> bool:
    """Whether a thread is stopped, by its folder in /proc: its state stands behind its name in brackets."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
