"""A pipeline of real processes: PyTorch's Schedule1F1B over gloo, with CPU tensors, that saves in each iteration."""

import contextlib
import multiprocessing
import os
import statistics
import time

STAGES, MICRO_BATCHES = 2, 8
ROWS, WIDTH, LAYERS = 64, 1024, 8  # Of a micro-batch; of a stage.
WAYS = ("none", "as-is", "gaps", "bubbles")
ITERATIONS = 3


class _Sent:
    """A send, whose end is the end of a pause."""

    def __init__(self, work, pause):
        self.work, self.pause = work, pause

    def wait(self):
        self.work.wait()
        self.pause.end()


@contextlib.contextmanager
def pausing(checkpointer):
    """While it lasts, the sends of PyTorch's pipelines in this process pause the checkpointer's copies."""
    from torch.distributed import isend
    from torch.distributed.pipelining import schedules

    post = schedules._batch_p2p

    def pausing_post(ops, desc=None):
        pauses = [checkpointer.pause_copies() if op.op is isend else None for op in ops]
        works = post(ops, desc)
        return [_Sent(work, pause) if pause else work for work, pause in zip(works, pauses, strict=True)]

    schedules._batch_p2p = pausing_post
    try:
        yield
    finally:
        schedules._batch_p2p = post


@contextlib.contextmanager
def in_bubbles(checkpointer):
    """While it lasts, copies pause unless a PyTorch pipeline in this process waits for a neighbour."""
    from torch.distributed.pipelining import schedules

    wait = schedules._wait_batch_p2p
    pause = checkpointer.pause_copies(at_most=60)

    def wait_and_copy(works):
        nonlocal pause
        pause.end()
        wait(works)
        pause = checkpointer.pause_copies(at_most=60)

    schedules._wait_batch_p2p = wait_and_copy
    try:
        yield
    finally:
        schedules._wait_batch_p2p = wait
        pause.end()


def serve(rank, port, root, sizes, commands):
    """One stage: runs iterations when asked, in a given way, and answers with the seconds of one."""
    import cairn
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rows, width, layers = sizes
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    store = dist.TCPStore("127.0.0.1", port, STAGES, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=STAGES)
    module = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers))
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
    inputs = torch.randn(MICRO_BATCHES * rows, width)

    def iterate():
        optimizer.zero_grad()
        schedule.step(*((inputs,) if rank == 0 else ()), **({"target": inputs} if rank == STAGES - 1 else {}))
        optimizer.step()

    def opened(name):
        group = (store, rank, STAGES)
        return cairn.Checkpointer(os.path.join(root, name), group=group, keep_last=1, worker_threads=1)

    step = 0
    # After its first pause a checkpointer has fewer copies in flight.
    with opened("never-paused") as never_paused, opened("paused") as paused:
        state = {"model": module, "optimizer": optimizer}
        for checkpointer in (never_paused, paused):
            checkpointer.protect(optimizer)
        iterate()
        commands.send(None)
        while (way := commands.recv()) is not None:
            checkpointer = {"none": None, "as-is": never_paused}.get(way, paused)
            hook = {"gaps": pausing, "bubbles": in_bubbles}.get(way, contextlib.nullcontext)
            dist.barrier()
            begun = time.perf_counter()
            with hook(checkpointer):
                for _ in range(ITERATIONS):
                    step += 1
                    if checkpointer is not None:
                        checkpointer.save(step, state)
                    iterate()
            seconds = (time.perf_counter() - begun) / ITERATIONS
            if checkpointer is not None:
                checkpointer.drain()
            commands.send(seconds)
    dist.destroy_process_group()


def measure(root, rounds, sizes=(ROWS, WIDTH, LAYERS)):
    """(round, way, seconds of an iteration), the ways in turns."""
    from torch.distributed import TCPStore

    free = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    port = free.port
    del free
    context = multiprocessing.get_context("spawn")
    stages = []
    for rank in range(STAGES):
        here, there = context.Pipe()
        context.Process(target=serve, args=(rank, port, root, sizes, there), daemon=True).start()
        there.close()
        stages.append(here)
    for stage in stages:
        stage.recv()

    def run(way):
        for stage in stages:
            stage.send(way)
        return statistics.mean([stage.recv() for stage in stages])

    for way in WAYS:
        run(way)  # First saves write new files.
    for round_ in range(rounds):
        for way in WAYS[:: 1 if round_ % 2 else -1]:
            yield round_, way, run(way)
    for stage in stages:
        stage.send(None)
