"""The tensors that a load of cairn.dcp reads into, checked before any of them is changed."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.planner import ReadItem

from .._tree.casts import Casts
from .._tree.tensors import dtype_name
from .items import StoredItems


class Targets:
    """The tensors of a plan's items, and how they differ from the checkpoint's."""

    def __init__(self, stored: StoredItems, items: list[ReadItem], planner: Any, allow_loss: bool) -> None:
        self.items = [(item, planner.resolve_tensor(item).detach()) for item in items]
        self.casts = Casts(allow_loss)
        for item, target in self.items:
            fqn = item.storage_index.fqn
            chunk = stored.find(fqn, item.storage_index.offset)
            if (given := dtype_name(fqn, target)) != chunk.dtype:
                self.casts.may(fqn, chunk.dtype, given)
