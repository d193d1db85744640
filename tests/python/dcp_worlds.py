"""What the tests of cairn.dcp with ranks share: real processes over gloo, driven by `ranks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
from ranks import World

Worlds = Callable[..., World]
PRELUDE = """
import datetime, warnings, zlib
warnings.simplefilter("ignore")
import cairn.dcp
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
dist.init_process_group("gloo", store=dist.PrefixStore(f"pg{world}", store), rank=rank, world_size=world,
                        timeout=datetime.timedelta(seconds=PG_TIMEOUT))
mesh = init_device_mesh("cpu", (world,))
saving = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=PG_TIMEOUT))

def save(state, step, how="async", planner=None, **options):
    writer = cairn.dcp.StorageWriter(c, step, **options)
    planner = planner or cairn.dcp.SavePlanner()
    if how == "sync":
        dcp.save(state, storage_writer=writer, planner=planner)
    else:
        response = dcp.async_save(state, storage_writer=writer, planner=planner, process_group=saving)
        getattr(response, "upload_completion", response).result()  # Before torch 2.9 it is the future itself.

def load(state, step=None, planner=None):
    "By DCP's own call with a planner, or without a plan."
    reader = cairn.dcp.StorageReader(c, step)
    if planner is None:
        cairn.dcp.load(state, storage_reader=reader)
    else:
        dcp.load(state, storage_reader=reader, planner=planner)
    return state

def digests(state, name=""):
    "By path: the CRC of each whole tensor, and every other value as it is."
    if isinstance(state, dict):
        return {k: v for key, child in state.items() for k, v in digests(child, f"{name}/{key}").items()}
    if isinstance(state, torch.Tensor):
        whole = (state.full_tensor() if isinstance(state, DTensor) else state).detach().contiguous()
        return {name: f"{list(whole.shape)} {zlib.crc32(whole.reshape(-1).view(torch.uint8).numpy()):08x}"}
    return {name: repr(state)}

def blank(state):
    if isinstance(state, dict):
        return {key: blank(child) for key, child in state.items()}
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = torch.nn.Linear(10, 12), torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 5)
    def forward(self, x):
        return self.b(self.norm(self.a(x)))

def trained(seed, steps):
    torch.manual_seed(seed)
    net = Net()
    for layer in (net.a, net.b): fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1 * seed)
    for step in range(steps):
        net(torch.randn(4, 10)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer

def state_of(net, optimizer):
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim, "epoch": 7, "notes": [None, "x", 1.5]}
"""


@pytest.fixture
def worlds(root: Path) -> Iterator[Worlds]:
    made: list[World] = []

    def make(world: int, options: str = "", timeout: float = 60, pg_timeout: float = 60) -> World:
        made.append(World(world, root))
        made[-1].open(options, timeout)
        prelude = PRELUDE.replace("PG_TIMEOUT", str(pg_timeout))
        assert made[-1].all(prelude) == [None] * world
        return made[-1]

    yield make
    for one in made:
        one.end()


def end(world: World) -> None:
    world.all("c.close()")
    world.end()


def one(answers: list[Any]) -> Any:
    """What all ranks say alike."""
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0]


def shards(root: Path, step: int) -> list[dict[str, int]]:
    """The elements of each tensor, by name, in each shard; every file is read by safetensors."""
    found = []
    for file in sorted(root.glob(f"step-*{step}/shard-*")):
        with safetensors.safe_open(file, "pt") as shard:
            found.append({name: shard.get_tensor(name).numel() for name in shard.keys()})  # noqa: SIM118
    return found
