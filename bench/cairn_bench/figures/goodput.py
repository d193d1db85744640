"""A training that is really killed, at given instants, and starts again at once.

Each life is a process of bench_training --resume in one directory (and one on tmpfs, for what is kept in memory), with its
own journal. SIGKILL ends it. The page
cache of its files is dropped, as a new machine has none of them. The next process starts at that moment; if the next
failure comes before it trains, it is killed as it starts. The clock begins with the first iteration of the first
process, so that what comes before (memory, files that are laid out) does not count.

Useful are the iterations that the last process can look back on: the step that it has reached at the end, over the
time. Steps that were lost do not count, whether they were computed again or not.
"""

import itertools
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from typing import NamedTuple

from .goodput_model import Costs

MEMORY = "/dev/shm"
START_SECONDS = 300  # That a first process may take until it trains.


class Failed(Exception):
    """This training gives no figure: it ended by itself, or lost what it had reported as durable."""


class Life(NamedTuple):
    """What one process wrote in its journal. Times are of CLOCK_MONOTONIC, by step."""

    killed: float
    began: float  # Its first iteration. Infinite if it was killed before.
    first: int  # The step that it resumed from.
    iterations: dict[int, float]
    saves: dict[int, float]
    durable: dict[int, float]

    @property
    def reached(self):
        """The last step whose update was done. A save shows it earlier than the end of the iteration."""
        return max([self.first, *self.iterations, *self.saves])


class Outcome(NamedTuple):
    """What is counted, and what was measured on the way. Seconds, iterations."""

    seconds: float
    reached: int
    failures: list[float]  # When they came, in seconds from the begin.
    lost: list[int]  # Steps to be computed again, for each failure of a process that trained.
    restarts: list[float]  # From the kill to the first iteration, for each restart that came to train.
    killed_starting: int  # Failures of a process that did not train yet.
    lives: list[Life]

    @property
    def goodput(self):
        return self.reached / self.seconds


def replay(command, directory, failures, end):
    """Trains by `command` (without --dir, --memory, --resume and --journal) in a new directory under `directory`.

    `failures` and `end` are seconds from the first iteration. Raises Failed if there is no figure. Whatever happens, no
    process and no file is left.
    """
    with _Interrupts() as interrupts:
        work = tempfile.mkdtemp(prefix="goodput-", dir=directory)
        memory = tempfile.mkdtemp(prefix="goodput-", dir=MEMORY)
        try:
            return _account(_lives([*command, "--memory", memory], work, failures, end, interrupts))
        finally:
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(memory, ignore_errors=True)


def costs(outcome, every, ideal_iteration, in_flight):
    """What the models need to know of it."""
    cycles, write, exposed = [], [], []
    for life in outcome.lives:
        begins = [life.began, *(at for step, at in life.iterations.items() if step % every == 0)]
        cycles += [after - before for before, after in itertools.pairwise(begins)]
        for step, at in life.durable.items():
            write.append(at - life.saves[step])
            exposed.append(max(0.0, at - life.iterations.get(step, at)))
    trained = [life for life in outcome.lives if life.iterations]
    computed = sum(len(life.iterations) for life in trained)
    # Whole intervals if there are any: a part of one has less than its share of stalls.
    iteration = statistics.mean(cycles) / every if cycles else _trained_seconds(trained) / max(1, computed)
    return Costs(
        every=every,
        ideal_iteration=ideal_iteration,
        iteration=iteration,
        write=statistics.mean(write) if write else float("inf"),
        exposed=statistics.mean(exposed) if exposed else float("inf"),
        restart=statistics.mean(outcome.restarts) if outcome.restarts else 0.0,
        in_flight=in_flight,
    )


def _trained_seconds(lives):
    return sum(max(life.iterations.values()) - life.began for life in lives)


def _lives(command, work, failures, end, interrupts):
    lives, begin = [], None
    for number, at in enumerate([*failures, end]):
        journal = os.path.join(work, f"journal-{number}")
        with _Process(command, work, journal, interrupts) as process:
            if begin is None:
                begin = process.await_training(time.monotonic() + START_SECONDS)
            process.await_end(begin + at)
            killed = process.kill()
        lives.append(_read(journal, killed))
        _drop_cache(os.path.join(work, "run"))
    return lives


