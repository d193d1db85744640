"""cairn.dcp: what training does not change is written once, also where each rank has a part of it and nobody counts what is
written into that. Real processes over gloo."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from dcp_worlds import Worlds, end, one, worlds

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
__all__ = ["worlds"]  # A fixture.

# FSDP2 with a frozen base of 4.8 MB, an adapter, and a table that each rank has whole.
FROZEN = """
import glob, json, os, pathlib
class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.adapter = torch.nn.Linear(750, 1600), torch.nn.Linear(750, 8)
        self.base.requires_grad_(False)
    def forward(self, x):
        return self.base(x).sum() + self.adapter(x).sum()
def sharded(seed):
    torch.manual_seed(seed)
    net = Adapted()
    for layer in (net.base, net.adapter): fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net
net = sharded(1)
base = net.base.weight
table = distribute_tensor(torch.arange(400_000.0), mesh, [Replicate()])
optimizer = torch.optim.AdamW(net.adapter.parameters())
written, step = 0, 0
def saved(how):
    "Trains and saves; the bytes that this rank has written, and which kept files the checkpoint has."
    global written, step
    step += 1
    net(torch.ones(4, 750)).backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": net, "table": table, "step": step}
    if how == "planner":
        state["model"] = net.state_dict()
        save(state, step, frozen=["model.base.*", "table"])
    elif how == "patterns":
        state["model"] = net.state_dict()
        cairn.dcp.save(state, storage_writer=cairn.dcp.StorageWriter(c, step, frozen=["model.base.*", "table"]))
    elif how == "modules":
        response = cairn.dcp.async_save(state, storage_writer=cairn.dcp.StorageWriter(c, step, frozen=True))
        getattr(response, "upload_completion", response).result(60)
    else:
        cairn.dcp.save(state, storage_writer=cairn.dcp.StorageWriter(c, step, frozen="table"))
    before, written = written, c.stats["bytes_written"]
    dist.barrier()
    folder = glob.glob(f"{c.root}/step-*{step}")[0]
    kept = json.loads(pathlib.Path(folder, "manifest.json").read_text()).get("kept", [])
    return written - before, [os.stat(f"{folder}/{file['file']}").st_ino for file in kept]
def write(how):
    with torch.no_grad():
        if how == "local":
            base._local_tensor[3] += 1
        elif how == "to_local":
            base.to_local()[-1, -1] += 1
        elif how == "through":
            base.mul_(2)
        elif how == "numpy":
            base._local_tensor.numpy()[0, 0] = 7
    if how == "fused":
        base.requires_grad_(True)
        base.grad = torch.ones_like(base)
        torch.optim.AdamW([base], lr=0.1, fused=True).step()
        base.grad = None
        base.requires_grad_(False)
def same_after_restore():
    other = sharded(2)
    state = load({"model": other.state_dict(), "table": torch.zeros_like(table), "step": 0})
    return digests(state) == digests({"model": net.state_dict(), "table": table, "step": step})
None
"""


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", ["modules", "patterns", "planner"])
def test_the_parts_of_a_frozen_base_are_linked(worlds: Worlds, ranks: int, how: str) -> None:
    world = worlds(ranks)
    assert world.all(FROZEN) == [None] * ranks

    first, second, third = (world.all(f"saved('{how}')") for _ in range(3))

    assert all(bytes_written > 4_800_000 // ranks for bytes_written, _ in first)
    kept = one([files for _, files in first])
    assert len(kept) == ranks
    for later in (second, third):
        assert one([files for _, files in later]) == kept
        if how != "modules":  # There the table is written, by one rank.
            assert all(bytes_written < 150_000 for bytes_written, _ in later)
    assert world.all("same_after_restore()") == [True] * ranks
    end(world)


@pytest.mark.parametrize("how", ["local", "to_local", "through", "numpy", "fused"])
def test_each_write_is_seen(worlds: Worlds, how: str) -> None:
    """Of a rank alone where that is possible: the other's file stays."""
    world = worlds(2)
    world.all(FROZEN)
    before = one([files for _, files in world.all("saved('patterns'); saved('patterns')")])
    alone = how in ("local", "to_local", "numpy")

    wrote = [world[1].run(f"write('{how}')")] if alone else world.all(f"write('{how}')")
    assert wrote == [None] * len(wrote)

    after = one([files for _, files in world.all("saved('patterns')")])
    assert len(after) == 2 and after[1] not in before
    assert (after[0] in before) == alone
    assert one([files for _, files in world.all("saved('patterns')")]) == after
    assert world.all("same_after_restore()") == [True] * 2
    end(world)


def test_what_each_rank_has_whole_has_one_link(worlds: Worlds) -> None:
    world = worlds(2)
    world.all(FROZEN)

    first, second = (world.all("saved('table')") for _ in range(2))

    kept = one([files for _, files in first])
    assert len(kept) == 1 and one([files for _, files in second]) == kept
    assert (
        sum(bytes_written for bytes_written, _ in second) < sum(bytes_written for bytes_written, _ in first) - 1_600_000
    )
    world.all("table.add_(1)")
    assert one([files for _, files in world.all("saved('table')")]) != kept
    assert world.all("same_after_restore()") == [True] * 2
    end(world)


def test_by_path_and_what_freezes_nothing(root: Path, caplog: Any) -> None:
    base, other = torch.ones(600, 600), torch.zeros(3)
    for step in (1, 2):
        other += 1
        cairn.dcp.save(
            {"m": {"base": base, "other": other}}, checkpoint_id=root / f"step-{step}", frozen=["m.base", "x.*"]
        )

    assert [len({*folder.glob("kept-*")}) for folder in sorted(root.glob("step-*"))] == [1, 1]
    assert len({file.stat().st_ino for file in root.glob("step-*/kept-*")}) == 1
    (warning,) = (one.message for one in caplog.records if one.levelno == logging.WARNING)
    assert '"x.*" matches nothing that this process saves' in warning
    with pytest.raises(cairn.InvalidArgument, match="frozen: give it to the storage_writer"):
        writer = cairn.dcp.StorageWriter(cairn.dcp.checkpointer_for(root / "step-1"), 3)
        cairn.dcp.save({"m": base}, storage_writer=writer, frozen="m")
    cairn.dcp.checkpointer_for(root / "step-1").close()
