"""DCP's save, async_save and load, with a path as checkpoint_id and Cairn behind it. See cairn.dcp."""

from __future__ import annotations

import logging
import os
import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from .._checkpointer import Checkpointer
from .._errors import Error, InvalidArgument, NotFound
from .._paths import local_path
from .classes import class_names, classes_in, state_kept
from .failures import own_errors
from .groups import own_group
from .planners import LoadPlanner, SavePlanner
from .reader import MissingReader, StorageReader
from .uploads import Uploads
from .writer import StorageWriter

_log = logging.getLogger("cairn")


@dataclass
class _Root:
    checkpointer: Checkpointer | None = None
    handed_out: bool = False  # Its user may have called protect, so that it stays open.
    loaded: int | None = None  # The step that was loaded before it was opened: later saves continue from it.
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)  # Writers and readers that DCP still has.

    @property
    def is_idle(self) -> bool:
        open_one = self.checkpointer if self.checkpointer is not None and not self.checkpointer._engine.closed else None
        return not self.users and (open_one is None or not open_one.stats["saves_in_flight"])


_lock = threading.Lock()
# What this process has saved to or loaded from, by real path. The next root's opening closes those that are idle and
# that nobody has asked for, because each has a pool and threads; the interpreter's exit closes the rest.
_roots: dict[str, _Root] = {}


def checkpointer_for(
    checkpoint_id: str | os.PathLike[str], process_group: Any = None, *, no_dist: bool = False, **options: Any
) -> Checkpointer:
    """The Checkpointer that saves under this path: for protect, fence, drain and close. The first call opens it, with
    these options (Checkpointer's; keep_last is 0); every rank makes that call."""
    with _lock:
        known = _open(parse_path(checkpoint_id)[0], process_group, no_dist, options)
        known.handed_out = True
        assert known.checkpointer is not None
        return known.checkpointer


def _open(root: str, process_group: Any, no_dist: bool, options: dict[str, Any]) -> _Root:
    known = _roots.setdefault(os.path.realpath(root), _Root())
    if known.checkpointer is not None and not (known.handed_out or os.path.isdir(root)):
        _close(known)  # Somebody has removed the root.
    if known.checkpointer is None or known.checkpointer._engine.closed:
        group = None
        if dist.is_available() and dist.is_initialized() and not no_dist:
            group = process_group or dist.group.WORLD
            Uploads.wait_before()  # Its ranks meet through the group.
        for other in _roots.values():
            if other is not known and not other.handed_out and other.is_idle:
                _close(other)
        known.checkpointer = Checkpointer(root, **{"keep_last": 0, "group": group, **options})
        if known.loaded is not None:
            _continue_from(known.checkpointer, known.loaded)
            known.loaded = None
    elif options:
        raise InvalidArgument(f"{root} is open already: options count at the first call only")
    return known


