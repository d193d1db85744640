"""Nodes of a network on this machine. Each is a network namespace; what one sends to another arrives as late, and at as small a
rate, as the link of these two has. This process carries the packets between their TUN devices: tc's netem, which could delay them,
is not in every kernel. Needs root and iproute2. Namespaces have no names, so nothing is left of them, however the process ends."""

import ctypes
import fcntl
import heapq
import os
import selectors
import struct
import subprocess
import threading
import time

INTERFACE = "node0"
MTU = 60_000  # Large packets, so that few of them carry much.
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN_WITHOUT_HEADER = 0x400454CA, 0x1001


class Unavailable(Exception):
    """This machine has no such network; the message says what is missing."""


def address(node):
    return f"10.77.47.{node + 1}"


def _libc(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def enter(path):
    """The calling thread, and the threads and processes that it starts, are on that node."""
    network = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _libc("setns", network, CLONE_NEWNET)
    finally:
        os.close(network)


def elsewhere(body):
    """What body() returns on a thread of its own, which may enter a node."""
    found = []

    def run():
        try:
            found.append((body(), None))
        except Exception as error:  # noqa: BLE001
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((value, error),) = found
    if error:
        raise error
    return value


class Nodes:
    """A context manager: the nodes, and between them links[a][b], (seconds of delay, bytes per second)."""

    def __init__(self, links):
        self._links = links
        self._free = [[0.0] * len(links) for _ in links]  # When each link has sent what it was given.
        self._flying = []  # (when it arrives, number, to, packet)
        self._number = 0
        self._devices, self._networks = [], []
        try:
            for node in range(len(links)):
                elsewhere(lambda node=node: self._make(node))
        except (OSError, subprocess.CalledProcessError) as error:
            self._close()
            said = getattr(error, "stderr", None)
            raise Unavailable(f"network namespaces with TUN devices need root and iproute2: {said or error}") from None
        self._wake, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        os.close(self._stop)
        self._thread.join()
        os.close(self._wake)
        self._close()

    def path(self, node):
        """For `enter`, in this process or one that it started."""
        return f"/proc/{os.getpid()}/fd/{self._networks[node]}"

    def _make(self, node):
        _libc("unshare", CLONE_NEWNET)
        self._networks.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._devices.append(device)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN_WITHOUT_HEADER))
        for words in (f"addr add {address(node)}/24 dev {INTERFACE}", f"link set {INTERFACE} mtu {MTU} txqueuelen 10000 up",
                      "link set lo up"):  # fmt: skip
            subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)

    def _close(self):
        for descriptor in (*self._devices, *self._networks):
            os.close(descriptor)

    def _carry(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for node, device in enumerate(self._devices):
                selector.register(device, selectors.EVENT_READ, node)
            while True:
                wait = self._flying[0][0] - time.monotonic() if self._flying else None
                for key, _ in selector.select(wait and max(0.0, wait)):
                    if key.fileobj == self._wake:
                        return
                    self._take(key.data)
                self._deliver()

    def _take(self, node):
        while True:
            try:
                packet = os.read(self._devices[node], 1 << 16)
            except BlockingIOError:
                return
            to = packet[19] - 1 if packet[0] >> 4 == 4 else -1  # Of IPv6's own packets none goes anywhere.
            if 0 <= to < len(self._devices):
                delay, rate = self._links[node][to]
                self._free[node][to] = max(self._free[node][to], time.monotonic()) + len(packet) / rate
                self._number += 1
                heapq.heappush(self._flying, (self._free[node][to] + delay, self._number, to, packet))

    def _deliver(self):
        while self._flying and self._flying[0][0] <= time.monotonic():
            *_, to, packet = heapq.heappop(self._flying)
            os.write(self._devices[to], packet)
