"""Saves a state dict in the format of cairn.dcp without DCP's own planning, and loads it. For the frameworks' plugs.

The ranks agree once on who writes what several of them hold (see shares.py), by the Checkpointer's own connections.
So no process group is needed, no thread, and several saves may be in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load

from .._checkpointer import Checkpointer
from .._save import Save
from .._tree.tensors import TensorCollector
from .items import check_storable
from .planners import LoadPlanner
from .reader import StorageReader
from .uploads import Uploads
from .writer import _copied, _items_of_state


def start_save(checkpointer: Checkpointer, step: int, state: Mapping[str, Any], *, replace: bool = False) -> Save:
    """Starts a save of what dcp.save would write; as Checkpointer.save, whose errors it raises.

    Every rank calls it, for the same steps in the same order. Objects with state_dict, at the top, are asked for it. A
    value that typed JSON cannot keep is refused by name: nothing is pickled.
    """
    shares = Uploads.of(checkpointer).shares

    def fill(sink: TensorCollector) -> list[tuple[str, str]]:
        try:
            given = {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in state.items()}
            planner = DefaultSavePlanner()
            planner.set_up_planner(_copied(given), None, checkpointer.rank == 0)
            items = _items_of_state(planner)
            for fqn in [*items.values, *items.pickled]:
                check_storable(planner.state_dict[fqn], fqn)
            items.check_storable()
        except BaseException as error:
            shares.give_up(error)
            raise
        return [("dcp", items.select(shares.mine(items, step)).add_to(sink))]

    return checkpointer._start(step, fill, replace=replace)


def load_into(source: Checkpointer | str, state: dict[str, Any], step: int | None = None) -> None:
    """Reads a checkpoint (None: the newest) into the tensors and objects of `state`, as dcp.load does. Unpickles
    nothing. Every rank calls it if torch.distributed is initialised."""
    load(state, storage_reader=StorageReader(source, step), planner=LoadPlanner())
