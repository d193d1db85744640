"""What scripts/bench reconfigure compares. Each saves a state dict that lies in parts on all ranks, durable on return, and
reads it into one that other ranks hold in other parts. Every rank makes each call."""

import os

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.tensor import DTensor, distribute_tensor

from . import state as states


class Cairn:
    """cairn.dcp."""

    def __init__(self, trainer, group, host_memory):
        self.trainer, self.group, self.host_memory = trainer, group, host_memory

    def open(self, folder):
        import cairn

        return cairn.Checkpointer(folder, group=self.group, host_memory=self.host_memory)

    def save(self, checkpointer, state):
        states.start_save(checkpointer, 1, state, self.group).upload_completion.result()

    def load(self, checkpointer, state):
        reader = states.StorageReader(checkpointer, 1)
        dcp.load(state, storage_reader=reader, planner=states.LoadPlanner(), process_group=self.group)

    def close(self, checkpointer):
        checkpointer.close()


class Dcp:
    """DCP with its own files, each of which it fsyncs. dcp.save, because async_save copies first."""

    def __init__(self, trainer, group, host_memory):
        self.group = group

    def open(self, folder):
        return folder

    def save(self, folder, state):
        dcp.save(state, storage_writer=FileSystemWriter(folder, sync_files=True), process_group=self.group)

    def load(self, folder, state):
        dcp.load(state, storage_reader=FileSystemReader(folder), process_group=self.group)

    def close(self, folder):
        pass


class Central:
    """Rank 0 gathers every tensor whole, writes one file by torch.save and fsyncs it; reads it, and scatters the parts.

    Tensors go by the first rank of their pipeline stage, which has a group of its own.
    """

    def __init__(self, trainer, group, host_memory):
        layout = trainer.settings.layout
        width = layout.data * layout.tensor
        self.stage, self.leader, self.stages = trainer.stage, trainer.stage * width, layout.pipeline
        self.leaders = [stage * width for stage in range(layout.pipeline)]
        groups = [dist.new_group(range(first, first + width), backend="gloo") for first in self.leaders]
        self.group, self.mine = group, groups[trainer.stage]

    def open(self, folder):
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, "state.pt")

    def save(self, path, state):
        tensors = dict(_tensors(state))
        whole = {name: _whole(tensor) for name, tensor in tensors.items()}
        about = self._of_leaders({name: (tensor.shape, tensor.dtype) for name, tensor in whole.items()})
        if dist.get_rank() == 0:
            for leader, found in zip(self.leaders[1:], about[1:], strict=True):
                for name, (shape, dtype) in found.items():
                    whole[name] = torch.empty(shape, dtype=dtype)
                    dist.recv(whole[name], leader)
            with open(path, "wb") as file:
                torch.save(whole, file)
                file.flush()
                os.fsync(file.fileno())
        elif dist.get_rank() == self.leader:
            for tensor in whole.values():
                dist.send(tensor.contiguous(), 0)
        dist.barrier(self.group)

    def load(self, path, state):
        tensors = dict(_tensors(state))
        about = self._of_leaders(list(tensors))
        whole = {}
        if dist.get_rank() == 0:
            read = torch.load(path, weights_only=True)
            for leader, names in zip(self.leaders[1:], about[1:], strict=True):
                for name in names:
                    dist.send(read[name], leader)
            whole = {name: read[name] for name in about[0]}
        for name, tensor in tensors.items():
            if dist.get_rank() == self.leader != 0:
                whole[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
                dist.recv(whole[name], 0)
            self._scatter(whole.pop(name, None), tensor)

    def _of_leaders(self, value):
        """On rank 0, what the first rank of each stage gave."""
        found = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(value, found, group=self.group)
        return [found[leader] for leader in self.leaders] if found else []

    def _scatter(self, whole, tensor):
        whole = torch.empty(tensor.shape, dtype=tensor.dtype) if whole is None else whole
        parts = isinstance(tensor, DTensor)
        everywhere = parts and tensor.device_mesh.size() == dist.get_world_size(self.mine)
        if not everywhere:
            dist.broadcast(whole, self.leader, group=self.mine)
        if parts:
            source = 0 if everywhere else None
            whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=source)
        with torch.no_grad():
            tensor.copy_(whole)

    def close(self, path):
        pass


SYSTEMS = {"cairn": Cairn, "DCP": Dcp, "central": Central}


def _tensors(state):
    for part in ("model", "optimizer"):
        for name, value in state[part].items():
            if isinstance(value, torch.Tensor):
                yield f"{part}.{name}", value


def local(state):
    """The memory of a rank's parts."""
    for _, tensor in _tensors(state):
        yield (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
