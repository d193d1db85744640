"""`cairn doctor --peers` where a rank is late, dead, stopped, refusing or no rank at all: named in time, never a hang."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from networks import FewDescriptors, Node, TwoAddresses, run
from peer_ranks import HELLO, Rank, end, failed, good

# Ranks that fail


def test_a_rank_that_does_not_come_is_named(ranks: Any) -> None:
    job = ranks(3)
    said = failed(job.start(0, "--timeout=1s"), job.start(2))
    assert "rank 1 did not come within 1 s" in said and f"rank 2 ({socket.gethostname()})" in said


def test_a_long_reason_is_given_once(ranks: Any, stack: ExitStack) -> None:
    job = ranks(3)
    first = job.start(0, "--timeout=1s")
    # Where the reason is cut, half of a character is left.
    second = stack.enter_context(closing(Rank(job, 1, host="é" * 512)))

    assert failed(first).count("did not come within") == 1
    assert "rank 2 did not come within 1 s; here are rank 0" in second.hear()["error"]


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
    [
        ({"delay_seconds": -1, "there": 1, "back": 1}, "says: delay_seconds: expected"),
        ([], "says what is not understood"),
    ],
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
    rank = {"rank": 1, "world": 3, "host": "a", "domain": "a", "port": 1}
    others = [
        HELLO,
        rank,
        rank | {"protocol": "mail", "version": 1},
        rank | HELLO | {"version": 2},
        rank | HELLO | {"port": 0},
    ]
    rubbish = [b"GET / HTTP/1.1\r\n\r\n", b"[" * 5000 + b"\n", b"\x00" * 100_000, b"[]\n", b"{}\n"]
    rubbish += [json.dumps(other).encode() + b"\n" for other in others]
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


def test_strangers_that_say_nothing_do_not_take_the_last_descriptor(ranks: Any, stack: ExitStack) -> None:
    job = ranks(2, [FewDescriptors("localhost", 32)] * 2)
    first = job.start(0, "--timeout=5s")
    probe = stack.enter_context(closing(Rank(job, 1, world=3)))
    assert "WORLD_SIZE" in probe.hear()["error"]  # It listens.
    for _ in range(48):
        stack.enter_context(closing(socket.create_connection(("localhost", job.port), timeout=60)))

    assert "rank 1 did not come" in failed(first)


def test_who_comes_when_all_are_here_is_told_why_not(ranks: Any, stack: ExitStack) -> None:
    job = ranks(2)
    first = job.start(0)
    second = stack.enter_context(closing(Rank(job, 1)))
    assert "token" in second.hear()

    third = stack.enter_context(closing(Rank(job, 1)))

    assert "RANK 1 is taken by a process on elsewhere" in third.hear()["error"]
    second.close()
    assert "rank 1 (elsewhere) has closed the connection" in failed(first)


def test_a_stranger_does_not_keep_a_waiting_rank_busy(ranks: Any, stack: ExitStack) -> None:
    job = ranks(2)
    master = stack.enter_context(closing(socket.create_server(("localhost", job.port))))
    rank = job.start(1, "--timeout=1s")
    control = stack.enter_context(closing(master.accept()[0]))
    lines = stack.enter_context(closing(control.makefile()))
    port = json.loads(lines.readline())["port"]
    stack.enter_context(closing(socket.create_connection(("localhost", port), timeout=60)))

    _, status, used = os.wait4(rank.pid, 0)  # After two seconds: nobody says how to go on.

    rank.returncode = os.waitstatus_to_exitcode(status)
    assert rank.returncode == 2 and used.ru_utime + used.ru_stime < 0.5


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


def test_a_port_of_which_nobody_listens_is_not_taken_by_who_asks(ranks: Any, stack: ExitStack) -> None:
    node = stack.enter_context(closing(Node(0)))
    run(*node.inside("sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40007"))
    job = ranks(2, [node] * 2)
    job.port = 40002  # Ports that connect() chooses are even, of bind() odd.

    said = failed(job.start(1, "--timeout=2s"))

    assert "rank 0 cannot be reached within 2 s" in said and "Connection refused" in said


def test_an_address_that_does_not_answer_leaves_time_for_the_next(ranks: Any, stack: ExitStack, tmp_path: Path) -> None:
    node = stack.enter_context(closing(Node(0)))
    master = TwoAddresses(node, tmp_path / "hosts")
    job = ranks(2, [master] * 2)

    good(job.start(0, "--timeout=8s", "--out", tmp_path / "topology.json"), job.start(1, "--timeout=9s"))


def test_what_is_no_file_is_not_replaced(ranks: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "expected a regular file or none" in failed(ranks(2).start(0, "--timeout=1s", "--out", tmp_path / "pipe"))
    assert "expected the name of a file" in failed(ranks(2).start(0, "--timeout=1s", "--out", ""))


def test_what_was_measured_is_printed_even_if_it_cannot_be_written(
    ranks: Any, stack: ExitStack, tmp_path: Path
) -> None:
    job = ranks(2)
    (tmp_path / "gone").mkdir()
    first = job.start(0, "--json", "--out", tmp_path / "gone" / "topology.json")
    stack.enter_context(closing(Rank(job, 1, world=3))).hear()  # It has looked at the folder.
    (tmp_path / "gone").rmdir()

    good(job.start(1))
    printed, said = end(first)

    assert first.returncode == 2 and "topology.json.part: No such file" in said
    assert len(json.loads(printed)["pairs"]) == 1


def test_a_master_that_is_something_else_is_named(ranks: Any, stack: ExitStack) -> None:
    job = ranks(2)
    master = stack.enter_context(closing(socket.create_server(("localhost", job.port))))
    rank = job.start(1)
    asked = stack.enter_context(closing(master.accept()[0]))
    asked.sendall(b"SSH-2.0\r\n")
    assert f"rank 0 (localhost:{job.port}) says what is not understood" in failed(rank)
