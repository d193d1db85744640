"""What is measured of one system with one state in one fresh process: saves, memory, busy loops beside saves, loads."""

import os
import time

from ..shared.fio import fio
from ..shared.machine import drop_pages, fill_page_cache

GB = 1e9
BUSY_RATE = 0.5 * GB  # Bytes a second that each system saves at beside busy loops, where it can.


class Samples:
    """Every figure of a run with one state, by system and measure."""

    def __init__(self, state, report):
        self.state, self.report = state, report
        self.failures = {}  # system: why
        self.facts = {}  # system: what its process said at its start

    def add(self, system, measure, value):
        self.report.single(f"{self.state} {system}", len(self.of(system, measure)), measure, value)

    def of(self, system, measure):
        return self.report.values.of(f"{self.state} {system}", measure)


class Disk:
    """fio on the disk that is measured, with the size of the state (1 GiB at least, unless scaled down)."""

    def __init__(self, directory, memory, least):
        self.directory, self.memory, self.least = directory, memory, least
        self.laid_out = 0

    def _run(self, rw, size, keep=False):
        size = max(self.least, size) + (4 << 20) - 1 >> 22 << 22
        return fio(os.path.join(self.directory, f"fio-{rw}.data"), rw, self.memory, size, keep)[0], size

    def write(self, size):
        return self._run("write", size)[0]

    def read(self, size):
        file = os.path.join(self.directory, "fio-read.data")
        if self.laid_out < size:
            self.remove()
            _, self.laid_out = self._run("write", size, keep=True)
            os.rename(os.path.join(self.directory, "fio-write.data"), file)
        return self._run("read", size)[0]

    def remove(self):
        file = os.path.join(self.directory, "fio-read.data")
        if os.path.exists(file):
            os.unlink(file)
        self.laid_out = 0


class Session:
    """The measures of one repetition; they call `add(measure, value)`."""

    def __init__(self, worker, disk, add, pairs):
        self.worker, self.disk, self.add, self.pairs = worker, disk, add, pairs
        self.bytes = worker.hello["bytes"]
        self.step = 0

    def _save(self, watched=False):
        self.step += 1
        call = self.worker.watched if watched else self.worker
        return call("save", self.step)

    def _fill(self):
        fill_page_cache(4 * self.bytes)  # Staging and the page cache take twice the state.

    def _tidy(self):
        """Leaves the newest checkpoint alone on the disk, and the disk idle."""
        if self.step > 1:
            self.worker("remove", self.step - 1)
        os.sync()

    def _count(self, kind, answer, rate=None):
        for name in ("blocked", "free", "finished", "durable"):
            self.add(f"{kind} {name} s", answer[name])
        for name in ("cpu_finished", "cpu", "cpu_machine"):
            self.add(f"{kind} {name} s/GB", answer[name] / self.bytes * GB)
        if rate is not None:
            self.add("fio write bytes/s", rate)
            for name in ("finished", "durable"):
                self.add(f"{kind} {name} of fio", self.bytes / answer[name] / rate)

    def first_save(self):
        self.disk.write(self.bytes)  # Gives what was opened time to settle, as a first step would.
        self._fill()
        self._count("first", self._save())
        self._tidy()

    def saves(self):
        for _ in range(self.pairs):
            rate = self.disk.write(self.bytes)
            self._fill()
            self._count("steady", self._save(), rate)
            self._tidy()

    def memory(self, processes):
        if processes:
            _, most = self._save(watched=True)
            grown = most - self.worker.hello["before_all"]
            self._tidy()
        else:
            grown = self.worker("peak")["grown"]
        self.add("peak bytes", grown)
        if cap := self.worker.hello["cap"]:
            self.add("peak of cap", grown / cap)

    def busy(self, loops):
        window = max(1.0, self.bytes / BUSY_RATE)

        def save():
            begin = time.monotonic()
            answer.update(self._save())
            time.sleep(max(0.0, window - (time.monotonic() - begin)))

        for _ in range(self.pairs):
            answer = {}
            self._fill()
            with loops:
                # Half before and half after, so that drift cancels out.
                before, _ = loops.speed(lambda: time.sleep(window / 2))
                beside, seconds = loops.speed(save)
                after, _ = loops.speed(lambda: time.sleep(window / 2))
            self._tidy()
            alone = (before + after) / 2
            rate = self.bytes / seconds / GB
            lost, share = 1 - beside / alone, answer["cpu"] / (2 * seconds)
            self.add("busy GB/s", rate)
            self.add("busy steps/s alone", alone)
            self.add("busy lost per GB/s", lost / rate)
            self.add("busy cpu share per GB/s", share / rate)
            self.add("busy excess per GB/s", (lost - share) / rate)

    def loads(self):
        for _ in range(self.pairs):
            rate = self.disk.read(self.bytes)
            drop_pages(self.worker.root)
            self._fill()
            answer = self.worker("load", self.step)
            self.add("fio read bytes/s", rate)
            self.add("load s", answer["seconds"])
            self.add("load of fio", self.bytes / answer["seconds"] / rate)
            self.add("load cpu s/GB", answer["cpu"] / self.bytes * GB)
