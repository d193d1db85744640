"""One system with one state in one process. It answers each command with a line of JSON.

save STEP    one save, until it is durable
load STEP    overwrites the state's tensors, reads them back and checks them
remove STEP
peak         the most memory since the state was made, and the memory now; both less what there was then
"""

import argparse
import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
import traceback

import torch

from . import usage
from .catalogue import SYSTEMS
from .systems.base import fsync_all


class Worker:
    def __init__(self, args):
        from .states import STATES, tensors

        entry = SYSTEMS[args.system]
        module = importlib.import_module(f".systems.{entry.module}", __package__)
        kind = getattr(module, entry.kind)
        tree = STATES[args.state](args.scale, args.device)
        self.device = args.device
        self.tensors = [tensor for _, tensor in tensors(tree)]
        self.flat = tensors
        self.bytes = sum(tensor.nbytes for tensor in self.tensors)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        usage.reset_peak()
        self.before = usage.resident_bytes()
        self.before_all = usage.proportional_bytes(os.getpid())
        self.system = kind(args.root, tree)
        try:
            self.version = importlib.metadata.version(kind.package)
        except importlib.metadata.PackageNotFoundError:
            self.version = "?"

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def hello(self):
        return {
            "bytes": self.bytes,
            "tensors": len(self.tensors),
            "version": self.version,
            "cap": getattr(self.system, "cap", 0),
            "before_all": self.before_all,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
        }

    def save(self, step):
        gc.collect()
        self.synchronize()
        cpu, machine = usage.cpu_seconds(), usage.machine_cpu_seconds()
        begin = time.perf_counter()
        pending = self.system.save(int(step))
        blocked = time.perf_counter()
        pending.captured()
        free = time.perf_counter()
        pending.finished()
        finished = time.perf_counter()
        cpu_finished = usage.cpu_seconds()
        durable = finished
        if not self.system.durable:
            fsync_all(self.system.path(int(step)))
            durable = time.perf_counter()
        return {
            "blocked": blocked - begin,
            "free": free - begin,
            "finished": finished - begin,
            "durable": durable - begin,
            "cpu_finished": cpu_finished - cpu,
            "cpu": usage.cpu_seconds() - cpu,
            "cpu_machine": usage.machine_cpu_seconds() - machine,
        }

    def load(self, step):
        firsts = [tensor.view(-1)[0].item() for tensor in self.tensors]
        for tensor in self.tensors:
            tensor.view(-1)[0] = -1
        gc.collect()
        self.synchronize()
        cpu = usage.cpu_seconds()
        begin = time.perf_counter()
        loaded = self.system.load(int(step))
        if loaded is not None:
            for target, (_, found) in zip(self.tensors, self.flat(loaded), strict=True):
                if target.data_ptr() != found.data_ptr():
                    target.copy_(found)
        self.synchronize()
        seconds = time.perf_counter() - begin
        cpu = usage.cpu_seconds() - cpu
        if [tensor.view(-1)[0].item() for tensor in self.tensors] != firsts:
            raise AssertionError("what was loaded is not what was saved")
        return {"seconds": seconds, "cpu": cpu}

    def remove(self, step):
        self.system.remove(int(step))
        return {}

    def peak(self):
        return {"grown": usage.peak_bytes() - self.before, "grown_now": usage.resident_bytes() - self.before}

    def close(self):
        self.system.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", required=True)
    parser.add_argument("--state", required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--tools", required=True)
    args = parser.parse_args()

    # Answers have their own descriptor, as peers print too. The peers' packages come last: replacing none of the user's.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.append(args.tools)
    # Some peers share each tensor through its own file descriptor.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def answer(make, *words):
        try:
            found = make(*words)
        except Exception as error:  # noqa: BLE001  Whatever a peer raises belongs in the table.
            lines = str(error).strip().splitlines() or ["no message"]
            line = lines[-1] if "Traceback" in lines[0] else lines[0]  # Some pass on another process's traceback.
            found = {"error": f"{type(error).__name__}: {line}"}
            traceback.print_exc()
        answers.write(json.dumps(found) + "\n")
        answers.flush()
        return found

    made = []

    def start():
        made.append(Worker(args))
        return made[0].hello()

    if "error" in answer(start):
        return
    commands = {name: getattr(made[0], name) for name in ("save", "load", "remove", "peak")}
    for line in sys.stdin:
        name, *words = line.split()
        answer(commands[name], *words)
    made[0].close()


if __name__ == "__main__":
    main()
