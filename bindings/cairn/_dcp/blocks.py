"""Whether what a rank has of a DTensor is the block of the whole that torch.distributed.checkpoint takes it for.

DCP knows a part by its offset and shape alone. What a rank has may be something else: rows 0, 1, 4 and 5, by _StridedShard,
which flatten() of a tensor that is sharded by columns makes, too; or the block of another rank, if the dimensions of the
mesh shard a dimension in an order of their own, or if the mesh has its ranks in another order than torch's process groups.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import torch
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.tensor import DTensor

from .._errors import InvalidArgument
from .._tree.paths import shown


def refuse_scattered(state: Mapping[str, Any]) -> None:
    """InvalidArgument, with the name, for the first such DTensor of a flat state dict."""
    usual: dict[Any, bool] = {}  # Placements over a mesh, by its id: the caller's tensors keep it alive.
    blocks: set[Any] = set()  # Layouts.
    for fqn, held in state.items():
        if not isinstance(held, DTensor):
            continue
        layout = id(held.device_mesh), held.placements
        if (is_usual := usual.get(layout)) is None:
            is_usual = usual[layout] = _is_usual(held)
        reordered = _is_reordered(held)
        if not reordered and (is_usual or (*layout, held.shape) in blocks):
            continue
        if reordered or not _is_block(held):
            over = shown(held.device_mesh.mesh.tolist())
            raise InvalidArgument(
                f'"{fqn}": its placements {held.placements} over the mesh {over} do not give each rank a block of the whole '
                "where torch.distributed.checkpoint would put it: redistribute it first, as to Replicate()"
            )
        blocks.add((*layout, held.shape))


def _is_usual(held: DTensor) -> bool:
    """Whether its placements give each rank a block, or are partial sums, which DCP refuses; over a mesh in which this rank
    has the place that it has in its process groups, by which torch gives out and gathers parts."""
    place, ordered = held.device_mesh.get_coordinate(), True
    with contextlib.suppress(RuntimeError):  # A mesh may have no groups: then nothing is gathered.
        ordered = all(held.device_mesh.get_local_rank(at) == one for at, one in enumerate(place or ()))
    strided = any(getattr(one, "split_factor", 1) != 1 for one in held.placements)
    return (ordered and not strided) or any(one.is_partial() for one in held.placements)


def _is_reordered(held: DTensor) -> bool:
    """Whether its spec says that other dimensions of the mesh shard first than the first."""
    order = getattr(held._spec, "shard_order", None) if len(held.placements) > 1 else None
    return any([*one.mesh_dims] != sorted(one.mesh_dims) for one in order or ())


def _is_block(held: DTensor) -> bool:
    if held.device_mesh.get_coordinate() is None or hasattr(held._local_tensor, "__create_chunk_list__"):
        return True  # It has nothing, or says itself what it has.
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
