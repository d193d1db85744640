"""The processes that the benchmark keeps open: a system with a state, and the busy loops."""

import json
import mmap
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from ..shared import WORK
from . import usage

TOOLS = os.path.join(WORK, "tools")
TIMEOUT = 600  # Seconds for one command.


class Failed(Exception):
    """A system cannot do what is asked. The message is for the table."""


def _module(python, name, *arguments, **options):
    """A process of a module of this package. `options` are Popen's."""
    command = [python, "-B", "-m", f"{__package__}.{name}", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


class Worker:
    """One fresh process for a system and a state. A call is a command to it. Raises Failed; close it then."""

    def __init__(self, python, directory, entry, state, scale, device):
        self.root = tempfile.mkdtemp(prefix="python-", dir=directory)
        logs = os.path.join(WORK, "logs")
        os.makedirs(logs, exist_ok=True)
        settings = ["--system", entry.name, "--state", state, "--scale", str(scale), "--device", device]
        settings += ["--root", self.root, "--tools", TOOLS]
        with open(os.path.join(logs, f"{entry.name}.{state}.log"), "a") as log:
            self.process = _module(python, "worker", *settings, stderr=log, start_new_session=True)
        try:
            self.hello = self._answer("start")
        except Failed:
            self.close()
            raise

    def __call__(self, *words):
        command = " ".join(map(str, words))
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # It has ended: the answer will say so.
        return self._answer(command)

    def _answer(self, command):
        ready, *_ = select.select([self.process.stdout], [], [], TIMEOUT)
        if not ready:
            raise Failed(f"{command}: no answer in {TIMEOUT} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{command}: ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{command}: {answer['error']}")
        return answer

    def watched(self, *words):
        """The answer, and the most memory that the process and its descendants had meanwhile."""
        most, over = 0, threading.Event()

        def watch():
            nonlocal most
            while not over.wait(0.02):
                most = max(most, usage.proportional_bytes(self.process.pid))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            answer = self(*words)
        finally:
            over.set()
            thread.join()
        return answer, most

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # Its group: it, and the processes that it left behind.
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.root, ignore_errors=True)
        os.sync()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class BusyLoops:
    """Two training loops, each in a process. They run only within `with loops`."""

    def __init__(self, python, count=2):
        self.shared, self.processes = [], []
        for _ in range(count):
            with tempfile.NamedTemporaryFile() as file:
                file.write(bytes(16))
                file.flush()
                self.shared.append(memoryview(mmap.mmap(file.fileno(), 16)).cast("q"))
                process = _module(python, "busy_loop", file.name)
                self.processes.append(process)
                if process.stdout.readline() != "ready\n":
                    raise Failed("the busy loop does not start")

    def __enter__(self):
        for shared, process in zip(self.shared, self.processes):
            shared[1] = 1
            process.stdin.write("go\n")
            process.stdin.flush()
        time.sleep(0.5)  # Until both run.
        return self

    def __exit__(self, *_):
        for shared in self.shared:
            shared[1] = 0

    def speed(self, action):
        """Steps a second during the action, and how long it took."""
        before, begin = sum(shared[0] for shared in self.shared), time.perf_counter()
        action()
        seconds = time.perf_counter() - begin
        return (sum(shared[0] for shared in self.shared) - before) / seconds, seconds

    def close(self):
        self.__exit__()
        for process in self.processes:
            process.stdin.close()
            process.wait()
            process.stdout.close()
