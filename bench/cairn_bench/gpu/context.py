"""The machine that is proven on, and how a step runs programs there."""

import datetime
import functools
import hashlib
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from ..shared import ROOT
from ..shared.machine import commit, machine

SOURCES = ("CMakeLists.txt", "CMakePresets.json", "cmake", "include", "src", "bindings", "bench", "tests", "scripts")
DOUBLE = "tests/device/fake_cuda"  # Under the build: libcuda.so.1, the driver's test double.


class Failed(Exception):
    """A program that a step needs did not do what it should. The message is for the table."""


def source_digest():
    """Of everything that a result depends on, so that a step is not run again for a change of documents alone."""
    digest = hashlib.sha256()
    for top in SOURCES:
        files = [top] if os.path.isfile(os.path.join(ROOT, top)) else []
        for folder, folders, names in os.walk(os.path.join(ROOT, top)):
            folders[:] = sorted(name for name in folders if name not in ("__pycache__", "results"))
            files += [os.path.relpath(os.path.join(folder, name), ROOT) for name in sorted(names)]
        for file in files:
            with open(os.path.join(ROOT, file), "rb") as opened:
                digest.update(f"{file}\n".encode() + hashlib.sha256(opened.read()).digest())
    return digest.hexdigest()[:16]


def gpu_and_driver():
    """(name and memory of each GPU, the driver's version); None where nvidia-smi finds no GPU."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split(", ") for line in ran.stdout.splitlines() if line.count(", ") == 2]
    if ran.returncode != 0 or not rows:
        return None
    names = [f"{name}, {memory}" for name, memory, _ in rows]
    return "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)), rows[0][2]


class OutOfTime(Exception):
    """What was asked for cannot be run within the minutes that there are, or was cut short by their end."""


class Context:
    """`dry`: on the CPU, with the driver's double for C++ programs, and as small as possible. `short`: on a GPU, with
    fewer and shorter runs."""

    def __init__(self, directory, python, dry, short=False, seconds=math.inf):
        self.directory, self.python, self.dry, self.short = directory, python, dry, short
        self.end = time.monotonic() + seconds
        self.device = "cpu" if dry else "cuda"
        self.build = os.path.join(ROOT, "build/release")
        libraries = [os.path.join(self.build, DOUBLE), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        # Programs that know nothing of the double get Cairn's kernels. FAKE_CUDA_BROKEN of the environment holds too.
        kernels = os.environ.get("FAKE_CUDA_KERNELS", "1")
        self.double = {"LD_LIBRARY_PATH": ":".join(libraries), "FAKE_CUDA_KERNELS": kernels} if dry else {}

    def about(self):
        """What every result says of itself."""
        found = ("the CPU and the driver's test double", "the double's") if self.dry else gpu_and_driver()
        if found is None:
            raise Failed("nvidia-smi finds no GPU and no driver here; --dry-run needs neither")
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        command = shlex.join(["scripts/prove-gpu", *sys.argv[1:]]).replace(ROOT + "/", "")
        return {
            "date": now, "command": command, "commit": commit(), "source": source_digest(), "device": found[0],
            "driver": found[1], "machine": machine(self.directory), "dry_run": self.dry, "short": self.short,
        }  # fmt: skip

    def sized(self, whole, dry, short=None):
        """A size or count: the one that measures, the one of a dry run, or that of a short one, where it is another."""
        return dry if self.dry else short if self.short and short is not None else whole

    def together(self, parts):
        """Runs parts that measure nothing, as many at once as the machine has cores for."""
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
            for part in [pool.submit(part) for part in parts]:
                part.result()

    @functools.cached_property
    def no_torch(self):
        """Why Python steps cannot run; None if they can."""
        check = "import torch, cairn, sys; sys.exit(torch.cuda.is_available() < int(sys.argv[1]))"
        words = [self.python, "-B", "-c", check, str(int(not self.dry))]
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return None
        lines = ran.stderr.strip().splitlines()
        return f"{self.python}: {lines[-1] if lines else 'its torch finds no GPU'}"

    def program(self, name):
        """The path of a program of the release build. Failed if it was not built."""
        path = os.path.join(self.build, "bin", name)
        if not os.path.exists(path):
            raise Failed(f"{name} is not built")
        return path

    def left(self):
        """The seconds that there are for what is still to be run."""
        return self.end - time.monotonic()

    def run(self, words, limit, env=None):
        """(exit status, standard output, standard error); Failed after `limit` seconds. Negative status: a signal."""
        left = self.left()
        if left <= 0:
            raise OutOfTime("no time was left")
        limit, own = min(limit, left), limit
        try:
            ran = subprocess.run(
                list(map(str, words)), capture_output=True, text=True, timeout=limit, check=False, errors="replace",
                env=os.environ | (env or {}), stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as over:
            if limit < own:
                raise OutOfTime("it was cut short by the end of the time") from over
            raise Failed(f"{os.path.basename(str(words[0]))}: not done after {limit} s") from over
        return ran.returncode, ran.stdout, ran.stderr

    def answers(self, words, limit, env=None):
        """The JSON lines that a program prints. Failed, with its last line of errors, unless it ends with 0 and has
        printed one: what says nothing has proven nothing."""
        status, out, errors = self.run(words, limit, env)
        if status != 0:
            raise Failed(f"exit {status}: {last_line(errors)}")
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            raise Failed(f"exit 0, but no line of JSON: {last_line(errors or out)}")
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise Failed(f"exit 0, but a line is no JSON: {error}") from error

    def worker(self, name, *words, limit, env=None):
        """The answers of a Python program of this package, in a fresh process."""
        command = [self.python, "-B", "-m", f"cairn_bench.gpu.programs.{name}", "--device", self.device, *words]
        return self.answers(command, limit, (env or {}) | self.sized({}, {"OMP_NUM_THREADS": "1"}))

    def folder(self, name):
        """An empty folder on the disk that is measured."""
        path = os.path.join(self.directory, f"prove-gpu-{name}")
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        return path


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
