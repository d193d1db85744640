"""`cairn doctor --peers`: ranks that are real processes measure the network between them, for `cairn place`."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from jobs import COMMAND
from networks import DelayLine, Neighbour, Node, link, run
from peer_ranks import free_port, good

PLANNING = Path(__file__).parents[2] / "docs/planning.md"
MEGABIT = 1e6 / 8


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

    said = good(job.start(0, "--out", out, "--json", "--pair-time=1s"), *(job.start(i) for i in range(1, 4)))[0][0]

    measured = json.loads(said)
    assert measured["rounds"] == 3
    assert [(one["name"], one["domain"]) for one in measured["ranks"]] == [(node.name, node.name) for node in nodes]
    topology = json.loads(out.read_text())
    for pair in measured["pairs"]:
        i, j = pair["from"], pair["to"]
        rates = pair["bytes_per_second"], pair["bytes_per_second_back"]
        for rate, limit in zip(rates, limits[i, j], strict=True):
            # tc counts headers too: TCP has 0.956 of it, and less on a busy machine.
            assert 0.4 <= rate / (limit * MEGABIT) <= 1, pair
        assert topology["bytes_per_second"][i][j] == topology["bytes_per_second"][j][i] == min(rates)
    assert len(measured["pairs"]) == 6
    assert keepers(out) == {"node0": "node2", "node2": "node0", "node1": "node3", "node3": "node1"}


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


def test_a_rank_that_came_by_a_loopback_address_is_found_from_elsewhere(
    ranks: Any, stack: ExitStack, tmp_path: Path
) -> None:
    nodes = [stack.enter_context(closing(Node(i))) for i in range(2)]
    link(nodes[0], nodes[1], "80mbit", "80mbit")
    job = ranks(3, [*nodes, Neighbour(nodes[0], 2)])

    measuring = [job.start(0, "--out", tmp_path / "topology.json"), job.start(1), job.start(2, MASTER_ADDR="127.0.0.1")]

    assert "1 node1  2 host2" in good(*measuring)[0][0]


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
    for code in re.findall(r"^```sh\n(.*?)^```", PLANNING.read_text(), re.DOTALL | re.MULTILINE)
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
