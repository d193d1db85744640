"""A rank's part of the model under a layout, with PyTorch's own parallelism: DTensor's tensor parallelism, 1F1B from
torch.distributed.pipelining, and replicate or fully_shard for data parallelism."""

import zlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .data import batch_of
from .layout import partition
from .model import Stage, loss

# Of layers: the linear maps whose rows tensor-parallel ranks divide, and those whose columns they divide.
CUT_ROWS = (".query_key_value", ".up", ".q", ".k", ".v")
CUT_COLUMNS = (".dense", ".down", ".o")


class Trainer:
    """What a rank trains. Its weights are undefined until `initialize` or a restore. Call it on every rank."""

    def __init__(self, settings, device):
        layout, self.sizes = settings.layout, settings.sizes
        settings.check()
        if dist.get_world_size() != layout.world:
            raise ValueError(f"layout {layout}: expected {layout.world} ranks, found {dist.get_world_size()}")
        self.settings, self.device = settings, device
        mesh = _mesh(layout, device, timedelta(seconds=settings.timeout))
        self.stage, self.data_rank, self.tensor_rank = mesh.get_coordinate()
        self.data_group = mesh.get_group("data")
        with torch.device("meta"):
            mine = partition(settings.partition_method, layout.pipeline, self.sizes)[self.stage]
            self.model = Stage(self.sizes, mine, self.tensor_rank).to(getattr(torch, settings.dtype))
        _parallelize(self.model, layout, mesh, settings.data_parallel)
        self.model.to_empty(device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate, foreach=False)
        self.micro_batches = settings.batch // (layout.data * settings.micro_batch)
        group = mesh.get_group("pipeline")
        self.pipeline_stage = PipelineStage(self.model, self.stage, layout.pipeline, device, group=group)
        self.schedule = Schedule1F1B(self.pipeline_stage, self.micro_batches, loss)
        self.tells_loss = self.model.is_last and self.data_rank == 0 and self.tensor_rank == 0

    def initialize(self):
        """Weights that depend on the seed and their names alone, not on the layout."""
        for name, parameter in self.model.named_parameters():
            seed = zlib.crc32(name.encode()) + self.settings.seed
            whole = _initial(name, parameter.shape, torch.Generator().manual_seed(seed)).to(parameter.dtype)
            with torch.no_grad():
                if isinstance(parameter, DTensor):
                    whole = distribute_tensor(
                        whole.to(self.device), parameter.device_mesh, parameter.placements, src_data_rank=None
                    )
                parameter.copy_(whole)

    def step(self, number):
        """Trains on the samples of a step. The mean loss over all of them, on ranks of the last stage."""
        settings, layout = self.settings, self.settings.layout
        samples = batch_of(number, settings.batch, self.sizes, settings.seed)
        mine = [part.chunk(layout.data)[self.data_rank].to(self.device) for part in samples]
        if settings.reverse:
            mine = [part.flip(0) for part in mine]
        losses = []
        arguments = {"target": mine[-1], "losses": losses} if self.model.is_last else {}
        self.schedule.step(*(mine[:-1] if self.model.is_first else []), return_outputs=False, **arguments)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if not self.model.is_last:
            return None
        mean = torch.stack([one.detach().double() for one in losses]).mean()
        dist.all_reduce(mean, group=self.data_group)
        return mean.item() / layout.data


def _mesh(layout, device, timeout):
    """init_device_mesh makes groups with a timeout of 30 minutes, and gloo's sends and receives keep the first one."""
    ranks = torch.arange(layout.world).reshape(layout.pipeline, layout.data, layout.tensor)
    groups = []
    for dimension, size in enumerate(ranks.shape):
        sets = ranks.movedim(dimension, -1).reshape(-1, size).tolist()
        groups.append(dist.new_subgroups_by_enumeration(sets, timeout=timeout)[0])
    return DeviceMesh.from_group(groups, device.type, ranks, mesh_dim_names=("pipeline", "data", "tensor"))


def _parallelize(model, layout, mesh, data_parallel):
    if layout.tensor > 1:
        plan = {}
        for name, _ in model.layers.named_modules(prefix="layers"):
            if name.endswith(CUT_ROWS):
                plan[name] = ColwiseParallel()
            elif name.endswith(CUT_COLUMNS):
                plan[name] = RowwiseParallel()
        if model.is_first:
            plan["tokens"] = RowwiseParallel(input_layouts=Replicate())
        if model.is_last:
            plan["head"] = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh["tensor"], plan)
    if layout.data > 1:
        wrap = {"replicate": replicate, "fully_shard": fully_shard}[data_parallel]
        for layer in model.layers.values():
            wrap(layer, mesh=mesh["data"])
        wrap(model, mesh=mesh["data"])


def _initial(name, shape, random):
    if name.endswith(".bias"):
        return torch.zeros(shape)
    return torch.ones(shape) if "norm." in name else torch.normal(0.0, 0.02, tuple(shape), generator=random)
