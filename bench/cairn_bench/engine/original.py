"""A program: PCcheck's own engine, as published, saves a state again and again. Writes a JSON file.

It runs as it ships: Chk_monitor starts its process on core 1, which polls for the next save. Two things are not its own.
Its GPU tensor is memory of the CPU, whose copies run on the other cores, because a GPU's would run on none; and the end
of each checkpoint is noted. PYTHONPATH has its checkout.
"""

import argparse
import json
import os
import resource
import struct
import sys
import time
from multiprocessing.connection import wait

import torch
from checkpoint_eval.pccheck import chk_monitor

BATCHES = 8  # The authors' --psize.


class OnTheGpu(torch.Tensor):
    """A tensor from which copies run on any core but the checkpoint process's."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is not torch.Tensor.copy_:
            return super().__torch_function__(function, types, args, kwargs or {})
        mine = os.sched_getaffinity(0)
        others = set(range(os.cpu_count() or 1)) - mine
        os.sched_setaffinity(0, others or mine)
        try:
            to, source = args[:2]
            return to.copy_(source.as_subclass(torch.Tensor))
        finally:
            os.sched_setaffinity(0, mine)


def run(args):
    torch.set_num_threads(1)
    ended, note = os.pipe()

    class Noted(chk_monitor.Checkpoint):
        def write_pipelined(self, *given):
            super().write_pipelined(*given)
            os.write(note, struct.pack("d", time.monotonic()))

    chk_monitor.Checkpoint = Noted
    os.chdir(args.dir)
    floats = args.bytes // 4
    state = torch.ones(floats, dtype=torch.float32).as_subclass(OnTheGpu)
    monitor = chk_monitor.Chk_monitor(
        args.library,
        floats,
        args.threads,
        args.in_flight,
        True,
        gpu_ar=state,
        bsize=floats // BATCHES,
        memory_saving=True,
    )
    saved, durable = [], []

    def await_durable(count):
        while len(durable) < count:
            if ended not in wait([ended, monitor.chk_process.sentinel]):
                sys.exit(f"PCcheck's process ended after {len(durable)} of {args.saves} checkpoints")
            durable.append(struct.unpack("d", os.read(ended, 8))[0])

    for _ in range(args.saves):
        if args.alone:
            await_durable(len(saved))
            time.sleep(args.alone)
        saved.append(time.monotonic())
        monitor.save()
        while monitor.gpu_copy_in_progress() and monitor.chk_process.is_alive():
            time.sleep(0.0005)  # A GPU's training thread polls; here that would take the core that stands for the GPU.
    await_durable(args.saves)
    monitor.kill_checkpoint()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(args.output, "w") as file:
        json.dump({"saved": saved, "durable": durable, "cpu_s": used.ru_utime + used.ru_stime}, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="the engine's shared library")
    parser.add_argument("--dir", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--saves", type=int, required=True)
    parser.add_argument("--alone", type=float, default=0, help="seconds between saves, each after the one before")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
