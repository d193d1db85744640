"""A job on nodes with delays and rates between them, and DT-FM's groups on such a network."""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")

from cairn_bench.figures import networks
from cairn_bench.reconfigure import groups
from cairn_bench.shared import nodes
from cairn_bench.shared.report import Report

KNOWN = networks.published("dtfm.json")
needs_cairn = pytest.mark.skipif(not Path(networks.PROGRAM).exists(), reason="no cairn")


@pytest.fixture
def network() -> Iterator[nodes.Nodes]:
    """Of two nodes, 100 ms and 2 MB/s apart."""
    try:
        made = nodes.Nodes([[(0.1, 2e6)] * 2] * 2)
    except nodes.Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


def connect(network: nodes.Nodes) -> tuple[socket.socket, socket.socket]:
    def on(node: int, body: Any) -> Any:
        def there() -> Any:
            nodes.enter(network.path(node))
            return body()

        return nodes.elsewhere(there)

    listener = on(0, lambda: socket.create_server((nodes.address(0), 0)))
    port = listener.getsockname()[1]
    ours = on(1, lambda: socket.create_connection((nodes.address(0), port), timeout=60))
    theirs, _ = listener.accept()
    listener.close()
    return ours, theirs


def test_a_link_delays_and_holds_to_its_rate(network: nodes.Nodes) -> None:
    ours, theirs = connect(network)

    begun = time.monotonic()
    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"
    delay = time.monotonic() - begun
    count = 1_000_000
    begun = time.monotonic()
    sender = threading.Thread(target=ours.sendall, args=(bytes(count),))
    sender.start()
    received = 0
    while received < count:
        received += len(theirs.recv(1 << 20))
    transfer = time.monotonic() - begun
    sender.join()

    assert delay >= 0.1 and transfer >= 0.1 + count / 2e6
    ours.close(), theirs.close()


@needs_cairn
@pytest.mark.parametrize(("case", "locations"), [(1, 4), (3, 2), (5, 8)])
def test_the_cost_of_the_order_found_is_cairn_place_s(case: int, locations: int, tmp_path: Path) -> None:
    args = argparse.Namespace(dir=str(tmp_path), evaluations=300)
    network = groups.Network(KNOWN["cases"][case - 1], KNOWN["parameters"], 4)
    assert len(network.devices) == 8 and len({at for _, at in network.devices}) == locations

    found = network.orders(args)["found"]

    placement = networks.place(args, network.topology())
    assert network.cost(found) == pytest.approx(placement["found"]["total_seconds"], rel=1e-9)


@needs_cairn
def test_each_order_s_iterations_stand_beside_the_model(network: nodes.Nodes, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    groups.add_arguments(parser)
    args = parser.parse_args(["--dir", str(tmp_path), "--cases", "3", "--iterations", "1", "--faster", "1000"])
    report = Report(str(tmp_path))

    groups.go(args, report)

    assert list(report.values) == [
        (f"two universities of 32 GPUs, {order}", 0, name)
        for order in groups.ORDERS
        for name in ("model s", "iteration s")
    ]
    assert all(value > 0 for value in report.values.values())
