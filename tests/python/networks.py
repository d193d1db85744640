"""Networks of this machine's own, for programs of several nodes: namespaces, links with tc's rates, a link with a delay.

They need root, Linux's network namespaces, and iproute2's `ip` and `tc`. Nothing else is connected to them, and they
disappear with the process that holds them.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def run(*command: str) -> None:
    """Skips the test where the system does not permit it, or lacks it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        pytest.skip(f"no network of our own: {error}")
    if done.returncode != 0:
        pytest.skip(f"no network of our own: {' '.join(command)}: {done.stderr.strip()}")


class Node:
    """A network namespace, with a host name of its own. `address` is its own on every link."""

    def __init__(self, number: int) -> None:
        self.name = f"node{number}"
        self.address = f"10.77.0.{number + 1}"
        script = (
            f"hostname {self.name} && ip link set lo up && ip address add {self.address}/32 dev lo && echo up && cat"
        )
        try:
            self.holder = subprocess.Popen(
                ["unshare", "--net", "--uts", "sh", "-c", script],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except FileNotFoundError as error:
            pytest.skip(f"no network of our own: {error}")
        assert self.holder.stdout is not None and self.holder.stderr is not None
        if self.holder.stdout.readline() != "up\n":
            pytest.skip(f"no network of our own: {self.holder.stderr.read().strip()}")

    def inside(self, *command: str) -> list[str]:
        """The command that runs this one there."""
        spaces = f"/proc/{self.holder.pid}/ns"
        return ["nsenter", f"--net={spaces}/net", f"--uts={spaces}/uts", *command]

    def connect(self, other: Node, device: str, rate: str) -> None:
        """Routes what goes to the other over the device, at tc's rate."""
        run(*self.inside("ip", "link", "set", device, "up"))
        run(*self.inside("ip", "route", "add", f"{other.address}/32", "dev", device, "src", self.address))
        limit = ["tbf", "rate", rate, "burst", "32kb", "latency", "100ms"]
        run(*self.inside("tc", "qdisc", "add", "dev", device, "root", *limit))

    def close(self) -> None:
        assert self.holder.stdin is not None
        self.holder.communicate(timeout=60)


class Neighbour:
    """A host name of its own in the network of a node."""

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.name, self.address = node, f"host{number}", node.address

    def inside(self, *command: str) -> list[str]:
        return self.node.inside("unshare", "--uts", "sh", "-c", f'hostname {self.name} && exec "$@"', "sh", *command)


class TwoAddresses:
    """A node under a name with two addresses: the first one drops every packet."""

    def __init__(self, node: Node, hosts: Path) -> None:
        self.node, self.hosts, self.address = node, hosts, "master"
        hosts.write_text(f"127.0.0.1 localhost\n2001:db8::1 master\n{node.address} master\n")
        for command in (
            "link add dropping type veth peer name nothing",
            "link set dropping up",
            "link set nothing up",
            "-6 address add 2001:db8::2/64 dev dropping nodad",
            "-6 neigh add 2001:db8::1 lladdr 02:00:00:00:00:01 dev dropping nud permanent",
        ):
            run(*node.inside("ip", *command.split()))

    def inside(self, *command: str) -> list[str]:
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return self.node.inside("unshare", "--mount", "sh", "-c", script, str(self.hosts), *command)


class FewDescriptors:
    """This host, for a process that may have so many files open."""

    def __init__(self, address: str, descriptors: int) -> None:
        self.address, self.descriptors = address, descriptors

    def inside(self, *command: str) -> list[str]:
        return ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self.descriptors), *command]


# Where a rank of a test runs.
Host = Node | Neighbour | TwoAddresses | FewDescriptors


def link(one: Node, other: Node, rate: str, back: str) -> None:
    """A pair of veth devices."""
    ends = (f"to-{other.name}", f"to-{one.name}")
    command = ["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", str(other.holder.pid)]
    run(*one.inside(*command))
    one.connect(other, ends[0], rate)
    other.connect(one, ends[1], back)


class DelayLine(threading.Thread):
    """A link of two TUN devices: this thread holds each packet back for some time, and then passes it on."""

    def __init__(self, nodes: Sequence[Node], delay_s: float, rate: str) -> None:
        super().__init__(daemon=True)
        self.delay_s = delay_s
        self.ends = [self._open(node) for node in nodes]
        for node, other in itertools.permutations(nodes, 2):
            node.connect(other, "line", rate)
        self.stopping, self.stop = os.pipe()
        self.start()

    @staticmethod
    def _open(node: Node) -> int:
        """A device in the node's namespace. Only the thread that opens it goes there."""
        found: list[int] = []

        def enter() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            with Path(f"/proc/{node.holder.pid}/ns/net").open() as space:
                if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
                    return
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"line", IFF_TUN | IFF_NO_PI))
            found.append(end)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if not found:
            pytest.skip("no network of our own: /dev/net/tun cannot be used")
        return found[0]

    def run(self) -> None:
        order = itertools.count()
        held: list[tuple[float, int, int, bytes]] = []
        while True:
            wait = max(0, held[0][0] - time.monotonic()) if held else None
            ready, _, _ = select.select([*self.ends, self.stopping], [], [], wait)
            if self.stopping in ready:
                return
            for end in ready:
                packet = os.read(end, 65536)
                other = self.ends[1 - self.ends.index(end)]
                heapq.heappush(held, (time.monotonic() + self.delay_s, next(order), other, packet))
            while held and held[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(held)
                os.write(end, packet)

    def close(self) -> None:
        os.close(self.stop)
        self.join()
        for fd in (*self.ends, self.stopping):
            os.close(fd)
