"""Opening a root that may be open already: here, in the process that started this one, or elsewhere."""

from __future__ import annotations

import fcntl
import json
import logging
import multiprocessing
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import _core, _exit
from ._errors import OPEN_ELSEWHERE, OPEN_IN_THIS_PROCESS, Error, FailedPrecondition, ResourceExhausted

T = TypeVar("T")
_log = logging.getLogger("cairn")
_LOCK = ".lock"  # See src/store/names.h.
_WRITER = ".writer"
# What torchrun, Open MPI, other MPIs and SLURM tell each rank.
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def close_earlier(root: str) -> None:
    """Closes what this process has open on the root for writing. Raises if that does not end."""
    for engine in list(_exit.open_engines):
        if os.path.realpath(engine.root) != os.path.realpath(root) or not engine.writes:
            continue
        try:
            engine.close()
        except Error as error:
            if not engine.closed:
                raise
            _log.warning("%s: the earlier Checkpointer is closed: %s", root, error)


def log_waiting(root: str, timeout: float) -> None:
    """Says at once that another process has the root open for writing, if one has."""
    if timeout > 0 and _is_locked(root) and (writer := _writer(root)):
        _log.warning("%s is open for writing in %s: waiting up to %g s for it", root, writer, timeout)


def open_with_current_gpu(
    opened: list[_core.Checkpointer], root: str, options: dict[str, Any], group: _core.StoreGroup | None
) -> _core.Checkpointer:
    """Opens, and adds it to `opened`: if this raises, the caller closes that. Sets torch's current device up if no devices
    are named and CUDA is initialised. Initialises nothing: the program may not want that, or may fork yet."""
    node = None if group is None else group.count_node_ranks(options["group_timeout"])
    opened.append(_core.Checkpointer(root, options, group, node))
    core = opened[0]
    torch = sys.modules.get("torch")
    if options["read_only"] or options["cuda_devices"] or torch is None or not hasattr(torch, "cuda"):
        return core
    if torch.cuda.is_initialized():
        try:
            core.set_up(torch.cuda.current_device())
        except ResourceExhausted:
            raise  # Such as for `staging`.
        except Error as error:
            _log.warning("%s: tensors on a GPU cannot be saved: %s", root, error)
    return core


def with_hints(call: Callable[[], T], alone: bool) -> T:
    """Opens; an error says how to go on if the root is open already. `alone`: no group was given."""
    try:
        return call()
    except FailedPrecondition as error:
        if error.detail not in (OPEN_IN_THIS_PROCESS, OPEN_ELSEWHERE):
            raise
        if error.detail == OPEN_IN_THIS_PROCESS:
            way_out = "close() that Checkpointer first, or give exist_ok=True, which does so"
        elif alone and (ranks := _ranks_of_job()):
            way_out = (
                f"this process is one rank of {ranks}: give each rank's Checkpointer the group (group=, as "
                "torch.distributed.group.WORLD), so that they write one checkpoint together, or a root of its own; if the "
                "process is of another job, end it first, or give take_over=True"
            )
        elif _is_worker():
            way_out = (
                "multiprocessing started this process (for a DataLoader's worker, say), and it runs the main script "
                'again: open the Checkpointer below `if __name__ == "__main__":`'
            )
        else:
            way_out = "end that process first, or give take_over=True"
        raise error.with_text(f"{error}: {way_out}") from None


def _ranks_of_job() -> int:
    """How many ranks this process is one of, by torch.distributed or by what its launcher says; 0 if it is none, as a
    rank's own worker."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        ranks = distributed.get_world_size()
    else:
        said = "" if _is_worker() else next((os.environ[name] for name in _WORLD_SIZES if name in os.environ), "")
        ranks = int(said) if said.isdecimal() else 0
    return ranks if ranks > 1 else 0


def _is_worker() -> bool:
    """Whether multiprocessing started this process, also while it still runs the main script's imports."""
    starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    return bool(starting) or multiprocessing.parent_process() is not None


def _is_locked(root: str) -> bool:
    """Whether somebody holds the writer's lock. False if that cannot be found out."""
    try:
        with open(os.path.join(root, _LOCK), "rb") as file:
            asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # A struct flock of the whole file.
            found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
    except OSError:
        return False
    return bool(struct.unpack_from("h", found)[0] != fcntl.F_UNLCK)


def _writer(root: str) -> str:
    """Another process that has named itself the writer; empty if it is this one."""
    try:
        with open(os.path.join(root, _WRITER), "rb") as file:
            record = json.loads(file.read(4096))
        process, host = int(record["process"]), str(record["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    if host != socket.gethostname():
        return f"process {process} on {host!r}"
    return "" if process == os.getpid() else f"process {process}"
