"""When each instruction of a pipeline stage begins and ends, in the steps that are recorded; other steps run PyTorch's code
untouched.

A send or a receive lasts from the call until its wait returns. A forward includes the loss, on the last stage. What tensor
parallelism sends is a part of forward and backward. The first step that a trainer runs is not like the others: PyTorch
finds out shapes in it.
"""

import contextlib
import time
from dataclasses import dataclass
from functools import partial

import torch
from torch.distributed.pipelining import schedules

COMPUTED = ("forward", "backward", "all_reduce", "optimizer")
# Of messages: activations go with forward, gradients with backward.
MOVED = {
    "get_fwd_recv_ops": "recv_activation",
    "get_fwd_send_ops": "send_activation",
    "get_bwd_recv_ops": "recv_gradient",
    "get_bwd_send_ops": "send_gradient",
}


@dataclass
class Span:
    instruction: str
    start: float  # Seconds of time.monotonic, as all times here.
    end: float
    step: int
    micro_batch: int | None = None


class HostClock:
    """On CPUs an instruction has ended when its call returns."""

    def begin_step(self):
        pass

    def mark(self):
        return time.monotonic()

    def seconds(self, mark):
        return mark


class CudaClock:
    """On GPUs a mark is an event on the current stream, which nobody waits for until the end. Nobody has run it."""

    def __init__(self):
        torch.cuda.synchronize()
        self._zero, self._at_zero = self._event(), time.monotonic()

    def begin_step(self):
        """Each step counts from its own begin, because elapsed_time has the precision of a float."""
        begin = self._event()
        self._zero, self._at_zero = begin, _Later(self._zero, self._at_zero, begin)

    def mark(self):
        return self._event(), self._zero, self._at_zero

    def seconds(self, mark):
        event, zero, at_zero = mark
        event.synchronize()
        return float(at_zero) + zero.elapsed_time(event) / 1000

    def _event(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Later:
    """A time that is known once two events have happened."""

    def __init__(self, zero, at_zero, event):
        self._parts = zero, at_zero, event
        self._seconds = None

    def __float__(self):
        if self._seconds is None:
            zero, at_zero, event = self._parts
            event.synchronize()
            self._seconds = float(at_zero) + zero.elapsed_time(event) / 1000
            self._parts = None
        return self._seconds


class Recorder:
    """Records a Trainer's steps. RuntimeError where torch's pipelining is not the one that it knows."""

    def __init__(self, trainer):
        self._trainer = trainer
        self._clock = CudaClock() if trainer.device.type == "cuda" else HostClock()
        self._marks = []  # [instruction, start, end, step, micro-batch]
        self._moving = {}  # What each unfinished work moves: id -> [(instruction, micro-batch, start)].
        self._step = 0
        missing = [name for name in ("_batch_p2p", "_wait_batch_p2p") if not hasattr(schedules, name)]
        if missing:
            raise RuntimeError(
                f"torch {torch.__version__}: expected {' and '.join(missing)} in torch.distributed.pipelining.schedules, "
                "found none; instructions are recorded with torch 2.13"
            )

    @contextlib.contextmanager
    def step(self, number):
        """Records what happens inside."""
        self._step = number
        self._clock.begin_step()
        trainer, stage = self._trainer, self._trainer.pipeline_stage
        with contextlib.ExitStack() as undo:

            def wrap(owner, name, wrapper):
                own = name in vars(owner)
                original = getattr(owner, name)
                setattr(owner, name, lambda *args, **options: wrapper(original, *args, **options))
                undo.callback(setattr, owner, name, original) if own else undo.callback(delattr, owner, name)

            wrap(stage, "forward_one_chunk", self._timed("forward"))
            wrap(stage, "backward_one_chunk", self._timed("backward"))
            if stage.is_last:
                wrap(trainer.schedule, "_maybe_compute_loss", self._loss)
            if trainer.settings.layout.data > 1:
                wrap(stage, "perform_reduce_grad", partial(self._run, "all_reduce", None))
            for name, instruction in MOVED.items():
                wrap(stage, name, self._tagged(instruction))
            wrap(schedules, "_batch_p2p", self._begin_moving)
            wrap(schedules, "_wait_batch_p2p", self._end_moving)
            # Behind the hook of Checkpointer.protect, so that a fence is no part of it.
            optimizer = trainer.optimizer
            undo.callback(optimizer.register_step_pre_hook(self._begin_optimizer).remove)
            undo.callback(optimizer.register_step_post_hook(lambda *_: self._end_last()).remove)
            yield

    def spans(self):
        """Of all recorded steps, by their start."""
        clock = self._clock
        spans = [
            Span(name, clock.seconds(start), clock.seconds(end), *where) for name, start, end, *where in self._marks
        ]
        return sorted(spans, key=lambda span: (span.start, span.end))

    def _add(self, instruction, start, end, micro_batch=None):
        self._marks.append([instruction, start, end, self._step, micro_batch])

    def _begin_optimizer(self, *_):
        self._add("optimizer", self._clock.mark(), None)

    def _end_last(self):
        self._marks[-1][2] = self._clock.mark()

    def _run(self, instruction, micro_batch, original, *args, **options):
        start = self._clock.mark()
        result = original(*args, **options)
        self._add(instruction, start, self._clock.mark(), micro_batch)
        return result

    def _timed(self, instruction):
        def run(original, index, *args, **options):
            return self._run(instruction, index, original, index, *args, **options)

        return run

    def _loss(self, original, *args, **options):
        result = original(*args, **options)
        self._end_last()  # Nothing else has been recorded since the forward: the last stage sends no activations.
        return result

    def _tagged(self, instruction):
        def operations(original, index):
            found = original(index)
            for operation in found:
                operation.recorded_as = instruction, index
            return found

        return operations

    def _begin_moving(self, original, operations, *args, **options):
        start = self._clock.mark()
        works = original(operations, *args, **options)
        for at, operation in enumerate(operations):
            if hasattr(operation, "recorded_as"):  # Not where PyTorch introduces the stages to each other.
                work = works[min(at, len(works) - 1)]  # NCCL may have one for all.
                self._moving.setdefault(id(work), []).append((*operation.recorded_as, start))
        return works

    def _end_moving(self, original, works):
        for work in works:
            original([work])
            for instruction, micro_batch, start in self._moving.pop(id(work), ()):
                last = self._marks[-1] if self._marks else None
                if last and (last[0], *last[3:]) == (instruction, self._step, micro_batch):
                    last[2] = self._clock.mark()  # Of several tensors, which are one message.
                else:
                    self._add(instruction, start, self._clock.mark(), micro_batch)