def _close(known: _Root) -> None:
    checkpointer, known.checkpointer = known.checkpointer, None
    if checkpointer is not None:
        try:
            checkpointer.close()
        except Error as error:
            _log.error("%s: a checkpoint was lost: %s", checkpointer.root, error)


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
    "runs/a/epoch-". A step that is there is replaced. With a storage_writer it goes to that, as DCP's own call does.
    The planner is SavePlanner unless one is given: nothing is pickled. A failure of Cairn's own is raised as that, on all
    ranks, and not within DCP's CheckpointException.
    """
    given = _given(state_dict, checkpoint_id, storage_writer, planner, process_group, no_dist)
    with own_errors():
        return state_dict_saver.save(state_dict, **given, **options)


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
    must not be overwritten before `staging_completion`. `checkpointer_for(path).protect(optimizer)` waits for that. Without
    a process group of its own, or with the default one, it makes one of gloo's, once: training goes on with the default."""
    given = _given(state_dict, checkpoint_id, storage_writer, planner, process_group, no_dist)
    if isinstance(given["storage_writer"], StorageWriter):
        given["storage_writer"]._planner = given["planner"]  # Staging then refuses what the planner refuses.
        given["process_group"] = own_group(process_group, no_dist, given["storage_writer"]._checkpointer._engine.ranks)
    return state_dict_saver.async_save(state_dict, **given, **options)


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    cast: str | None = None,
    strict: bool = True,
    **options: Any,
) -> None:
    """torch.distributed.checkpoint.load, through Cairn; see `save`. Waits for this process's saves, as StorageReader
    does. The planner is LoadPlanner unless one is given: nothing is unpickled. Later saves continue from what was loaded.
    Raises what StorageReader does, the same on all ranks: NotFound at the first start.
    `cast` and `strict` are StorageReader's. With `strict=False` what the checkpoint lacks stays as it is, too."""
    known: _Root | None = None
    made: StorageReader | MissingReader | None = None
    step: int | None = None
    if not storage_reader:
        root, step = parse_path(checkpoint_id)
        checkpoint_id = None
        with _lock:
            known = _roots.setdefault(os.path.realpath(root), _Root())
            opened = None if known.checkpointer is None or known.checkpointer._engine.closed else known.checkpointer
            try:
                if opened is None and not os.path.isdir(root):
                    raise NotFound(f"there is no checkpoint under {root}: there is no such directory")
                made = StorageReader(opened or root, step, cast=cast, strict=strict)
            except Error as error:  # The other ranks may have found it meanwhile.
                made = MissingReader(error)
            storage_reader = made
            made._group = False if no_dist else process_group
            known.users.add(made)
        if opened is not None:
            known = None
    else:
        if cast is not None or not strict:
            raise InvalidArgument("cast and strict: give them to the storage_reader")
        if not no_dist:
            Uploads.wait_before()  # Of other libraries' readers; Cairn's waits itself.
    if isinstance(storage_reader, StorageReader):
        storage_reader._optimizers = classes_in(state_dict)
        storage_reader._given = {} if type(state_dict) is dict else state_dict
    try:
        with own_errors(), state_kept(state_dict, cast == "allow"):
            state_dict_loader.load(
                state_dict,
                checkpoint_id=checkpoint_id,
                storage_reader=storage_reader,
                planner=planner or LoadPlanner(allow_partial_load=not strict),
                process_group=process_group,
                no_dist=no_dist,
                **options,
            )
    finally:
        if made is not None:
            made.reset()  # Releases the checkpoint, also if the load was refused before it read.
    if known is not None:
        known.loaded = step


def parse_path(checkpoint_id: Any) -> tuple[str, int]:
    """The root and the step. InvalidArgument for a path that does not end with "/", "-", "_" or "=" and a number;
    Unsupported for a URL.

    The root is the path without its number and without "step-"; all else stays in its name, so that different names are
    different roots. A number after anything else may be a part of the name, as in "v2" and "lr0.001".
    """
    given = isinstance(checkpoint_id, (str, os.PathLike)) and os.fspath(checkpoint_id)
    folder, name = os.path.split(local_path(checkpoint_id, "checkpoint_id") if given else "")
    match = re.fullmatch(r"(|.+[-_=])([0-9]{1,20})", name)
    root = os.path.join(folder, match[1]) if match and match[1] not in ("", "step-") else folder
    if match is None or not root.strip("/"):
        raise InvalidArgument(
            'checkpoint_id: expected a path that ends with the step, such as "runs/a/step-1000", found '
            f"{checkpoint_id!r}: a number counts after one of / - _ = only"
        )
    return root, int(match[2])


def _given(
    state: Mapping[str, Any],
    checkpoint_id: Any,
    storage_writer: Any,
    planner: Any,
    process_group: Any,
    no_dist: bool,
) -> dict[str, Any]:
    """What DCP's save gets: a writer for the path, unless one is given."""
    if not storage_writer:
        root, step = parse_path(checkpoint_id)
        with _lock:
            known = _open(root, process_group, no_dist, {})
            assert known.checkpointer is not None
            storage_writer = StorageWriter(known.checkpointer, step, replace=True)
            known.users.add(storage_writer)
        checkpoint_id = None
    if isinstance(storage_writer, StorageWriter):
        storage_writer._optimizers = class_names(classes_in(state))
        storage_writer._given = {} if type(state) is dict else state
    return {
        "checkpoint_id": checkpoint_id,
        "storage_writer": storage_writer,
        "planner": planner or SavePlanner(),
        "process_group": process_group,
        "no_dist": no_dist,
    }


def _continue_from(checkpointer: Checkpointer, step: int) -> None:
    if step in checkpointer.steps():
        details = checkpointer._engine.reading.inspect_all(step)
        with details["hold"]:
            checkpointer._engine.reading.read_views(details, [], True)
