"""What a Checkpointer does to save: start saves, and keep their tensors unchanged until they are captured."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _exit, _protect, _tree
from ._arguments import flag, seconds, step_number, timeout_of
from ._best import KeepBest, check_metrics, described, metric_values
from ._engine import Engine, Held
from ._errors import FailedPrecondition, Unsupported
from ._ranks import replicas as replication
from ._ranks.agreement import Ranks
from ._ranks.compared import Comparison
from ._ranks.schedule import Interval, Schedule
from ._save import Save
from ._stop import Stopping
from ._tree import tensors as tree_tensors

if TYPE_CHECKING:
    from ._core import CopyPause
    from ._core import Save as CoreSave

_log = logging.getLogger("cairn")

_UNTIL_BEST = 1e9  # Seconds: KeepBest releases every save.


class Saving(Engine, Stopping):
    """Starts saves, decides when to, and orders what comes after them."""

    root: str
    _ranks: Ranks
    _replicated: replication.Rules
    _per_rank: tuple[str, ...]
    _patterns: set[str]  # Those of `replicated` that a save has used.
    _guard: _protect.Guard
    _in_flight: list[CoreSave]  # Oldest first; some of them may have ended.
    _best: KeepBest | None  # Only on rank 0.
    _best_metric: str  # On every rank; empty without keep_best.
    _in_order: threading.Lock  # KeepBest gets the saves in the order in which the engine does.
    _interval: Interval | None
    _schedule: Schedule | None
    _compare_replicas: str
    _comparison: Comparison
    _when_full: str
    _full_timeout: float
    _group_timeout: float

    def save(
        self,
        step: int,
        tree: Any,
        *,
        replace: bool = False,
        pin: bool = False,
        streams: Iterable[Any] = (),
        replicated: str | Iterable[str] | replication.Rules = (),
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Save:
        """Starts a save and returns before any byte of tensor data has moved.

        The checkpoint sees all work on its tensors that was given to each device's current stream (and to `streams`,
        torch.cuda.Stream objects) before the call: on tensors of a GPU, and on pinned or managed CPU tensors, as by
        `copy_(..., non_blocking=True)`. For a state without tensors of a GPU that is torch's current device. Work in
        other streams is not seen, nor is that on pinned CPU tensors if this Checkpointer uses no GPU yet. Plain values,
        and other CPU tensors up to 64 KiB each (4 MiB in all), are copied in the call. All other tensors must not be
        overwritten before the save is captured: see `fence` and `protect`. In a group
        every rank saves; `replicated` adds to the Checkpointer's. With `replace` the save waits, in the background, for
        who reads the step's old checkpoint, at most half of group_timeout.

        With `pin` the checkpoint is pinned from its commit on: retention, which may remove a step before `pin(step)`
        comes, never sees it without. A checkpoint that replaces a pinned one is pinned in any case. In a group rank 0's
        counts.

        `metadata` (plain values) and `metrics` (numbers) are kept beside the tree: `checkpoints` has them, and
        `keep_best` chooses by a metric. In a group rank 0's count.

        Raises InvalidArgument, with the path, for a value that cannot be kept; AlreadyExists for a step that is
        committed (unless `replace`); FailedPrecondition for a step below the newest without a restore; DeadlineExceeded
        if max_in_flight saves were in flight for `full_timeout`. Later failures are on the Save, and the next `check`
        raises them.
        """
        replicas = replication.NOTHING

        def fill(tensors: tree_tensors.TensorCollector) -> list[tuple[str, str]]:
            nonlocal replicas
            text = _tree.flatten(tree, tensors)
            values, replicas = self._replica_arguments(step, tree, text, tensors, replicated, streams)
            about = described(metadata, metrics) if self._ranks.rank == 0 else []
            return [("tree", text), *values, *about]

        streams = [*streams]
        save = self._start(step, fill, lambda: replicas, streams=streams, replace=replace, pin=pin, metrics=metrics)
        self._comparison.saved(save)
        return save

    def _start(
        self,
        step: int,
        fill: Callable[[tree_tensors.TensorCollector], list[tuple[str, str]]],
        replicas: Callable[[], replication.Arguments] = lambda: replication.NOTHING,
        *,
        streams: Iterable[Any] = (),
        replace: bool = False,
        pin: bool = False,
        hold: float = 0.0,
        metrics: Mapping[str, float] | None = None,
    ) -> Save:
        """Starts a save of the tensors that `fill` adds and of the values, as JSON, that it returns. With `hold` it is
        not committed before its release, and fails if that comes no sooner than so many seconds after its last write.
        """
        step = step_number(step)
        if self._core.closed:
            _exit.refuse_late(self.root, step)
        self._log_events()
        _protect.watch_steps()
        try:
            if hold and self._best_metric:
                raise Unsupported(
                    "keep_best: held saves, as cairn.dcp and the frameworks' plugs make them, have no metrics: open "
                    "another Checkpointer for them"
                )
            replace, pin = flag("replace", replace), flag("pin", pin)
            measured = metric_values(metrics or {})
            check_metrics(measured, self._best_metric)
            tensors = tree_tensors.TensorCollector()
            values = fill(tensors)
            given = [(stream.device.index, stream.cuda_stream) for stream in streams]
            cuda = tensors.core.cuda_devices
            current = tree_tensors.current_streams(cuda)
            # They may write pinned tensors.
            elsewhere = tree_tensors.current_streams(tree_tensors.cuda_in_use() - cuda)
            if self._when_full == "wait":
                # The engine would wait as well, but signals would not interrupt it.
                self._core.wait_for_place(self._within_grace(self._full_timeout))
        except BaseException as error:
            # The other ranks wait for this save.
            with contextlib.suppress(Exception):
                self._core.give_up(step, f"{type(error).__name__}: {error}")
            raise
        held_for = _UNTIL_BEST if self._best is not None else hold
        entry = Held(tensors.kept, cuda)
        with self._in_order:
            try:
                core = self._core.save(
                    step,
                    tensors.core,
                    values,
                    current + given,
                    elsewhere,
                    replace,
                    pin,
                    replicas(),
                    held_for,
                    self._held,
                    entry,
                )
                self._in_flight = [*self._started(), core]
                if self._best is not None:
                    self._best.add(core, measured)
            except BaseException:
                # A signal's exception may come before `core` is set. Nobody would release the save, or ask for it.
                if entry.save is not None:
                    entry.save.cancel()
                raise
        if self._interval is not None:
            self._interval.saved()
        return Save(core)

    def _started(self) -> list[CoreSave]:
        """The saves in flight, oldest first."""
        return [save for save in self._in_flight if not save.ended]

    def _replica_arguments(
        self,
        step: int,
        tree: Any,
        text: str,
        tensors: tree_tensors.TensorCollector,
        more: str | Iterable[str] | replication.Rules = (),
        streams: Iterable[Any] = (),
        buffers: Iterable[str] = (),
    ) -> tuple[list[tuple[str, str]], replication.Arguments]:
        if self._ranks.world == 1 and not self._replicated and not more:
            return [], replication.NOTHING
        rules = self._replicated | replication.Rules.of(more)
        self._warn_of_unmatched(rules, text)
        return self._comparison.arguments(step, tree, text, rules, tensors, streams, buffers)

    def _warn_of_unmatched(self, rules: replication.Rules, text: str) -> None:
        """Once for each pattern that the caller gave, at its first save: it may be misspelt."""
        new = [pattern for pattern in rules.given if pattern not in self._patterns]
        if not new:
            return
        self._patterns.update(new)
        for pattern in replication.unmatched(new, text):
            who = f"rank {self._ranks.rank}" if self._ranks.world > 1 else "this process"
            _log.warning('%s: replicated: "%s" matches nothing that %s saves', self.root, pattern, who)

    def should_save(self, step: int) -> bool:
        """Whether to save `step`, which training has just finished. Call it once after each step, before `save`, on
        every rank of a group: all get the same answer.

        With `interval` it is True once that many seconds have passed since the last save began. With `slowdown` and
        `mtbf` the first calls return False while training's iterations are timed, then one save is measured. From then
        on the answer follows the interval with the best goodput that `slowdown` and the disk allow, updated by the cost
        of each save; `stats` has the interval ("save_interval") and its reason ("save_interval_reason").

        In a group rank 0 decides, and the others hear it about twice a second, not at each step; a save comes up to a
        second later than it would alone. Raises FailedPrecondition without one of these options, and DeadlineExceeded if
        rank 0 does not call it within `group_timeout`.
        """
        if self._schedule is None:
            raise FailedPrecondition(
                f"should_save({step}): the Checkpointer was opened without interval=..., or slowdown=... and mtbf=..."
            )
        return self._schedule.should_save(step_number(step))

    def fence(self, stream: Any = None, timeout: float | None = None) -> None:
        """Orders later work after the capture of every save so far: call it before tensors are overwritten.

        With a torch.cuda.Stream that stream waits if every copy is enqueued already, and the host runs ahead.
        Otherwise, and always for CPU tensors, the host waits. A failed save delays nobody. Within torch.compile it is
        the op torch.ops.cairn.fence, for all devices: put it before the code that overwrites tensors. Raises
        FailedPrecondition within the capture of a CUDA graph, and within code that torch.compile makes one of.
        """
        if self._guard.compiled():
            return
        _protect.refuse_capture()
        if stream is None:
            self._core.fence(-1, 0, timeout_of(timeout))
        else:
            self._core.fence(stream.device.index, stream.cuda_stream, timeout_of(timeout))
        self._release_captured()

    def pause_copies(self, at_most: float = 1.0) -> CopyPause:
        """Holds copies to the host back, until the result's end() or the end of a `with`: for training that sends over
        the same link, such as a pipeline's stages. Pauses may overlap.

        A chunk on its way goes on. From the first pause on a save has one at a time. Copies begin again when the last
        pause has ended, or `at_most` seconds after it began, or when a fence waits for them. `close` ends all pauses.
        """
        return self._core.pause_copies(seconds("at_most", at_most))

    def protect(self, *targets: Any) -> None:
        """Fences before each step of these optimizers, so that no parameter changes under a save.

        Accelerate's and Lightning's wrappers are unwrapped. For a module it protects the optimizers that step within
        backward, and loading a state dict into the module waits too. Raises InvalidArgument, with the type, for targets
        that call no hooks. Under torch.compile the fence is the op torch.ops.cairn.fence. Raises FailedPrecondition
        for an optimizer whose step was captured in a CUDA graph, and so does the capture of a protected one.
        """
        for target in targets:
            self._guard.add(target)

    def _begin_step(self) -> None:
        if not self._core.closed:
            self._core.begin_step()

    def _end_step(self, optimizer: Any) -> None:
        if not self._core.closed:
            self._core.end_step(_protect.written_by(optimizer) if self._core.has_unchecked else [])

    def _end_main_step(self) -> None:
        """The main thread waits for saves, which are checked after its optimizer's step only: that may have raised."""
        if threading.current_thread() is threading.main_thread() and not self._core.closed:
            self._core.end_step([])

    def _compiled_fence(self) -> None:
        self._core.ignore_versions()

    def _fence_held(self) -> None:
        self._release_captured(fencing=True)
        devices = {device for held in list(self._held) for device in held.cuda}
        for device in devices:
            self.fence(sys.modules["torch"].cuda.current_stream(device))
        if self._held and not devices:
            self.fence()
