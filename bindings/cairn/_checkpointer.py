"""The plain API: one object that saves trees of tensors while training goes on, and restores them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _exit, _protect
from ._arguments import checked, one_of, seconds, steering_of, timeout_of
from ._best import KeepBest, check_best
from ._catalog import Catalog
from ._errors import DeadlineExceeded, Error
from ._opening import close_earlier, log_waiting, open_with_current_gpu, with_hints
from ._paths import local_path
from ._ranks import replicas as replication
from ._ranks.agreement import Ranks
from ._ranks.compared import Comparison
from ._ranks.reading import Reading
from ._ranks.schedule import Interval, Schedule
from ._restoring import Restoring
from ._save import parse_host_memory, parse_size
from ._saving import Saving

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("cairn")

_ENDING = 2.0  # Seconds that a handler of the program may hold the thread that logs, at the end.


class Checkpointer(Saving, Restoring, Catalog):
    """Writes checkpoints of trees under one root, several at once, while training goes on; restores them.

    A tree is a dict, list or other container of tensors (torch or numpy), plain values, and objects with state_dict and
    load_state_dict; `cairn._tree` has the full list. Only one Checkpointer writes to a root. All methods may be called
    from any thread. As a context manager it drains at the end; so does Python when it exits, within `close_timeout`.

    Sizes are bytes or text ("4GiB", "4GB"), times seconds:
      root           the folder of the checkpoints, on a mounted filesystem; it is made if it is missing
      host_memory    hard cap of the pinned pool; the state itself may be larger. "auto": the state's size, at most a
                     quarter of the memory that is available, divided by the ranks of this node: what the launcher's
                     variables say (torchrun, MPI, SLURM), or else the group's ranks on this machine. What is missing for
                     the state is pinned behind the first save, or the restore before it; with a size all is pinned when
                     it opens
      max_in_flight  saves between queued and durable at once
      keep_last      committed checkpoints to keep; 0 keeps all
      keep_every     also keep each step divisible by it; 0: none
      keep_best      how many checkpoints to keep beside those: the ones with the best value of `best_metric`
      best_metric    one of the `metrics` given to `save`
      best_mode      "min" or "max". Of equal ones the newest counts
      when_full      what `save` does when max_in_flight saves are in flight: "wait" (up to full_timeout), "skip" the
                     new one, or "replace" the youngest that is not captured
      full_timeout   how long `save` waits then before it raises DeadlineExceeded
      stall_timeout  when the disk has not answered an operation for so long, saves that wait for it fail, further ones
                     fail at once until it answers, and fences return: training goes on. 0: never
      close_timeout  how long `close` may take, all of it
      open_timeout   how long opening waits for another writer to release the root, before it fails and names that writer
      take_over      after open_timeout take the root from that writer, whose saves fail from then on
      exist_ok       whether this process may have the root open already: that Checkpointer is closed first, once its
                     saves have ended. For a notebook's cell that is run again
      read_only      only read: needs no lock, also beside a writer, and makes nothing in the root
      chunk          size of one copy and one write, a multiple of 1 MiB. 0: 8 MiB, or 4 MiB in a small pool
      queue_depth    how many writes, or reads, the disk has at once. 0: 8, divided by the ranks of this node, at least 2
      worker_threads threads that compute checksums and copy CPU tensors. 0: one for each core, divided by the ranks of
                     this node, at most 4
      copy_streams   CUDA streams for copies, on each device
      staging        device memory, on each device, to which chunks are copied first: a fence then waits only for what
                     neither it nor the pool holds. 0, or at least one chunk
      cuda_devices   the devices that saves will use, set up when it opens; by default torch's current one, if CUDA is in
                     use by then. Others are set up by the first save of their tensors
      checksums      CRC32C over every MiB; without it a flipped bit is not found
      gpu_checksums  have GPUs compute them for chunks that are contiguous tensors of one GPU, or are staged. They then
                     cost almost no host core, and also cover the way from the GPU's memory: the host compares one block in
                     32, and a save whose copy differs raises Corrupt. Proven on an H200 alone
      nonfinite      "mark" checkpoints with floating point tensors that hold NaNs or infinities (`Checkpoint.nonfinite`),
                     "off", or "auto": "mark" where it costs little, which is where the host computes the checksums and
                     its CPU has AVX2. Nothing fails. Retention keeps the newest checkpoint of the best kind (finite;
                     with infinities; with NaNs) besides keep_last, if it is older than these; `keep_best` and `best`
                     go by the checkpoints of that kind only
      recycle        overwrite the blocks of retired checkpoints that nobody else has open: a quarter faster than new
                     blocks. The disk then holds at most keep_last + max_in_flight + 1 checkpoints, plus those that
                     keep_every and pins keep, and one that nonfinite keeps
      io_queue       "auto", "io_uring" or "threads"
      file_mode      permissions of new files, before the umask. 0o640 and 0o750 let another user of the group read
      directory_mode permissions of new folders
      trace_events   how many events to keep for `write_trace`; 0: none
      unfenced_writes  what becomes of a save whose tensors were overwritten before `fence`, `protect` or
                     Save.captured() had waited for it: "fail" it, "warn" (log it: the checkpoint may mix two steps), or
                     "ignore"
      group          the ranks that write one checkpoint together, one shard each: a torch.distributed ProcessGroup, or
                     a tuple (Store, rank, world). Every rank opens the root, saves the same steps in the same order,
                     and calls `restore` together with the others
      group_timeout  how long a rank waits for the others
      replicated     names of tensors and values that are equal on every rank (patterns with * and ?): written once, and
                     readable at any number of ranks. The contents of DistributedDataParallel modules are replicated
                     too. Everything else belongs to its rank. Every save compares names, dtypes, shapes and values. A
                     difference fails the save
      per_rank       names (patterns too) of which each rank keeps its own, though they are replicated, or though ranks
                     have the same names in a state of cairn.dcp
      compare_replicas  when saves compare the contents of tensors, too, of which one rank's are kept: at the "first" save
                     (and after names or sizes have changed), "always" or "never". It reads all of them inside the call
      interval       seconds between saves, for `should_save`
      slowdown       or let `should_save` choose the interval: how much saves may slow training down (0.01 is 1 %)
      mtbf           the mean time between failures of the job, with slowdown
      restart_time   the time from a failure until training continues, with slowdown
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        host_memory: int | str = "auto",
        max_in_flight: int = 2,
        keep_last: int = 3,
        keep_every: int = 0,
        keep_best: int = 0,
        best_metric: str = "",
        best_mode: str = "min",
        when_full: str = "wait",
        full_timeout: float = 3600.0,
        stall_timeout: float = 120.0,
        close_timeout: float = 600.0,
        open_timeout: float = 10.0,
        take_over: bool = False,
        exist_ok: bool = False,
        read_only: bool = False,
        chunk: int | str = 0,
        queue_depth: int = 0,
        worker_threads: int = 0,
        copy_streams: int = 2,
        staging: int | str = 0,
        cuda_devices: Sequence[int] = (),
        checksums: bool = True,
        gpu_checksums: bool = False,
        nonfinite: str = "auto",
        recycle: bool = True,
        io_queue: str = "auto",
        file_mode: int = 0o644,
        directory_mode: int = 0o755,
        trace_events: int = 0,
        unfenced_writes: str = "fail",
        group: Any = None,
        group_timeout: float = 600.0,
        replicated: str | Iterable[str] = (),
        per_rank: str | Iterable[str] = (),
        compare_replicas: str = "first",
        interval: float | None = None,
        slowdown: float | None = None,
        mtbf: float | None = None,
        restart_time: float = 0.0,
    ) -> None:
        self.root = local_path(root, "root")
        self._replicated = replication.Rules.of(replicated, per_rank)
        self._per_rank = self._replicated.per_rank
        self._patterns = set()
        self._compare_replicas = one_of("compare_replicas", compare_replicas, ("first", "always", "never"))
        self._when_full = when_full
        self._full_timeout = seconds("full_timeout", full_timeout)
        self._close_timeout = seconds("close_timeout", close_timeout)
        self._group_timeout = seconds("group_timeout", group_timeout)
        options: dict[str, Any] = {
            "root": self.root,
            "read_only": read_only,
            "keep_last": keep_last,
            "keep_every": keep_every,
            "max_in_flight": max_in_flight,
            "when_full": when_full,
            "full_timeout": full_timeout,
            "open_timeout": open_timeout,
            "take_over": take_over,
            "stall_timeout": stall_timeout,
            "close_timeout": close_timeout,
            "file_mode": file_mode,
            "directory_mode": directory_mode,
            "host_memory": parse_host_memory(host_memory),
            "chunk": parse_size(chunk),
            "queue_depth": queue_depth,
            "worker_threads": worker_threads,
            "copy_streams": copy_streams,
            "staging": parse_size(staging),
            "cuda_devices": cuda_devices,
            "checksums": checksums,
            "gpu_checksums": gpu_checksums,
            "nonfinite": nonfinite,
            "recycle": recycle,
            "io_queue": io_queue,
            "trace_events": trace_events,
            "group_timeout": group_timeout,
            "unfenced_writes": unfenced_writes,
            "steering": steering_of(interval, slowdown, mtbf, restart_time),
        }
        check_best(keep_best, best_metric, best_mode)
        options = checked(options)
        if exist_ok and not read_only:
            close_earlier(self.root)
        self._ranks = Ranks(group, self.root, group_timeout)
        self._comparison = Comparison(self._compare_replicas if self._ranks.world > 1 else "never")
        if not read_only and self._ranks.rank == 0:
            log_waiting(self.root, open_timeout)
        try:
            open_core = partial(open_with_current_gpu, **options, group=self._ranks.core)
            self._core = self._ranks.together("open", partial(with_hints, open_core, alone=group is None))
        except BaseException:
            self._ranks.close()
            raise
        self._held = deque()
        self._in_flight = []
        self._best = None
        self._best_metric = best_metric if keep_best else ""
        self._in_order = threading.Lock()
        self._interval = None if interval is None else Interval(interval)
        self._schedule = None
        if self._interval is not None:
            self._schedule = Schedule(self._ranks, self._interval.due)
        elif slowdown is not None:
            core = self._core  # Not self, which would then be freed late.
            self._schedule = Schedule(self._ranks, lambda step, ahead: ahead == 0 and core.should_save(step))
        self._reading = Reading(self._core, self._ranks, self._replicated, self.root, self._close_timeout)
        self._guard = _protect.Guard(self)
        self._guard.held = self._held
        try:
            self._watching = None if read_only else _exit.start_watching(self._core, self._held)
            if keep_best and not read_only and self._ranks.rank == 0:
                self._best = KeepBest(self._core, keep_best, best_metric, best_mode)
        except BaseException:
            with contextlib.suppress(Error):
                self._core.close(0.0, True)
            self._ranks.close()
            raise
        _exit.open_checkpointers.add(self)

    @property
    def rank(self) -> int:
        """This process's rank in the group; 0 without one."""
        return self._ranks.rank

    @property
    def world(self) -> int:
        """How many ranks write a checkpoint together."""
        return self._ranks.world

    # Ending

    def drain(self, timeout: float | None = None) -> None:
        """Waits until no save is in flight. Raises the first failure that nobody has heard: that no call of this object
        or of a Save has raised. Of further ones the message has the number."""
        timeout = timeout_of(timeout)
        try:
            left = self._wait_for_best(self._within_grace(math.inf) if timeout is None else timeout)
            self._core.drain(None if timeout is None else left)
            if self._best is not None and self._best.busy:
                raise DeadlineExceeded(f"{self.root}: the best checkpoints are not pinned yet")
        finally:
            self._release_captured()
            self._log_events()

    def check(self) -> None:
        """Raises the newest failure of a save that was not cancelled, skipped or replaced, if there was one. Call it
        now and then while training goes on."""
        self._log_events()
        self._core.raise_last_failure()

    def close(self, timeout: float | None = None) -> None:
        """Waits for saves in flight, and ends within `timeout` seconds (default: close_timeout, or what is left of the
        grace of stop_on). For the last quarter of the time, at most 5 s, it abandons the saves that are left: it logs
        and raises DeadlineExceeded. Otherwise it raises the first failure that nobody has heard, as `drain` does. It is
        closed then all the same. What a hung disk has not answered stays behind until the process ends."""
        given = timeout_of(timeout)
        left = self._wait_for_best(self._within_grace(self._close_timeout) if given is None else given)
        try:
            self._core.close(left, given is not None)
        except DeadlineExceeded as error:
            _log.error("%s: %s", self.root, error)
            raise
        finally:
            if self._core.closed:
                if self._watching and self._watching is not threading.current_thread():
                    self._watching.join(_ENDING)
                self._end_stop()
                self._ranks.close()
                _exit.open_checkpointers.discard(self)
                if self._core.released:
                    self._held.clear()
                self._log_events()

    def _wait_for_best(self, timeout: float) -> float:
        """Waits for keep_best, which releases its saves one by one; returns what is left of the timeout."""
        if self._best is None or self._core.closed:
            return timeout
        self._core.end_step([])  # A step that has raised did not say that it has ended.
        return self._best.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise
            # What ended the block counts; `close` has logged what it raised.
