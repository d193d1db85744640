"""DCP's save, async_save and load, with a path as checkpoint_id and Cairn behind it. See cairn.dcp."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from .._checkpointer import Checkpointer
from .._errors import InvalidArgument
from .planners import LoadPlanner, SavePlanner
from .reader import StorageReader
from .writer import StorageWriter


@dataclass
class _Root:
    checkpointer: Checkpointer | None = None
    loaded: int | None = None  # The step that was loaded before it was opened: later saves continue from it.


_lock = threading.Lock()
_roots: dict[str, _Root] = {}  # What this process has saved to or loaded from. The interpreter's exit closes them.


def checkpointer_for(
    checkpoint_id: str | os.PathLike[str], process_group: Any = None, *, no_dist: bool = False, **options: Any
) -> Checkpointer:
    """The Checkpointer that saves under this path: for protect, fence, drain and close. The first call opens it, with
    these options (Checkpointer's; keep_last is 0); every rank makes that call."""
    root, _ = parse_path(checkpoint_id)
    with _lock:
        known = _roots.setdefault(root, _Root())
        if known.checkpointer is None or known.checkpointer._core.closed:
            group = None
            if dist.is_available() and dist.is_initialized() and not no_dist:
                group = process_group or dist.group.WORLD
            known.checkpointer = Checkpointer(root, **{"keep_last": 0, "group": group, **options})
            if known.loaded is not None:
                _continue_from(known.checkpointer, known.loaded)
                known.loaded = None
        elif options:
            raise InvalidArgument(f"{root} is open already: options count at the first call only")
        return known.checkpointer


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    **options: Any,
) -> Any:
    """torch.distributed.checkpoint.save, through Cairn: `checkpoint_id` is a path that ends with the step's number.

    "runs/a/step-1000" and "runs/a/1000" are step 1000 of the root runs/a; "runs/a/epoch-3" is step 3 of the root
    runs/a/epoch. A step that is there is replaced. The planner is SavePlanner unless one is given: nothing is pickled.
    """
    storage_writer = storage_writer or _writer(checkpoint_id, process_group, no_dist)
    return state_dict_saver.save(
        state_dict,
        storage_writer=storage_writer,
        planner=planner or SavePlanner(),
        process_group=process_group,
        no_dist=no_dist,
        **options,
    )


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    **options: Any,
) -> Any:
    """torch.distributed.checkpoint.async_save, through Cairn; see `save`. Nothing is copied in the call: the tensors
    must not be overwritten before `staging_completion`. `checkpointer_for(path).protect(optimizer)` waits for that."""
    storage_writer = storage_writer or _writer(checkpoint_id, process_group, no_dist)
    planner = planner or SavePlanner()
    if isinstance(storage_writer, StorageWriter):
        storage_writer._planner = planner  # Staging then refuses what the planner refuses.
    return state_dict_saver.async_save(
        state_dict,
        storage_writer=storage_writer,
        planner=planner,
        process_group=process_group,
        no_dist=no_dist,
        **options,
    )


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    **options: Any,
) -> None:
    """torch.distributed.checkpoint.load, through Cairn; see `save`. Waits for this process's saves to the same root.
    The planner is LoadPlanner unless one is given: nothing is unpickled. Later saves continue from what was loaded."""
    root, step = ("", None) if storage_reader else parse_path(checkpoint_id)
    with _lock:
        known = _roots.setdefault(root, _Root())
    opened = known.checkpointer if known.checkpointer is not None and not known.checkpointer._core.closed else None
    if opened is not None:
        opened.drain()
    state_dict_loader.load(
        state_dict,
        storage_reader=storage_reader or StorageReader(opened or root, step),
        planner=planner or LoadPlanner(),
        process_group=process_group,
        no_dist=no_dist,
        **options,
    )
    if opened is None:
        known.loaded = step


def parse_path(checkpoint_id: Any) -> tuple[str, int]:
    """The root and the step. InvalidArgument for what is no path that ends with a number."""
    text = os.fspath(checkpoint_id) if isinstance(checkpoint_id, (str, os.PathLike)) else ""
    match = re.fullmatch(r"(.*?)[-_=.]?(\d+)/*", text)
    if match is None or os.path.isabs(text) and os.path.dirname(text.rstrip("/")) == "/" and not match[1].strip("/"):
        raise InvalidArgument(
            f'checkpoint_id: expected a path that ends with the step, such as "runs/a/step-1000", found {checkpoint_id!r}'
        )
    folder, name = os.path.split(match[1])
    return os.path.abspath(folder if name in ("", "step") else match[1]), int(match[2])


def _writer(checkpoint_id: Any, process_group: Any, no_dist: bool) -> StorageWriter:
    checkpointer = checkpointer_for(checkpoint_id, process_group, no_dist=no_dist)
    return StorageWriter(checkpointer, parse_path(checkpoint_id)[1], replace=True)


def _continue_from(checkpointer: Checkpointer, step: int) -> None:
    if step in checkpointer.steps():
        details = checkpointer._reading.inspect_all(step)
        with details["hold"]:
            checkpointer._reading.read_views(details, [], True)
