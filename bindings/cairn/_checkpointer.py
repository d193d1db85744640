"""The plain API: one object that saves trees of tensors while training goes on, and restores them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core, _exit, _protect, _tree
from ._catalog import Catalog
from ._errors import DeadlineExceeded, InvalidArgument
from ._ranks import replicas as replication
from ._ranks.agreement import Ranks
from ._ranks.reading import Reading
from ._save import Save, parse_size
from ._tree import tensors as tree_tensors
from ._tree.writer import Names

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("cairn")


class Checkpointer(Catalog):
    """Writes checkpoints of trees under one root, several at once, while training goes on; restores them.

    A tree is a dict, list or other container of tensors (torch or numpy), plain values, and objects with state_dict and
    load_state_dict; `cairn._tree` has the full list. Only one Checkpointer writes to a root. All methods may be called
    from any thread. As a context manager it drains at the end; so does Python when it exits, within `drain_timeout`.

    Sizes are bytes or text ("4GiB", "4GB"), times seconds:
      host_memory    hard cap of the pinned pool; the state itself may be larger
      max_in_flight  saves between queued and durable at once
      keep_last      committed checkpoints to keep; 0 keeps all. keep_every also keeps each step divisible by it
      when_full      what `save` does when max_in_flight saves are in flight: "wait" (up to full_timeout), "skip" the
                     new one, or "replace" the youngest that is not captured
      open_timeout   how long opening waits for another writer to release the root, before it fails and names that
                     writer; with take_over it then takes the root, and the other writer's saves fail from then on
      staging        device memory, on each device, for staging snapshots
      checksums      CRC32C over every MiB; without it a flipped bit is not found
      recycle        overwrite the blocks of retired checkpoints that nobody else has open: a quarter faster than new
                     blocks. The disk then holds at most keep_last + max_in_flight + 1 checkpoints, plus those that
                     keep_every and pins keep
      io             "auto", "io_uring" or "threads"
      group          the ranks that write one checkpoint together, one shard each: a torch.distributed ProcessGroup, or
                     a tuple (Store, rank, world). Every rank opens the root, saves the same steps in the same order,
                     and calls `restore` together with the others. A rank waits for the others up to group_timeout
      replicated     names of tensors and values that are equal on every rank (patterns with * and ?): written once, and
                     readable at any number of ranks. The contents of DistributedDataParallel modules are replicated
                     too. Everything else belongs to its rank. Every save compares names, dtypes, shapes and values,
                     and with compare_replicas also the tensors' bytes (it reads all of them inside the call). A
                     difference fails the save
      slowdown, mtbf let `should_save` choose when to save: how much saves may slow training down (0.01 is 1 %), and the
                     mean time between failures of the job. restart_time is the time from a failure until training
                     continues. For one process only
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        host_memory: int | str = "1GiB",
        max_in_flight: int = 2,
        keep_last: int = 3,
        keep_every: int = 0,
        when_full: str = "wait",
        full_timeout: float = 3600.0,
        drain_timeout: float = 600.0,
        open_timeout: float = 10.0,
        take_over: bool = False,
        read_only: bool = False,
        chunk: int | str = 0,
        queue_depth: int = 8,
        workers: int = 0,
        copy_streams: int = 2,
        staging: int | str = 0,
        cuda_devices: Sequence[int] = (),
        checksums: bool = True,
        recycle: bool = True,
        io: str = "auto",
        file_mode: int = 0o644,
        directory_mode: int = 0o755,
        trace_events: int = 0,
        group: Any = None,
        group_timeout: float = 600.0,
        replicated: str | Iterable[str] = (),
        compare_replicas: bool = False,
        slowdown: float | None = None,
        mtbf: float | None = None,
        restart_time: float = 0.0,
    ) -> None:
        self.root = os.fspath(root)
        self._replicated = replication.Rules.of(replicated)
        self._compare_replicas = compare_replicas
        self._when_full = when_full
        self._full_timeout = full_timeout
        self._drain_timeout = drain_timeout
        self._group_timeout = group_timeout
        options = partial(
            _core.Checkpointer,
            root=self.root,
            read_only=read_only,
            keep_last=keep_last,
            keep_every=keep_every,
            max_in_flight=max_in_flight,
            when_full=when_full,
            full_timeout=full_timeout,
            open_timeout=open_timeout,
            take_over=take_over,
            drain_timeout=drain_timeout,
            file_mode=file_mode,
            directory_mode=directory_mode,
            host_memory=parse_size(host_memory),
            chunk=parse_size(chunk),
            queue_depth=queue_depth,
            workers=workers,
            copy_streams=copy_streams,
            staging=parse_size(staging),
            cuda_devices=list(cuda_devices),
            checksums=checksums,
            recycle=recycle,
            io=io,
            trace_events=trace_events,
            group_timeout=group_timeout,
            steering=None,
        )
        if (slowdown is None) != (mtbf is None):
            raise InvalidArgument(f"slowdown and mtbf: expected both or neither, found {slowdown} and {mtbf}")
        if slowdown is not None and mtbf is not None:
            for name, seconds in (("mtbf", mtbf), ("restart_time", restart_time)):
                if not 0 <= seconds <= 1e9:
                    raise InvalidArgument(f"{name}: expected 0 to 1e9 seconds, found {seconds}")
            options.keywords["steering"] = (slowdown, mtbf, restart_time)
        self._ranks = Ranks(group, self.root, group_timeout)
        try:
            self._core = self._ranks.together("open", partial(options, group=self._ranks.core))
        except BaseException:
            self._ranks.close()
            raise
        # The engine still reads these: a save's tensors must live until it is captured, even if the caller drops them.
        self._held: deque[tuple[_core.Save, list[Any], set[int]]] = deque()  # With the CUDA devices they are on.
        self._reading = Reading(self._core, self._ranks, self._replicated)
        self._guard = _protect.Guard(self)
        self._guard.held = self._held
        try:
            self._watching = None if read_only else _exit.start_watching(self._core.watcher)
        except BaseException:
            self._core.close(0.0)
            self._ranks.close()
            raise
        _exit.open_checkpointers.add(self)

    # Saving

    def save(
        self,
        step: int,
        tree: Any,
        *,
        replace: bool = False,
        streams: Iterable[Any] = (),
        replicated: str | Iterable[str] = (),
    ) -> Save:
        """Starts a save and returns before any byte of tensor data has moved.

        The checkpoint sees all work that was given to each device's current stream (and to `streams`, torch.cuda.Stream
        objects) before the call. Plain values, and CPU tensors up to 64 KiB each (4 MiB in all), are copied in the
        call. Other tensors must not be overwritten before the save is captured: see `fence` and `protect`. In a group
        every rank saves; `replicated` adds to the Checkpointer's.

        Raises InvalidArgument, with the path, for a value that cannot be kept; AlreadyExists for a step that is
        committed (unless `replace`); FailedPrecondition for a step below the newest without a restore; DeadlineExceeded
        if max_in_flight saves were in flight for `full_timeout`. Later failures are on the Save, and the next `check`
        raises them.
        """
        replicas = replication.NOTHING

        def fill(tensors: tree_tensors.TensorCollector) -> list[tuple[str, str]]:
            nonlocal replicas
            text = _tree.flatten(tree, tensors)
            values, replicas = self._replica_arguments(tree, text, replicated)
            return [("tree", text), *values]

        return self._start(step, fill, lambda: replicas, streams=streams, replace=replace)

    def _start(
        self,
        step: int,
        fill: Callable[[tree_tensors.TensorCollector], list[tuple[str, str]]],
        replicas: Callable[[], replication.Arguments] = lambda: replication.NOTHING,
        *,
        streams: Iterable[Any] = (),
        replace: bool = False,
        hold: bool = False,
    ) -> Save:
        """Starts a save of the tensors that `fill` adds and of the values, as JSON, that it returns. With `hold` it is
        not committed before its release."""
        self._log_events()
        try:
            tensors = tree_tensors.TensorCollector()
            values = fill(tensors)
            given = [(stream.device.index, stream.cuda_stream) for stream in streams]
            cuda = tensors.core.cuda_devices
            current = tree_tensors.current_streams(cuda)
            if self._when_full == "wait":
                # The engine would wait as well, but signals would not interrupt it.
                self._core.wait_for_place(self._full_timeout)
        except BaseException as error:
            # The other ranks wait for this save.
            with contextlib.suppress(Exception):
                self._core.give_up(step, f"{type(error).__name__}: {error}")
            raise
        held_for = self._group_timeout if hold else 0.0
        core = self._core.save(step, tensors.core, values, current + given, replace, replicas(), held_for)
        self._held.append((core, tensors.kept, cuda))
        return Save(core)

    def _replica_arguments(
        self, tree: Any, text: str, more: str | Iterable[str]
    ) -> tuple[list[tuple[str, str]], replication.Arguments]:
        if self._ranks.world == 1 and not self._replicated and not more:
            return [], replication.NOTHING
        rules = self._replicated | replication.Rules.of(more)
        if not self._compare_replicas:
            return replication.save_arguments(tree, text, rules, None)
        names = Names()
        _tree.flatten(tree, names)
        return replication.save_arguments(tree, text, rules, names.tensors)

    def should_save(self, step: int) -> bool:
        """Whether to save `step`, which training has just finished. Call it once after each step, before `save`.

        The first calls return False while training's iterations are timed. Then one save is measured. From then on the
        answer follows the interval with the best goodput that `slowdown` and the disk allow, updated by the cost of
        each save. `stats` has the interval ("save_interval") and its reason ("save_interval_reason"). Raises
        FailedPrecondition for a Checkpointer without `slowdown` and `mtbf`.
        """
        return self._core.should_save(step)

    def fence(self, stream: Any = None, timeout: float | None = None) -> None:
        """Orders later work after the capture of every save so far: call it before tensors are overwritten.

        With a torch.cuda.Stream that stream waits if every copy is enqueued already, and the host runs ahead.
        Otherwise, and always for CPU tensors, the host waits. A failed save delays nobody. Within torch.compile it is
        the op torch.ops.cairn.fence, for all devices: put it before the code that overwrites tensors.
        """
        if self._guard.compiled():
            return
        if stream is None:
            self._core.fence(-1, 0, timeout)
        else:
            self._core.fence(stream.device.index, stream.cuda_stream, timeout)
        self._release_captured()

    def protect(self, *targets: Any) -> None:
        """Fences before each step of these optimizers, so that no parameter changes under a save.

        Accelerate's and Lightning's wrappers are unwrapped. For a module it protects the optimizers that step within
        backward, and loading a state dict into the module waits too. Raises InvalidArgument, with the type, for targets
        that call no hooks. Under torch.compile the fence is the op torch.ops.cairn.fence. A step that is captured in a
        CUDA graph is refused.
        """
        for target in targets:
            self._guard.add(target)

    def _fence_held(self) -> None:
        self._release_captured()
        devices = {device for *_, cuda in list(self._held) for device in cuda}
        for device in devices:
            self.fence(sys.modules["torch"].cuda.current_stream(device))
        if self._held and not devices:
            self.fence()

    def drain(self, timeout: float | None = None) -> None:
        """Waits until no save is in flight; raises the first failure among them."""
        self._core.drain(timeout)
        self._release_captured()
        self._log_events()

    def check(self) -> None:
        """Raises the newest failure of a save that was not cancelled, skipped or replaced, if there was one."""
        self._log_events()
        self._core.raise_last_failure()

    # Restoring

    def restore(
        self,
        tree: Any,
        step: int | None = None,
        *,
        folder: str | os.PathLike[str] = "",
        fall_back: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Reads the newest checkpoint (or `step`, or a `folder` that was copied elsewhere) into the tree's tensors.

        Names, shapes and dtypes are checked before the first byte is written, and every byte is verified. Tensors are
        filled in place; tensors that an object with load_state_dict lacks are created. Returns the tree with the
        checkpoint's plain values. Raises NotFound only if there is no such checkpoint (retention does not remove the
        newest while it is read); Corrupt if it is damaged or cannot be read from the disk; InvalidArgument, with both
        lists, if tree and checkpoint differ. After Corrupt the tensors' contents are unspecified.

        `fall_back` permits an older checkpoint if the one that is read turns out to be Corrupt, and logs which one was
        passed over and why. Only what the tree needs is read and verified; `verify` reads everything.

        In a group every rank calls it, with the same step and fall_back (else InvalidArgument). Rank 0 chooses, each
        rank reads its own state and what is replicated, and all succeed or all raise. If a checkpoint is Corrupt on one
        rank, all ranks pass over it. Raises FailedPrecondition if a rank cannot find what rank 0 has chosen, after
        several choices. If another number of ranks saved the checkpoint, only what is replicated can be read: leave the
        other keys out of the tree.
        """
        self._log_events()
        return self._reading.restore(tree, step, os.fspath(folder), fall_back, progress)

    def load(
        self,
        step: int | None = None,
        *,
        names: str | Sequence[str] | None = None,
        lazy: bool = False,
        folder: str | os.PathLike[str] = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Builds a tree from a checkpoint, on the CPU: objects come back as their state dicts. To continue training use
        `restore`.

        Tied tensors (the same memory, dtype and shape) are one tensor again. With `names` (tensor names, or patterns
        with * and ?) the result is a flat dict of those tensors; a name or pattern without a match raises NotFound. In
        a group it is this rank's tree, and each rank may load on its own. With `lazy` nothing is read yet: each tensor
        is a LazyTensor, whose load() reads it.
        """
        return self._reading.load(step, names, lazy, os.fspath(folder), progress)

    @property
    def rank(self) -> int:
        """This process's rank in the group; 0 without one."""
        return self._ranks.rank

    @property
    def world(self) -> int:
        """How many ranks write a checkpoint together."""
        return self._ranks.world

    # Ending

    def close(self, timeout: float | None = None) -> None:
        """Waits for saves in flight, up to `timeout` seconds (default: drain_timeout). Abandons the rest: it logs and
        raises DeadlineExceeded."""
        try:
            self._core.close(self._drain_timeout if timeout is None else timeout)
        except DeadlineExceeded as error:
            _log.error("%s: abandoned at close: %s", self.root, error)
            raise
        finally:
            if self._core.closed:
                if self._watching:
                    self._watching.join()
                self._ranks.close()
                _exit.open_checkpointers.discard(self)
                self._held.clear()
                self._log_events()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # A failed save must raise here.
            try:
                self.drain(self._drain_timeout)
            finally:
                self.close()
        else:
            self.close()

    def _release_captured(self) -> None:
        for held in list(self._held):  # Other threads may append and remove.
            if not held[0].captured:
                return
            with contextlib.suppress(ValueError):
                self._held.remove(held)

    def _log_events(self) -> None:
        """Logs the engine's new events: its threads never call into Python."""
        self._release_captured()
        for _, severity, step, message in self._core.take_events():
            if message:
                about = "" if step is None else f"step {step}: "
                _log.log((logging.INFO, logging.WARNING, logging.ERROR)[severity], "%s%s", about, message)
