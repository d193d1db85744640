"""torch.distributed.checkpoint (DCP) through Cairn: its storage writer, storage reader and planners.

    checkpointer = cairn.Checkpointer(root, group=torch.distributed.group.WORLD)
    dcp.async_save(state, storage_writer=cairn.dcp.StorageWriter(checkpointer, step), planner=cairn.dcp.SavePlanner())
    dcp.load(state, storage_reader=cairn.dcp.StorageReader(checkpointer), planner=cairn.dcp.LoadPlanner())

Every rank writes one safetensors shard, which holds its chunks of DTensors and sharded tensors and its share of what
several ranks hold alike; all of them commit together, by the engine's own protocol, and any number of ranks loads it.

Plain values are kept as typed JSON (see `_tree`), never as pickle, whatever planner is used. What that cannot keep
`SavePlanner` refuses by name; DCP's own planner pickles it, and unpickles it on load. Such bytes are marked as DCP's in
the checkpoint, and `LoadPlanner` refuses them: a checksum says that a file is whole, not who wrote it.
"""

from __future__ import annotations

try:
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise ImportError(f"found {torch.__version__}")
except ImportError as error:
    raise ImportError(f"cairn.dcp needs torch 2.7 or newer: {error}") from error

from ._dcp.planners import LoadPlanner, SavePlanner
from ._dcp.reader import StorageReader
from ._dcp.writer import StorageWriter

__all__ = ["LoadPlanner", "SavePlanner", "StorageReader", "StorageWriter"]