class _Interrupts:
    """Inside, SIGINT and SIGTERM raise KeyboardInterrupt only where we wait, and at the end.

    Anywhere else it could come after something was started or made, and before anyone knows of it.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self):
        self.came, self.write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.before = [signal.signal(each, lambda *_: None) for each in self.SIGNALS]
        self.wakeup = signal.set_wakeup_fd(self.write)
        return self

    def __exit__(self, kind, *_):
        signal.set_wakeup_fd(self.wakeup)
        came = select.select([self.came], [], [], 0)[0]
        os.close(self.came)
        os.close(self.write)
        for each, handler in zip(self.SIGNALS, self.before):
            signal.signal(each, handler)
        if came and kind is None:
            raise KeyboardInterrupt


class _Process:
    """One process of the training. It is gone at the end of the `with`, however that ends."""

    def __init__(self, command, work, journal, interrupts):
        directory = os.path.join(work, "run")
        os.makedirs(directory, exist_ok=True)
        self.journal, self.interrupts = journal, interrupts
        # In its own session, so that only we get a SIGINT from the terminal.
        self.process = subprocess.Popen(
            [*command, "--dir", directory, "--resume", "--journal", journal],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.ended = os.pidfd_open(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        os.close(self.ended)
        self.process.stderr.close()

    def await_training(self, deadline):
        """Returns when it began its first iteration."""
        while time.monotonic() < deadline:
            if (began := _read(self.journal, 0).began) < float("inf"):
                return began
            self.await_end(time.monotonic() + 0.005)
        raise Failed(f"no iteration within {START_SECONDS} s")

    def await_end(self, until):
        """Returns at that time. Raises Failed if the process ends before."""
        came = select.select([self.ended, self.interrupts.came], [], [], max(0.0, until - time.monotonic()))[0]
        if self.interrupts.came in came:
            raise KeyboardInterrupt
        if came:
            said = self.process.stderr.read().strip()
            raise Failed(f"ended by itself with {self.process.wait()}: {said}")

    def kill(self):
        """Waits until the process is gone. Returns when it was killed."""
        at = time.monotonic()
        self.process.kill()
        self.process.wait()
        return at


def _read(journal, killed):
    began, first = float("inf"), 0
    events = {"iteration": {}, "save": {}, "durable": {}}
    if not os.path.exists(journal):
        return Life(killed, began, first, {}, {}, {})  # Killed before its first line.
    with open(journal) as file:
        for line in file:
            if not line.endswith("\n"):
                continue  # Still being written.
            event = json.loads(line)
            if event["event"] == "begin":
                began, first = event["at"], event["step"]
            elif event["event"] in events:
                events[event["event"]][event["step"]] = event["at"]
    return Life(killed, began, first, events["iteration"], events["save"], events["durable"])


def _drop_cache(directory):
    """Drops the pages that are on the disk. Those that are not cannot belong to a durable checkpoint."""
    for folder, _, names in os.walk(directory):
        for name in names:
            file = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def _account(lives):
    *killed, _ = lives
    begin = lives[0].began
    trained = [life for life in lives if life.began < float("inf")]
    lost, restarts, durable = [], [], 0
    for before, after in itertools.pairwise(trained):
        durable = max([durable, *before.durable])
        if not durable <= after.first <= before.reached:
            raise Failed(
                f"went on from step {after.first}; expected {durable}, which was durable, to {before.reached}, the last"
            )
        lost.append(before.reached - after.first)
    for before, after in itertools.pairwise(lives):
        if after.began < float("inf"):
            restarts.append(after.began - before.killed)
    last = lives[-1]
    return Outcome(
        seconds=last.killed - begin,
        # One that is still starting at the end has reached what it would find.
        reached=last.reached if last is trained[-1] else max([durable, *trained[-1].durable]),
        failures=[life.killed - begin for life in killed],
        lost=lost,
        restarts=restarts,
        killed_starting=sum(life.began == float("inf") for life in killed),
        lives=lives,
    )
