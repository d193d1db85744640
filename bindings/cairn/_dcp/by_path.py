"""DCP's save, async_save and load, with a path as checkpoint_id and Cairn behind it. See cairn.dcp.

A save or load by Cairn's own planner needs no plan of DCP's (see direct.py and loading.py). One with another planner, or with
an option of DCP's that is not known here, goes through DCP's calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver

from .._checkpointer import Checkpointer
from .._errors import Error, InvalidArgument
from .._paths import local_path
from .._save import Save
from .direct import load_by, load_into, load_planned, opened_to_read, place_in, start_save
from .failures import own_errors
from .optimizers import optimizers_in
from .planners import LoadPlanner, SavePlanner
from .reader import StorageReader
from .uploads import Uploads
from .writer import StorageWriter

_log = logging.getLogger("cairn")


@dataclass
class _Root:
    checkpointer: Checkpointer | None = None
    handed_out: bool = False  # Its user may have called protect, so that it stays open.
    loaded: int | None = None  # The step that was loaded before it was opened: later saves continue from it.
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)  # Writers that DCP still has, and loads.

    @property
    def is_idle(self) -> bool:
        open_one = self.checkpointer if self.checkpointer is not None and not self.checkpointer._engine.closed else None
        return not self.users and (open_one is None or not open_one.stats["saves_in_flight"])


class _Use:
    """A load under way."""


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
            if other is not known and not other.handed_out and _is_idle_everywhere(other):
                _close(other)
        known.checkpointer = Checkpointer(root, **{"keep_last": 0, "group": group, **options})
        if known.loaded is not None:
            _continue_from(known.checkpointer, known.loaded)
            known.loaded = None
    elif options:
        raise InvalidArgument(f"{root} is open already: options count at the first call only")
    return known


def _is_idle_everywhere(root: _Root) -> bool:
    """On all its ranks, which see a save end at different times: one must not close what another still saves with."""
    if root.checkpointer is None or root.checkpointer._engine.closed or root.checkpointer.world == 1:
        return root.is_idle
    return all(one == b"idle" for one in root.checkpointer._engine.ranks.exchange("idle", b"idle" * root.is_idle))


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
    frozen: bool | str | Iterable[str] = (),
    **options: Any,
) -> Any:
    """torch.distributed.checkpoint.save, through Cairn: `checkpoint_id` is a path that ends with the step's number.

    "runs/a/step-1000" and "runs/a/1000" are step 1000 of the root runs/a; "runs/a/epoch-3" is step 3 of the root
    "runs/a/epoch-". A step that is there is replaced. With a storage_writer it goes to that, as DCP's own call does.
    Nothing is pickled, unless by a planner. Without one, ranks exchange no plan, and it returns None. A failure of Cairn's
    own is raised as that, on all ranks, and not within DCP's CheckpointException.

    `frozen` as for Checkpointer.save: True for the parameters with requires_grad=False of the modules at the top of the
    state dict, or patterns of names. Nobody counts what is written into a DTensor: each save compares it with what is on
    the disk, and links that if it is the same.
    """
    writer, place = _writer(state_dict, checkpoint_id, storage_writer, process_group, no_dist, frozen)
    if _needs_no_plan(writer, planner, options):
        saving = _start(state_dict, writer, **place)
        try:
            saving.kept()
        finally:
            writer._checkpointer._engine.release_captured()
        return None
    with own_errors():
        return state_dict_saver.save(
            state_dict, storage_writer=writer, planner=planner or SavePlanner(), **place, **options
        )


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    frozen: bool | str | Iterable[str] = (),
    **options: Any,
) -> Any:
    """torch.distributed.checkpoint.async_save, through Cairn; see `save`. Nothing is copied in the call: the tensors
    must not be overwritten before `staging_completion`. `checkpointer_for(path).protect(optimizer)` waits for that."""
    writer, place = _writer(state_dict, checkpoint_id, storage_writer, process_group, no_dist, frozen)
    if _needs_no_plan(writer, planner, options):
        return _answer(_start(state_dict, writer, **place))
    planner = planner or SavePlanner()
    if isinstance(writer, StorageWriter):
        writer._planner = planner  # Staging then refuses what the planner refuses.
    return state_dict_saver.async_save(state_dict, storage_writer=writer, planner=planner, **place, **options)


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
    does. Nothing is unpickled, unless by a planner. Without one, ranks exchange no plan. Later saves continue from what was
    loaded. Raises what StorageReader does, on all ranks: NotFound at the first start.
    `cast` and `strict` are StorageReader's. With `strict=False` what the checkpoint lacks stays as it is, too."""
    needs_plan = planner is not None or bool(options)
    if storage_reader:
        own = isinstance(storage_reader, StorageReader)
        with storage_reader.counted() if own else contextlib.nullcontext():
            if cast is not None or not strict:
                raise InvalidArgument("cast and strict: give them to the storage_reader")
            if type(storage_reader) is StorageReader and not needs_plan:
                storage_reader.reset(checkpoint_id)
                load_by(storage_reader, state_dict, group=process_group, no_dist=no_dist)
                return
            if not no_dist:
                Uploads.wait_before()  # Of other libraries' readers; Cairn's waits itself.
            options["checkpoint_id"] = checkpoint_id
            load_planned(storage_reader, state_dict, planner, group=process_group, no_dist=no_dist, **options)
        return
    root, step = parse_path(checkpoint_id)
    with _lock:
        known = _roots.setdefault(os.path.realpath(root), _Root())
        opened = None if known.checkpointer is None or known.checkpointer._engine.closed else known.checkpointer
        use = _Use()
        known.users.add(use)
    try:
        with contextlib.ExitStack() as around:
            source = opened or around.enter_context(opened_to_read(root, process_group, no_dist))
            around.enter_context(source._engine.reading.counted())
            if needs_plan:
                reader = StorageReader(source, step, cast=cast, strict=strict)
                planner = planner or LoadPlanner(allow_partial_load=not strict)
                load_planned(reader, state_dict, planner, group=process_group, no_dist=no_dist, **options)
            else:
                where: dict[str, Any] = {"group": process_group, "no_dist": no_dist}
                load_into(source, state_dict, step, strict=strict, cast=cast, **where)
    finally:
        known.users.discard(use)
    if opened is None:
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


