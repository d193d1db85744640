"""What a Checkpointer and the plugs of frameworks have in common: one open root. They start saves, fence, read, and agree
with the other ranks through it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _exit, _mirrors, _protect
from ._arguments import callback, checked, flag, one_of, seconds, step_number, stream_of, whole
from ._best import KeepBest, check_best, check_metrics, metric_values
from ._errors import Cancelled, DeadlineExceeded, Error, InvalidArgument, Unsupported, status_of, text_of
from ._held import Held, log_events, release_captured
from ._metrics import MetricsServer, port_of_rank
from ._opening import close_earlier, log_waiting, open_with_current_gpu, with_hints
from ._ranks import replicas as replication
from ._ranks.agreement import Ranks
from ._ranks.compared import Comparison
from ._ranks.reading import Reading
from ._ranks.schedule import Interval, Schedule
from ._save import Save
from ._stop import Stop
from ._tree import tensors as tree_tensors
from ._tree.frozen import FrozenNames, FrozenParameters, frozen_expression

if TYPE_CHECKING:
    from ._core import Checkpointer as CoreCheckpointer
    from ._core import Save as CoreSave

_log = logging.getLogger("cairn")

_GIVING_BACK = 5.0  # Seconds for what goes on at an opening that fails.
_ENDING = 2.0  # Seconds that a handler of the program may hold the thread that logs, at the end.
_UNKNOWN_TIMEOUT = 60.0  # Seconds that the others are waited for to hear that group_timeout is wrong.
_UNTIL_BEST = 1e9  # Seconds: KeepBest releases every save.
_ANY_STEP = 2**64 - 1  # See GiveUp in cairn/checkpointer.h.


class Engine:
    """`options` are those of Checkpointer, by name. Safe from any thread."""

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self.root = root
        with contextlib.suppress(InvalidArgument):  # Which _check raises.
            if flag("exist_ok", options["exist_ok"]) and not flag("read_only", options["read_only"]):
                close_earlier(root)
        group, timeout = options["group"], _UNKNOWN_TIMEOUT
        with contextlib.suppress(InvalidArgument):
            timeout = seconds("group_timeout", options["group_timeout"])
        self.ranks = Ranks(group, root, timeout)
        self.metrics: MetricsServer | None = None
        opened: list[CoreCheckpointer] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.ranks.close)
            undo.callback(_give_back, opened)
            undo.callback(self._stop_metrics)
            given = self.ranks.together("open", partial(self._check, options))
            read_only = given["read_only"]
            if not read_only and self.ranks.rank == 0:
                log_waiting(root, given["open_timeout"])
            open_core = partial(open_with_current_gpu, opened, root, given, self.ranks.core)
            self.core = self.ranks.together("open", partial(with_hints, open_core, alone=group is None))
            self._prepare(options, given)
            if self.metrics is not None:
                self.metrics.serve(self.core)
                weakref.finalize(self, self.metrics.stop).atexit = False
            _exit.opened(self)
            undo.pop_all()

    def _check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """InvalidArgument before anything is opened."""
        self.replicated = replication.Rules.of(options["replicated"], options["per_rank"])
        self.per_rank = self.replicated.per_rank
        self.compare_replicas = one_of("compare_replicas", options["compare_replicas"], ("first", "always", "never"))
        check_best(options["keep_best"], options["best_metric"], options["best_mode"])
        if options["memory"] is not None and options["keep_best"]:
            raise InvalidArgument("memory: expected no keep_best, which the disk must have, found both")
        flag("exist_ok", options["exist_ok"])
        self._on_failure = callback("on_failure", options["on_failure"])
        given = checked(options) | {
            "mirrors": _mirrors.checked_mirrors("mirrors", options["mirrors"]),
            "mirror_timeout": seconds("mirror_timeout", options["mirror_timeout"]),
            "restore_from": _restore_from(options["restore_from"]),
            "mirror_command": _mirrors.command(),
        }
        self.full_timeout, self.close_timeout = given["full_timeout"], given["close_timeout"]
        self.group_timeout = given["group_timeout"]
        if options["metrics_port"] is not None:
            port = whole("metrics_port", options["metrics_port"], 2**16)
            self.metrics = MetricsServer(port_of_rank(port, self.ranks.rank, self.ranks.world))
        return given

    def _stop_metrics(self) -> None:
        if self.metrics is not None:
            self.metrics.stop()

    def _prepare(self, options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self.comparison = Comparison(self.compare_replicas if self.ranks.world > 1 else "never")
        self.held: deque[Held] = deque()
        self._in_flight: list[CoreSave] = []  # Oldest first; some of them may have ended.
        self._waits_for_place = given["when_full"] == "wait"
        self._best: KeepBest | None = None  # Only on rank 0.
        self._best_metric = options["best_metric"] if options["keep_best"] else ""  # On every rank.
        self._in_order = threading.Lock()  # KeepBest gets the saves in the order in which the engine does.
        self._frozen = FrozenParameters()
        self._has_frozen = False  # Or has said that frozen=True did not.
        self._patterns: set[tuple[str, str]] = set()  # Those of `replicated` and `frozen` that a save has used.
        self.interval = None if options["interval"] is None else Interval(options["interval"])
        self.schedule: Schedule | None = None
        if self.interval is not None:
            self.schedule = Schedule(self.ranks, self.interval.due)
        elif given["steering"] is not None:
            core = self.core  # Not self, which would then be freed late.
            self.schedule = Schedule(self.ranks, lambda step, ahead: ahead == 0 and core.should_save(step))
        self.reading = Reading(self.core, self.ranks, self.replicated, self.root, self.close_timeout)
        self.stop: Stop | None = None
        self._watching = None if given["read_only"] else _exit.start_watching(self.core, self.held)
        if options["keep_best"] and not given["read_only"] and self.ranks.rank == 0:
            self._best = KeepBest(self.core, options["keep_best"], options["best_metric"], options["best_mode"])

    @property
    def closed(self) -> bool:
        return self.core.closed

    @property
    def writes(self) -> bool:
        """Whether it may save."""
        return self._watching is not None

    # Saving

    def start(
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
        try:
            step = step_number(step)
        except Error as error:
            self._give_up(_ANY_STEP, error)
            raise
        if self.core.closed:
            _exit.refuse_late(self.root, step)
        self.log_events()
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
            given = [stream_of("streams", one) for one in streams]
            cuda = tensors.core.cuda_devices
            current = tree_tensors.current_streams(cuda)
            # They may write pinned tensors.
            elsewhere = tree_tensors.current_streams(tree_tensors.cuda_in_use() - cuda)
            if self._waits_for_place:
                # The engine would wait as well, but signals would not interrupt it.
                self.core.wait_for_place(self.within_grace(self.full_timeout))
        except BaseException as error:
            self._give_up(step, error)
            raise
        held_for = _UNTIL_BEST if self._best is not None else hold
        entry = Held(tensors.kept, cuda)
        with self._in_order:
            try:
                core = self.core.save(
                    step,
                    tensors.core,
                    values,
                    current + given,
                    elsewhere,
                    replace,
                    pin,
                    replicas(),
                    held_for,
                    self.held,
                    entry,
                )
                self._in_flight = [*self.started(), core]
                if self._best is not None:
                    self._best.add(core, measured)
            except BaseException:
                # A signal's exception may come before `core` is set. Nobody would release the save, or ask for it.
                if entry.save is not None:
                    entry.save.cancel()
                raise
        if self.interval is not None:
            self.interval.saved()
        save = Save(core, weakref.ref(self))
        if self._on_failure is not None:
            save.add_done_callback(partial(_tell_failure, self._on_failure))
        return save

    def _give_up(self, step: int, error: BaseException) -> None:
        """It counts as a failed save, and the other ranks wait for it."""
        with contextlib.suppress(Exception):
            self.core.give_up(step, f"{type(error).__name__}: {text_of(error)}", status_of(error)[0])

    def started(self) -> list[CoreSave]:
        """The saves in flight, oldest first."""
        return [save for save in self._in_flight if not save.ended]

    def replica_arguments(
        self,
        step: int,
        tree: Any,
        text: str,
        tensors: tree_tensors.TensorCollector,
        more: str | Iterable[str] | replication.Rules = (),
        streams: Iterable[Any] = (),
        buffers: Iterable[str] = (),
    ) -> tuple[list[tuple[str, str]], replication.Arguments]:
        """See Comparison.arguments; `more` patterns than the Checkpointer's."""
        if self.ranks.world == 1 and not self.replicated and not more:
            return [], replication.NOTHING
        rules = self.replicated | replication.Rules.of(more)
        self._warn_of_unmatched("replicated", rules.given, partial(replication.unmatched, text=text))
        return self.comparison.arguments(step, tree, text, rules, tensors, streams, buffers)

    def freeze(
        self,
        tensors: tree_tensors.TensorCollector,
        frozen: bool | str | Iterable[str] | FrozenNames,
        tree: Any,
        unmatched: Callable[[Iterable[str]], list[str]],
        named: Callable[[FrozenNames | re.Pattern[str]], FrozenNames | re.Pattern[str]] = lambda found: found,
    ) -> None:
        """Some tensors of the tree do not change: see Checkpointer.save. A plug that knows their names gives these.
        `unmatched` returns the patterns that match no tensor; `named` what the tensors' names are asked if they are not
        those of a tree."""
        for optimizer in _protect.captured_optimizers():
            self.core.note_step(optimizer.param_groups, optimizer.state)
        if isinstance(frozen, FrozenNames):
            tensors.core.freeze(named(frozen))
        elif frozen is True:
            found = self._frozen.of(tree)
            if found.names:
                tensors.core.freeze(named(found))
            elif not self._has_frozen:
                _log.warning(
                    "%s: frozen=True froze nothing: no module of the tree has a parameter with requires_grad=False. "
                    "The tensors of a state_dict() do not say whether they are trained: give the modules, or patterns of "
                    "names",
                    self.root,
                )
            self._has_frozen = True
        elif patterns := replication.patterns_of("frozen", frozen or ()):
            self._warn_of_unmatched("frozen", patterns, unmatched)
            tensors.core.freeze(named(frozen_expression(patterns)))

    def _warn_of_unmatched(
        self, option: str, patterns: Iterable[str], unmatched: Callable[[Iterable[str]], list[str]]
    ) -> None:
        """Once for each pattern that the caller gave, at its first save: it may be misspelt."""
        new = [pattern for pattern in patterns if (option, pattern) not in self._patterns]
        if not new:
            return
        self._patterns.update((option, pattern) for pattern in new)
        for pattern in unmatched(new):
            who = f"rank {self.ranks.rank}" if self.ranks.world > 1 else "this process"
            _log.warning('%s: %s: "%s" matches nothing that %s saves', self.root, option, pattern, who)

    # What comes after saves

    def fence(self, timeout: float | None = None, stream: Any = None) -> None:
        """Checkpointer.fence, outside of torch.compile. Plugs call it before they overwrite tensors."""
        self.release_captured(fencing=True)
        if stream is not None:
            self.core.fence(*stream_of("stream", stream), timeout)
        elif self.held:
            devices = {device for held in list(self.held) for device in held.cuda}
            for index, current in tree_tensors.current_streams(devices) or [(-1, 0)]:
                self.core.fence(index, current, timeout)
        self.release_captured()

    @property
    def has_unchecked(self) -> bool:
        """Whether it matters to any save what a step writes."""
        return not self.core.closed and self.core.has_unchecked

    def begin_step(self) -> None:
        """Before a step of any optimizer."""
        if not self.core.closed:
            self.core.begin_step()

    def end_step(self, optimizer: Any) -> None:
        """After it: what it has written must not have been read by a save since it began."""
        if not self.core.closed:
            if self.core.has_frozen:
                self.core.note_step(optimizer.param_groups, optimizer.state)
            self.core.end_step(_protect.written_by(optimizer) if self.core.has_unchecked else [])

    def end_main_step(self) -> None:
        """The main thread waits for saves, which are checked after its optimizer's step only: that may have raised."""
        if threading.current_thread() is threading.main_thread() and not self.core.closed:
            self.core.end_step([])

    def release_captured(self, fencing: bool = False) -> None:
        release_captured(self.held, fencing)

    def log_events(self) -> None:
        self.release_captured()
        log_events(self.core.events)

    def within_grace(self, timeout: float) -> float:
        return timeout if self.stop is None else self.stop.within_grace(timeout)

    def settle_best(self) -> None:
        if self._best is not None:
            self._best.settle()

    def wait_mirrored(self, step: int, target: str | os.PathLike[str], timeout: float | None) -> None:
        """See Save.wait."""
        self.core.wait_mirrored(step, _mirrors.target_of(target, "where"), timeout)

    # Ending

    def drain(self, timeout: float | None) -> None:
        try:
            left = self._wait_for_best(self.within_grace(math.inf) if timeout is None else timeout)
            self.core.drain(None if timeout is None else left)
            if self._best is not None and self._best.busy:
                raise DeadlineExceeded(f"{self.root}: the best checkpoints are not pinned yet")
        finally:
            self.log_events()

    def close(self, timeout: float | None = None) -> None:
        limit = self.within_grace(self.close_timeout) if timeout is None else timeout
        end = time.monotonic() + limit
        left = self._wait_for_best(limit)
        try:
            self.core.close(left, timeout is not None)
        except DeadlineExceeded as error:
            _log.error("%s: %s", self.root, error)
            raise
        finally:
            if self.core.closed:
                if self._watching and self._watching is not threading.current_thread():
                    self._watching.join(_ENDING)
                if self.stop is not None:
                    self.stop.end()
                self._stop_metrics()
                self.ranks.close(end)
                _exit.open_engines.discard(self)
                if self.core.released:
                    self.held.clear()
                self.log_events()

    def _wait_for_best(self, timeout: float) -> float:
        """Waits for keep_best, which releases its saves one by one; returns what is left of the timeout."""
        if self._best is None or self.core.closed:
            return timeout
        self.core.end_step([])  # A step that has raised did not say that it has ended.
        return self._best.wait(timeout)


def _restore_from(target: Any) -> str:
    return "" if target is None else _mirrors.target_of(target, "restore_from")


def _tell_failure(on_failure: Callable[[int, Error], object], save: Save) -> None:
    try:
        save.result()
    except Cancelled:
        pass
    except Error as error:
        on_failure(save.step, error)


def _give_back(opened: list[CoreCheckpointer]) -> None:
    """Closes what an opening that failed has opened. Without time, that would leave the root locked: its sweep may be
    under way."""
    for core in opened:
        with contextlib.suppress(Error):
            core.close(_GIVING_BACK, True)
