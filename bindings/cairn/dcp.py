"""torch.distributed.checkpoint (DCP) through Cairn: its storage writer, storage reader and planners.

    import cairn.dcp as dcp

    checkpointer = cairn.Checkpointer(root, group=torch.distributed.group.WORLD)
    dcp.async_save(state, storage_writer=dcp.StorageWriter(checkpointer, step))
    dcp.load(state, storage_reader=dcp.StorageReader(checkpointer))

`save`, `async_save` and `load` have DCP's signatures. They exchange no plan, unless they are given a planner. Code that
calls `dcp.save(state, checkpoint_id=path)` needs the first line only: the path's number is the step. DCP's own calls take
the writer and the reader too, with SavePlanner and LoadPlanner. Their `async_save` needs a process_group of its own if
training itself uses gloo.

Every rank writes one safetensors shard: its chunks of DTensors and sharded tensors, and its share of the data that
several ranks hold. All shards are committed together, by the engine's own protocol. Any number of ranks can load them.

Plain values are kept as typed JSON (see `_tree`), never as pickle, with any planner. `SavePlanner` refuses, by name,
values that JSON cannot keep. DCP's own planner pickles them, and unpickles them on load. Such bytes are marked in the
checkpoint, and `LoadPlanner` refuses them: a checksum proves that a file is whole, not who wrote it.
"""

from __future__ import annotations

try:
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise ImportError(f"found {torch.__version__}")
except ImportError as error:
    raise ImportError(f"cairn.dcp needs torch 2.7 or newer: {error}") from error

from ._dcp.by_path import async_save, checkpointer_for, load, save
from ._dcp.planners import LoadPlanner, SavePlanner
from ._dcp.reader import StorageReader
from ._dcp.writer import StorageWriter

__all__ = [
    "LoadPlanner",
    "SavePlanner",
    "StorageReader",
    "StorageWriter",
    "async_save",
    "checkpointer_for",
    "load",
    "save",
]