def _writer(
    state: Mapping[str, Any],
    checkpoint_id: Any,
    storage_writer: Any,
    process_group: Any,
    no_dist: bool,
    frozen: bool | str | Iterable[str],
) -> tuple[Any, dict[str, Any]]:
    """The writer of a save, one for the path unless one is given, and where it saves, as DCP's calls take it."""
    if not storage_writer:
        root, step = parse_path(checkpoint_id)
        with _lock:
            known = _open(root, process_group, no_dist, {})
            assert known.checkpointer is not None
            storage_writer = StorageWriter(known.checkpointer, step, replace=True, frozen=frozen)
            known.users.add(storage_writer)
        checkpoint_id = None
    elif frozen:
        raise InvalidArgument("frozen: give it to the storage_writer")
    if isinstance(storage_writer, StorageWriter):
        storage_writer._frozen.look_at(state)
        storage_writer._optimizers = optimizers_in(state)
        storage_writer._given = {} if type(state) is dict else state
    return storage_writer, {"checkpoint_id": checkpoint_id, "process_group": process_group, "no_dist": no_dist}


def _needs_no_plan(writer: Any, planner: Any, options: Mapping[str, Any]) -> bool:
    return type(writer) is StorageWriter and planner is None and not options


def _start(
    state: Mapping[str, Any], writer: StorageWriter, checkpoint_id: Any, process_group: Any, no_dist: bool
) -> Save:
    """Starts what DCP would save with this writer. Every rank calls it."""
    checkpointer = writer._checkpointer
    try:
        writer.reset(checkpoint_id)
        step = writer.step
    except Error as error:
        checkpointer._engine.ranks.give_up("dcp", error)  # The other ranks wait for this one's items.
        raise
    Uploads.of(checkpointer).wait_for_step(step)
    check = partial(_check_ranks, checkpointer, process_group, no_dist)
    return start_save(checkpointer, step, state, replace=writer._replace, check=check, frozen=writer._frozen)


def _check_ranks(checkpointer: Checkpointer, process_group: Any, no_dist: bool) -> None:
    """InvalidArgument unless the ranks that call are those of the Checkpointer."""
    rank, world = place_in(process_group, no_dist) or (0, 1)
    if (rank, world) != (checkpointer.rank, checkpointer.world):
        raise InvalidArgument(
            f"{checkpointer.root}: rank {rank} of {world} saves, the Checkpointer is rank {checkpointer.rank} of "
            f"{checkpointer.world}: give both the same group"
        )


def _answer(save: Save) -> Any:
    """What DCP's async_save returns. Before torch 2.9 it returns once the save is captured."""
    waiting = ThreadPoolExecutor(1, "cairn-save")
    staged = waiting.submit(save.captured)
    uploaded: Future[None] = waiting.submit(save.kept)
    waiting.shutdown(wait=False)
    if hasattr(state_dict_saver, "AsyncSaveResponse"):
        return state_dict_saver.AsyncSaveResponse(staging_completion=staged, upload_completion=uploaded)
    wait([staged])
    return uploaded


def _continue_from(checkpointer: Checkpointer, step: int) -> None:
    if step in checkpointer.steps():
        chosen = checkpointer._engine.reading.choose(step)
        with chosen["hold"]:
            checkpointer._engine.reading.read_views(chosen, [], True)
