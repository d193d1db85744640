"""A training job whose need of cores and memory is known: what `cairn profile` is tried on. Uses Cairn alone, no torch.

Loader processes read records of a file at random and decode them, which costs CPU time; the loop takes a batch for each
step, computes as long as a GPU would (it waits), rewrites the state, and prints "step=N". The job "loader" decodes for
long and computes for a moment, "compute" the other way round, and "mixed" does both for long. With --every it saves the
state with Cairn, fenced.

Prints at the end one line of JSON: the seconds of each step, without the first --warm-up.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import time

RECORD = 4096
# Of a batch: records read, seconds of CPU time to decode them, seconds to compute.
JOBS = {"loader": (256, 0.010, 0.001), "mixed": (64, 0.010, 0.007), "compute": (64, 0.0005, 0.010)}
READY = 4  # Batches that wait, at most.


def load(queue, path, records, cpu_seconds, seed):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    chance = random.Random(seed)
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    count = os.fstat(file).st_size // RECORD
    while True:
        begin = time.thread_time()
        batch = [os.pread(file, RECORD, chance.randrange(count) * RECORD) for _ in range(records)]
        while time.thread_time() - begin < cpu_seconds:
            pass
        queue.put(len(batch))


def write_data(path, size):
    """Random bytes, unless it is there."""
    if not os.path.exists(path) or os.path.getsize(path) != size:
        with open(path + ".new", "wb") as file:
            file.writelines(os.urandom(1 << 20) for _ in range(size >> 20))
            os.fsync(file.fileno())
        os.replace(path + ".new", path)


class State:
    """What the job trains, saved every so many steps."""

    def __init__(self, args):
        import numpy  # Here, so that a job without a state needs nothing.

        self.every, self.checkpointer = args.every, None
        self.arrays = numpy.zeros(args.state_bytes // 4, dtype=numpy.float32)
        if args.every:
            import cairn

            options = {"worker_threads": args.worker_threads} if args.worker_threads else {}
            memory = args.host_memory or "auto"
            self.checkpointer = cairn.Checkpointer(args.root, host_memory=memory, keep_last=1, **options)

    def update(self, step):
        if self.checkpointer:
            self.checkpointer.fence()
        self.arrays[: 1 << 18] += 1
        if self.checkpointer and step % self.every == 0:
            self.checkpointer.save(step, {"state": self.arrays, "step": step})

    def close(self):
        if self.checkpointer:
            self.checkpointer.close()


def train(args):
    records, decoding, computing = (args.scale * one for one in JOBS[args.job])
    queue = multiprocessing.Queue(READY)
    loaders = [
        multiprocessing.Process(target=load, args=(queue, args.data, int(records), decoding, seed), daemon=True)
        for seed in range(args.loaders)
    ]
    for loader in loaders:
        loader.start()
    state = State(args) if args.state_bytes else None
    seconds = []
    last = time.perf_counter()
    for step in range(1, args.steps + 1):
        queue.get()
        time.sleep(computing)
        if state:
            state.update(step)
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
        print(f"step={step}", flush=True)
    if state:
        state.close()
    print(json.dumps(seconds[args.warm_up :]), flush=True)
    for loader in loaders:
        loader.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1, help="of a batch, and so of a step")
    parser.add_argument("--loaders", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--state-bytes", type=int, default=0)
    parser.add_argument("--root")
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--host-memory", type=int, default=0)
    parser.add_argument("--worker-threads", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
