"""All ranks of a job on this machine. Their processes are forked from one that has imported torch, because sixteen
imports of torch on two cores take longer than what is measured. Each finds the others as under torchrun."""

import gc
import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import wait

from ..shared import nodes

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
PRELOADED = ["cairn.dcp", "cairn_bench.reconfigure.parallel", "cairn_bench.reconfigure.state"]


class Failed(RuntimeError):
    """A rank failed, or had not ended by the deadline. Says which, and what it said."""


class Rank:
    """A process and what it told: `said` has (event, values), `values["at"]` being time.monotonic."""

    def __init__(self, context, number, world, address, port, network, work, arguments):
        self.number, self.said, self.code = number, [], None
        self.pipe, there = context.Pipe(duplex=False)
        environment = {
            "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip
        if network:
            environment["GLOO_SOCKET_IFNAME"] = nodes.INTERFACE
        self.process = context.Process(target=_run, args=(there, environment, network, work, arguments), daemon=True)
        self.process.start()
        there.close()

    def take(self):
        """(event, values) of its next message, or ("end", {"code"})."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):  # OSError, too, in the middle of a message.
            self.pipe.close()
            self.process.join()
            self.code = self.process.exitcode
            message = ("end", {"code": self.code})
        self.said.append(message)
        return message

    def all(self, event):
        return [values for name, values in self.said if name == event]


class Job:
    """Runs work(*arguments, tell) on `world` ranks. A context manager, which leaves no process behind. With `on`, a network
    and a node of it for each rank, they are there."""

    def __init__(self, world, work, *arguments, on=None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        network, places = on or (None, [])
        paths = [network.path(node) for node in places] or [None] * world
        address = nodes.address(places[0]) if on else "127.0.0.1"
        self._store = nodes.elsewhere(lambda: _store(paths[0], address))
        self.begun = time.monotonic()
        self.ranks = [
            Rank(context, rank, world, address, self._store.port, paths[rank], work, arguments) for rank in range(world)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.process.kill()
        for rank in self.ranks:
            rank.process.join()
            rank.pipe.close()

    @property
    def running(self):
        return [rank for rank in self.ranks if rank.code is None]

    def hear(self, until):
        """The next (rank, event, values) of a rank that runs; None at that time of time.monotonic."""
        pipes = {rank.pipe: rank for rank in self.running}
        ready = wait(list(pipes), max(0.0, until - time.monotonic()))
        return (pipes[ready[0]], *pipes[ready[0]].take()) if ready else None

    def finish(self, seconds):
        """Waits until all ranks have ended, and returns itself. Failed at the first that fails, or after the seconds."""
        deadline = time.monotonic() + seconds
        while self.running:
            heard = self.hear(deadline)
            if heard is None:
                raise Failed(f"ranks {[rank.number for rank in self.running]} had not ended after {seconds:g} s")
            rank, event, values = heard
            if event == "error" or (event == "end" and values["code"]):
                raise Failed(f"rank {rank.number}: {values.get('text') or values}")
        return self

    def all(self, event):
        """What all ranks told of an event, by rank."""
        return [values for rank in self.ranks for values in rank.all(event)]


def _store(network, address):
    from torch.distributed import TCPStore

    if network:
        nodes.enter(network)
    return TCPStore(address, 0, None, True, wait_for_workers=False)


def _run(pipe, environment, network, work, arguments):
    # Otherwise the first full collection writes to every object that was imported before the fork, and so copies all of
    # that memory in each process, within whatever is measured then.
    gc.freeze()
    os.environ.update(environment)
    if network:
        nodes.enter(network)

    def tell(event, **values):
        pipe.send((event, {"at": time.monotonic(), **values}))

    try:
        work(*arguments, tell)
    except BaseException:  # noqa: BLE001
        tell("error", text=traceback.format_exc())
        raise SystemExit(1) from None
