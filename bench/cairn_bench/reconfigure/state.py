"""What a checkpoint of a Trainer holds, by the names of the whole model, and how it is saved and restored."""

import hashlib
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from cairn.dcp import LoadPlanner, SavePlanner, StorageReader, StorageWriter
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

# Flat, because the ranks of one pipeline stage know only its parameters.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


def gather(trainer, step=0):
    """The state dict: the tensors themselves, no copies. Makes the optimizer's state if there is none yet."""
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer, options=OPTIONS)
    return {"model": model, "optimizer": optimizer, "step": step}


def start_save(checkpointer, step, state, group):
    """Starts an asynchronous save. Its `upload_completion.result()` returns once it is durable on every rank."""
    writer = StorageWriter(checkpointer, step)
    return dcp.async_save(state, storage_writer=writer, planner=SavePlanner(), process_group=group)


@dataclass
class Restored:
    step: int
    plan: float  # Seconds until the reads began: metadata, and DCP's planning over all ranks.
    read: float  # Seconds of reading.
    state: dict


def restore(trainer, source, step, group):
    """Reads a step (None: the newest) into the trainer, whatever layout wrote it."""
    state = gather(trainer)
    reader = _TimedReader(source, step)
    begun = time.monotonic()
    dcp.load(state, storage_reader=reader, planner=LoadPlanner(), process_group=group)
    set_state_dict(
        trainer.model,
        trainer.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=OPTIONS,
    )
    return Restored(state["step"], reader.begun - begun, reader.seconds, state)


class _TimedReader(StorageReader):
    begun = seconds = 0.0

    def read_data(self, plan, planner):
        self.begun = time.monotonic()
        try:
            return super().read_data(plan, planner)
        finally:
            self.seconds = time.monotonic() - self.begun


def digests(state, group):
    """{name: digest} of each whole tensor that any rank holds, on rank 0; every rank calls it.

    RuntimeError, by name, if ranks that hold the same tensor hold different bytes.
    """
    mine = {}
    for part in ("model", "optimizer"):
        for name, value in state[part].items():
            if isinstance(value, torch.Tensor):
                mine[name] = _digest(value)
    ranks = [None] * dist.get_world_size(group) if dist.get_rank(group) == 0 else None
    dist.gather_object(mine, ranks, group=group)
    merged = {}
    for rank, found in enumerate(ranks or []):
        for name, digest in found.items():
            if merged.setdefault(name, digest) != digest:
                raise RuntimeError(f"{name}: rank {rank} holds other bytes than a rank before it")
    return merged


def _digest(tensor):
    whole = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().contiguous()
    about = f"{whole.dtype} {list(whole.shape)} "
    return about + hashlib.blake2b(whole.reshape(-1).view(torch.uint8).numpy(), digest_size=16).hexdigest()
