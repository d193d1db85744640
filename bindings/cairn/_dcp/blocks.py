"""Whether what a rank has of a DTensor is the block of the whole that torch.distributed.checkpoint takes it for.

DCP knows a part by its offset and shape alone. Placements can give a rank something else: rows 0, 1, 4 and 5, by
_StridedShard, which flatten() of a tensor that is sharded by columns makes, too; or the block of another rank, if the
dimensions of the mesh shard a dimension in an order of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import torch
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.tensor import DTensor

from .._errors import InvalidArgument


def refuse_scattered(state: Mapping[str, Any]) -> None:
    """InvalidArgument, with the name, for the first such DTensor of a flat state dict."""
    known: set[Any] = set()  # Layouts that are blocks. The caller's tensors keep the meshes alive.
    for fqn, held in state.items():
        if not isinstance(held, DTensor) or not _may_be_scattered(held) or held.device_mesh.get_coordinate() is None:
            continue
        layout = id(held.device_mesh), held.placements, held.shape
        if layout in known and not _is_reordered(held):
            continue
        if _is_reordered(held) or not _is_block(held):
            raise InvalidArgument(
                f'"{fqn}": its placements {held.placements} do not give each rank a block of the whole, where '
                "torch.distributed.checkpoint would put it: redistribute it first, as to Shard(0)"
            )
        known.add(layout)


def _may_be_scattered(held: DTensor) -> bool:
    if any(one.is_partial() for one in held.placements):
        return False  # DCP refuses it.
    return any(getattr(one, "split_factor", 1) != 1 for one in held.placements) or _is_reordered(held)


def _is_reordered(held: DTensor) -> bool:
    """Whether its spec says that other dimensions of the mesh shard first than the first."""
    order = getattr(held._spec, "shard_order", None) if len(held.placements) > 1 else None
    return any([*one.mesh_dims] != sorted(one.mesh_dims) for one in order or ())


def _is_block(held: DTensor) -> bool:
    if hasattr(held._local_tensor, "__create_chunk_list__"):
        return True  # It says itself what it has.
    (chunk,) = _create_chunk_list(held)
    boxes = zip(chunk.offsets, chunk.sizes, strict=True)
    return 0 in chunk.sizes or all(
        torch.equal(_own_indices(held, dim), torch.arange(offset, offset + size))
        for dim, (offset, size) in enumerate(boxes)
    )


def _own_indices(held: DTensor, dim: int) -> torch.Tensor:
    """Which of the rows (columns, ...) of the whole this rank has."""
    mesh, own = held.device_mesh, torch.arange(held.shape[dim])
    runs = {
        at: getattr(one, "split_factor", 1)
        for at, one in enumerate(held.placements)
        if getattr(one, "dim", None) == dim
    }
    # Where FSDP shards what tensor parallelism has sharded, a split_factor says so: others that come later shard first.
    orders = (
        order
        for order in permutations(runs)
        if all(runs[at] == math.prod(mesh.size(i) for i in order[:n] if i > at) for n, at in enumerate(order))
    )
    order = next(orders, None)
    for at in runs if order is None else order:
        coordinate = mesh.get_local_rank(at)
        each = own.chunk(runs[at] if order is None else 1)
        own = torch.cat([own[:0], *(part for run in each for part in run.chunk(mesh.size(at))[coordinate:][:1])])
    return own
