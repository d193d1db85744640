"""The process group of dcp.async_save. See cairn.dcp.

DCP uploads on a thread of its own, with collectives of the group that it was given, or else of the default one. If training
uses that group meanwhile, over gloo, then each rank may send the two threads' messages in another order: training aborts or
hangs on all ranks, with DCP's own files too. NCCL's groups are no such danger: there DCP uses their gloo part.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from .._errors import InvalidArgument

_ASYNC_SAVE = "torch.distributed.checkpoint.state_dict_saver", "async_save"


def refuse_default_group() -> None:
    """Raises InvalidArgument if the caller's caller is DCP's own async_save, on a default group with which training over
    gloo would hang. Every rank raises it, before anything is sent."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != _ASYNC_SAVE:
        frame = frame.f_back
    if frame is None or frame.f_locals.get("no_dist") or not _is_default(frame.f_locals.get("process_group")):
        return
    if _trains_with_gloo():
        raise InvalidArgument(
            "async_save would use the default process group, on a thread of its own, while training uses it over gloo: "
            'all ranks may hang. Give it a group that you make once, process_group=torch.distributed.new_group(backend="'
            'gloo"), or call cairn.dcp.async_save without a planner, which needs none'
        )


def _is_default(group: Any) -> bool:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return False
    return group is None or group is dist.group.WORLD


def _trains_with_gloo() -> bool:
    """Whether the default group's collectives on the device that this process trains on are gloo's."""
    backends = dict(one.split(":") for one in dist.get_backend_config().split(","))
    return backends.get("cuda" if torch.cuda.is_available() else "cpu") == "gloo"
