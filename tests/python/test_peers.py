"""`cairn doctor --peers`: ranks that are real processes measure the network between them, for `cairn place`."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from jobs import COMMAND
from networks import DelayLine, Node, link, run

Process = subprocess.Popen[str]
MEGABIT = 1e6 / 8
OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"
HELLO = {"protocol": "cairn doctor --peers", "version": 1}
# A rank that is not there is missed after that long. The ranks of a test begin together.
TIMEOUT = "60s"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


class Ranks:
    """The ranks of a job, each a process of the real command; killed if the test leaves them behind."""

    def __init__(self, world: int, nodes: list[Node] | None = None) -> None:
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


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ranks(stack: ExitStack) -> Any:
    return lambda *given: stack.enter_context(closing(Ranks(*given)))


def end(process: Process) -> tuple[str, str]:
    return process.communicate(timeout=120)


def good(*processes: Process) -> list[tuple[str, str]]:
    ends = [end(process) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), ends
    return ends


def keepers(topology: Path) -> dict[str, str]:
    command = [str(COMMAND), "place", str(topology), "--state-bytes=1GB", "--json"]
    placed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert placed.returncode == 0, placed.stderr
    return {one["device"]: one["keeper"] for one in json.loads(placed.stdout)["replicas"]["keepers"]}


# What they measure


def test_two_ranks_write_a_topology_that_is_placed(ranks: Any, tmp_path: Path) -> None:
    job = ranks(2)
    out = tmp_path / "topology.json"

    first = job.start(0, "--out", out, CAIRN_FAILURE_DOMAIN="rack 1")
    (said, _), second = good(first, job.start(1, "--domain=rack 2", CAIRN_FAILURE_DOMAIN="unused"))

    host = socket.gethostname()
    assert "THERE" in said and f"1 {host}/1" in said and second == ("", "")
    topology = json.loads(out.read_text())
    assert topology["devices"] == [{"name": f"{host}/{i}", "domain": f"rack {i + 1}"} for i in range(2)]
    for name in ("delay_ms", "bytes_per_second"):
        matrix = topology[name]
        assert matrix[0][1] == matrix[1][0] > 0
    assert keepers(out) == {f"{host}/0": f"{host}/1", f"{host}/1": f"{host}/0"}


def test_the_network_between_four_nodes(ranks: Any, stack: ExitStack, tmp_path: Path) -> None:
    # Megabits per second there and back: 0 and 2, and 1 and 3, are near each other.
    limits = {(i, j): (40, 40) for i, j in itertools.combinations(range(4), 2)}
    limits |= {(0, 2): (160, 160), (1, 3): (160, 120), (0, 3): (40, 80)}
    nodes = [stack.enter_context(closing(Node(i))) for i in range(4)]
    for (i, j), (there, back) in limits.items():
        link(nodes[i], nodes[j], f"{there}mbit", f"{back}mbit")
    job = ranks(4, nodes)
    out = tmp_path / "topology.json"

    said = good(job.start(0, "--out", out, "--json"), *(job.start(i) for i in range(1, 4)))[0][0]

    measured = json.loads(said)
    assert measured["rounds"] == 3
    assert [(one["name"], one["domain"]) for one in measured["ranks"]] == [(node.name, node.name) for node in nodes]
    topology = json.loads(out.read_text())
    for pair in measured["pairs"]:
        i, j = pair["from"], pair["to"]
        rates = pair["bytes_per_second"], pair["bytes_per_second_back"]
        for rate, limit in zip(rates, limits[i, j], strict=True):
            # tc counts headers too: TCP has 0.95 of it.
            assert 0.75 <= rate / (limit * MEGABIT) <= 1, pair
        assert topology["bytes_per_second"][i][j] == topology["bytes_per_second"][j][i] == min(rates)
    assert len(measured["pairs"]) == 6
    assert keepers(out) == {"node0": "node2", "node2": "node0", "node1": "node3", "node3": "node1"}


class Neighbour:
    """A host name of its own in the network of a node."""

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.name, self.address = node, f"host{number}", node.address

    def inside(self, *command: str) -> list[str]:
        return self.node.inside("unshare", "--uts", "sh", "-c", f'hostname {self.name} && exec "$@"', "sh", *command)


def test_an_odd_number_of_nodes_with_two_ranks_on_one(ranks: Any, stack: ExitStack, tmp_path: Path) -> None:
    node = stack.enter_context(closing(Node(0)))
    limit = ["tbf", "rate", "200mbit", "burst", "256kb", "latency", "100ms"]
    run(*node.inside("tc", "qdisc", "add", "dev", "lo", "root", *limit))
    hosts = [Neighbour(node, min(i, 4)) for i in range(6)]
    job = ranks(6, hosts)
    out = tmp_path / "topology.json"

    first = job.start(0, "--out", out, "--json", "--pair-time=20ms")
    said = good(first, *(job.start(i) for i in range(1, 6)))[0][0]

    measured = json.loads(said)
    assert [one["name"] for one in measured["ranks"]] == [*(f"host{i}" for i in range(4)), "host4/4", "host4/5"]
    # One between the two; then five, and the four in which these two have a partner take twice as long.
    assert measured["rounds"] == 1 + 5 + 4
    assert sorted((pair["from"], pair["to"]) for pair in measured["pairs"]) == [*itertools.combinations(range(6), 2)]
    assert {keepers(out)[f"host4/{rank}"] for rank in (4, 5)} <= {f"host{i}" for i in range(4)}


def test_a_link_with_a_delay(ranks: Any, stack: ExitStack, tmp_path: Path) -> None:
    nodes = [stack.enter_context(closing(Node(i))) for i in range(2)]
    stack.enter_context(closing(DelayLine(nodes, delay_s=0.05, rate="8mbit")))
    job = ranks(2, nodes)
    out = tmp_path / "topology.json"

    good(job.start(0, "--out", out), job.start(1))

    topology = json.loads(out.read_text())
    assert 50 <= topology["delay_ms"][0][1] < 100
    assert 0 < topology["bytes_per_second"][0][1] <= 8 * MEGABIT
    assert keepers(out) == {"node0": "node1", "node1": "node0"}


# How they are started

BLOCK = next(
    code
    for code in re.findall(r"^```sh\n(.*?)^```", OPERATIONS.read_text(), re.DOTALL | re.MULTILINE)
    if "doctor --peers" in code
)


@pytest.mark.parametrize("line", BLOCK.splitlines(), ids=["by hand", "torchrun"])
def test_the_documented_lines_start_two_nodes(stack: ExitStack, tmp_path: Path, line: str) -> None:
    for printed, given in {
        "cairn doctor": f"{COMMAND} doctor --pair-time=100ms",
        "torchrun": f"{sys.executable} -m torch.distributed.run",
        "WORLD_SIZE=4": "WORLD_SIZE=2",
        "nnodes=4": "nnodes=2",
        "node0": "localhost",
        "29500": str(free_port()),
        "29400": str(free_port()),
    }.items():
        line = line.replace(printed, given)
    nodes = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        nodes.append(
            subprocess.Popen(
                ["sh", "-c", line.replace("RANK=0", f"RANK={rank}")], cwd=tmp_path / str(rank), text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        stack.callback(nodes[-1].kill)

    ends = good(*nodes)

    # torchrun says which of its nodes has rank 0.
    [topology] = tmp_path.glob("*/topology.json")
    assert len(json.loads(topology.read_text())["devices"]) == 2
    assert sum("THERE" in said for said, _ in ends) == 1


# Ranks that fail


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


def test_a_rank_that_does_not_come_is_named(ranks: Any) -> None:
    job = ranks(3)
    said = failed(job.start(0, "--timeout=1s"), job.start(2))
    assert "rank 1 did not come within 1 s" in said and f"rank 2 ({socket.gethostname()})" in said


def test_a_rank_that_is_killed_is_named(ranks: Any, stack: ExitStack) -> None:
    job = ranks(3)
    first, second = job.start(0), job.start(1)
    third = stack.enter_context(closing(Rank(job, 2)))
    assert "token" in third.hear()  # All are there.

    second.kill()

    assert f"rank 1 ({socket.gethostname()}) has closed the connection" in failed(first)
    assert "rank 1" in third.hear()["error"]


def test_a_rank_that_is_stopped_is_named(ranks: Any, stack: ExitStack) -> None:
    job = ranks(3)
    first, second = job.start(0, "--timeout=2s"), job.start(1)
    third = stack.enter_context(closing(Rank(job, 2)))
    assert "token" in third.hear()

    second.send_signal(signal.SIGSTOP)
    third.say({"ready": True})

    said = failed(first)
    assert f"rank 1 ({socket.gethostname()})" in said and "does not answer" in said


def test_a_coordinator_that_is_stopped_is_missed(ranks: Any, stack: ExitStack) -> None:
    job = ranks(3)
    first, second = job.start(0), job.start(1, "--timeout=1s")
    third = stack.enter_context(closing(Rank(job, 2)))
    assert "token" in third.hear()

    first.send_signal(signal.SIGSTOP)

    assert f"rank 0 (localhost:{job.port}) does not answer" in failed(second)


@pytest.mark.parametrize("how", ["refuses", "is silent", "hangs up", "sends rubbish"])
def test_a_rank_that_cannot_be_measured_is_named(ranks: Any, stack: ExitStack, how: str) -> None:
    job = ranks(2)
    first = job.start(0, "--timeout=2s" if how == "is silent" else "--timeout=60s")
    second = stack.enter_context(closing(Rank(job, 1)))
    assert "token" in second.hear()
    if how == "refuses":
        second.listener.close()
    second.say({"ready": True})
    if how in ("hangs up", "sends rubbish"):
        asked = stack.enter_context(closing(second.listener.accept()[0]))
        asked.sendall(b"220 mail\n" if how == "sends rubbish" else b"")
        asked.close()

    said = failed(first)

    reason = {
        "refuses": "Connection refused",
        "is silent": "does not answer",
        "hangs up": "has closed the connection",
        "sends rubbish": "found something else",
    }[how]
    assert f"rank 1 (elsewhere) cannot be measured by rank 0 ({socket.gethostname()})" in said and reason in said


@pytest.mark.parametrize(
    ("report", "reason"),
    [({"delay_seconds": -1, "there": 1, "back": 1}, "reports no rates"), ([], "says what is not understood")],
)
def test_a_rank_that_reports_nonsense_is_named(ranks: Any, stack: ExitStack, report: Any, reason: str) -> None:
    job = ranks(3)
    first = job.start(0)
    others = [stack.enter_context(closing(Rank(job, rank, host=f"host{rank}"))) for rank in (1, 2)]
    for other in others:
        assert "token" in other.hear()
        other.say({"ready": True})
    assert others[0].hear()["with"]["rank"] == 2  # The first round is theirs.

    others[0].say(report)

    assert f"rank 1 (host1) {reason}" in failed(first)


# Who is not a rank


def test_strangers_are_turned_away_and_delay_nobody(ranks: Any, stack: ExitStack, tmp_path: Path) -> None:
    job = ranks(3)
    first = job.start(0, "--out", tmp_path / "topology.json")
    last = stack.enter_context(closing(Rank(job, 2)))
    hello = json.dumps(HELLO).encode() + b"\n"
    old = json.dumps(HELLO | {"version": 2}).encode() + b"\n"
    rubbish = [b"GET / HTTP/1.1\r\n\r\n", b"[" * 5000 + b"\n", b"\x00" * 100_000, b"[]\n", b"{}\n", hello, old]
    silent = stack.enter_context(closing(socket.create_connection(("localhost", job.port))))
    for words in rubbish:
        stranger = stack.enter_context(closing(socket.create_connection(("localhost", job.port), timeout=60)))
        stranger.sendall(words)
        with suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    other_world = stack.enter_context(closing(Rank(job, 1, world=4)))
    twice = stack.enter_context(closing(Rank(job, 2)))
    assert "expected WORLD_SIZE 3, as on rank 0, found 4" in other_world.hear()["error"]
    assert "RANK 2 is taken by a process on elsewhere" in twice.hear()["error"]
    last.close()

    said = end(first)[1]

    assert said.count("turned away") == len(rubbish) + 2, said
    with suppress(ConnectionResetError):
        assert silent.recv(1) == b""
    assert "rank 2 (elsewhere) has closed the connection" in said


def test_only_who_has_the_token_is_measured_with(ranks: Any, stack: ExitStack) -> None:
    job = ranks(2)
    master = stack.enter_context(closing(socket.create_server(("localhost", job.port))))
    rank = job.start(1)
    control = stack.enter_context(closing(master.accept()[0]))
    lines = stack.enter_context(closing(control.makefile("rw")))
    port = json.loads(lines.readline())["port"]
    print(json.dumps({"token": "of this job"}), file=lines, flush=True)
    assert json.loads(lines.readline()) == {"ready": True}

    def ask(token: str) -> bytes:
        with socket.create_connection(("localhost", port), timeout=60) as asking:
            wish = {"exchange": "echo", "token": token, "rate_seconds": 1, "patience_seconds": 60, "warm_up_seconds": 0}
            asking.sendall(json.dumps(HELLO | wish).encode() + b"\n")
            return asking.recv(100)

    silent = stack.enter_context(closing(socket.create_connection(("localhost", port))))
    assert ask("of another job") == b""
    assert json.loads(ask("of this job")) == {"ready": True}
    print(json.dumps({"done": True}), file=lines, flush=True)

    [(_, said)] = good(rank)
    assert said.count("turned away") == 1 and "it is of another job" in said
    assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"RANK": "2"}, "RANK: expected a number from 0 to 1, found 2"),
        ({"WORLD_SIZE": "1"}, "WORLD_SIZE: expected a number from 2 to 512, found 1"),
        ({"WORLD_SIZE": "two"}, "found two"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR: expected the host of rank 0"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT: expected a number"),
        ({"CAIRN_FAILURE_DOMAIN": "x" * 256}, "CAIRN_FAILURE_DOMAIN: expected at most 255 bytes"),
    ],
)
def test_a_wrong_environment_is_named(ranks: Any, changed: dict[str, str], reason: str) -> None:
    assert reason in failed(ranks(2).start(0, **changed))


@pytest.mark.parametrize("option", ["--gpu", "/tmp", "--pair-time=1h", "--timeout=0", "--port=0"])
def test_a_wrong_option_is_named(ranks: Any, option: str) -> None:
    process = ranks(2).start(0, option)
    assert option.partition("=")[0].replace("/tmp", "directory") in end(process)[1]
    assert process.returncode == 2


def test_a_port_that_is_taken_is_named(ranks: Any, stack: ExitStack) -> None:
    job = ranks(2)
    taken = stack.enter_context(closing(socket.create_server(("", job.port))))
    assert "--port" in failed(job.start(0)) and taken.fileno() >= 0


def test_a_master_that_is_something_else_is_named(ranks: Any, stack: ExitStack) -> None:
    job = ranks(2)
    master = stack.enter_context(closing(socket.create_server(("localhost", job.port))))
    rank = job.start(1)
    asked = stack.enter_context(closing(master.accept()[0]))
    asked.sendall(b"SSH-2.0\r\n")
    assert f"rank 0 (localhost:{job.port}) says what is not understood" in failed(rank)
