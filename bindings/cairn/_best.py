"""keep_best: the checkpoints with the best values of a metric are pinned, so that retention never removes them.

The truth is in the checkpoints: each holds the metrics of its save. After a crash at any point:
  1. A save is held: its commit waits until every older save has ended and step 2 is done for it. So the commit after
     which retention may remove a checkpoint comes after that checkpoint's pin, which is durable.
  2. Once the save is durable, the best checkpoints are chosen and pinned; those that are no longer among them lose their
     pin: also a new checkpoint of a step, which has the pin of the one that it replaced. A pin of this kind holds a text
     of its own (see src/store/pins.h), so that a pin of the user's is never taken away.
Opening does step 2. A crash between commit and pin leaves the newest checkpoint without its pin, and retention does not
remove the newest.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _threads, _tree
from ._arguments import one_of, text, whole
from ._errors import Error, InvalidArgument, NotFound
from ._tree.paths import is_unicode, shown
from ._tree.writer import Names

if TYPE_CHECKING:
    from ._core import Checkpointer, Save

_log = logging.getLogger("cairn")
MODES = ("min", "max")
KINDS = (None, "inf", "nan")  # What a checkpoint is marked with, best first.


def check_best(keep: int, metric: str, mode: str) -> None:
    """InvalidArgument for options that do not say what is best."""
    one_of("best_mode", mode, MODES)
    if bool(whole("keep_best", keep)) != bool(text("best_metric", metric)):
        raise InvalidArgument(f"keep_best and best_metric: expected both or neither, found {keep} and {metric!r}")


def metric_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics as floats. InvalidArgument for anything that is not a number."""
    values: dict[str, float] = {}
    for name, value in _named("metrics", metrics).items():
        try:
            if not isinstance(name, str) or not is_unicode(name) or isinstance(value, (str, bytes)):
                raise TypeError
            values[name] = float(value)
        except Exception:  # noqa: BLE001 (of the value's own code)
            found = f"{shown(name)}: {shown(value)}"
            raise InvalidArgument(f"metrics: expected names with numbers, found {found}") from None
    return values


def check_metrics(metrics: Mapping[str, float], best: str) -> None:
    """InvalidArgument if the metric that keep_best goes by is not among those of a save that has some."""
    if best and metrics and best not in metrics:
        raise InvalidArgument(
            f"metrics: expected {best!r} among them, which is best_metric, found {', '.join(metrics)}"
        )


def _named(what: str, given: Any) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{what}: expected a dict, found {shown(given)}")
    return given


def described(metadata: Mapping[str, Any] | None, metrics: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Both as values of a checkpoint: (name, text)."""
    texts = []
    for name, given in (("metadata", metadata), ("metrics", metrics and metric_values(metrics))):
        if not given:
            continue
        tensors = Names()
        texts.append((name, _tree.flatten({**_named(name, given)}, tensors)))
        if tensors.tensors:
            raise InvalidArgument(f"{name}: expected plain values, found a tensor, {next(iter(tensors.tensors))}")
    return texts


def description(core: Checkpointer, path: str, name: str) -> dict[str, Any]:
    """The "metadata" or the "metrics" of the checkpoint at this path; empty if it has none."""
    values = core.inspect_part(path, 0, [])["values"]
    return _tree.build(values[0][name], {}) if values and name in values[0] else {}


def ranked(
    core: Checkpointer,
    metric: str,
    mode: str,
    known: dict[str, dict[str, float]] | None = None,
    listed: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Of those listed (all, if None), the good checkpoints that have this metric, best first; of equal ones the newest
    first. Of several kinds (finite, with infinities, with NaNs) only those of the best one count. `known` has the
    metrics by attempt, and gets those that are read here."""
    known = {} if known is None else known
    infos = [info for info in (core.checkpoints() if listed is None else listed) if info["damage"] is None]
    for info in infos:
        if info["attempt"] not in known:
            try:
                known[info["attempt"]] = description(core, info["path"], "metrics")
            except NotFound:
                continue  # Removed meanwhile.
            except Error as error:
                _log.warning("%s: its metrics cannot be read: %s", info["path"], error)
                known[info["attempt"]] = {}
    there = {info["attempt"] for info in infos}
    for attempt in [one for one in known if one not in there]:
        del known[attempt]
    sign = 1.0 if mode == "min" else -1.0
    scored = [
        (KINDS.index(info["nonfinite"]), sign * value, -info["line"], -info["step"], info)
        for info in infos
        if (value := known.get(info["attempt"], {}).get(metric)) is not None and not math.isnan(value)
    ]
    best = min((kind for kind, *_ in scored), default=0)
    return [info for kind, *_, info in sorted(scored, key=lambda one: one[:4]) if kind == best]


class KeepBest:
    """Pins the `keep` best checkpoints of one open root. A thread does so while saves are in flight."""

    def __init__(self, core: Checkpointer, keep: int, metric: str, mode: str) -> None:
        self._core, self._keep, self._metric, self._mode = core, keep, metric, mode
        self._known: dict[str, dict[str, float]] = {}
        self._saves = _threads.InTurn("cairn-best", daemon=True)  # Held ones, and the one that is looked after.
        self._settling = threading.Lock()
        self.settle()

    def add(self, save: Save, metrics: dict[str, float]) -> None:
        """Takes a held save, in the order of the saves, and releases it in its turn."""
        self._saves.add(partial(self._look_after, save, metrics))

    def wait(self, timeout: float) -> float:
        """Waits until all saves have ended and the best are pinned, up to `timeout`; returns what is left of it."""
        end = time.monotonic() + timeout
        # In slices: a signal may make the end earlier.
        while self._saves.busy and (left := min(end, self._core.waits_end()) - time.monotonic()) > 0:
            _threads.pause(min(left, 0.01))
        return max(0.0, end - time.monotonic())

    @property
    def busy(self) -> bool:
        """Whether saves are in flight, or their pins are missing."""
        return self._saves.busy

    def settle(self, durable: tuple[int, dict[str, float]] | None = None) -> None:
        """Pins the best, and unpins those that were pinned here and are no longer among them. `durable` is a new
        checkpoint: its step and its metrics."""
        with self._settling:
            infos = self._core.checkpoints()
            if durable is not None:
                self._known |= {info["attempt"]: durable[1] for info in infos if info["step"] == durable[0]}
            found = ranked(self._core, self._metric, self._mode, self._known, infos)
            best = {info["path"] for info in found[: self._keep]}
            for info in infos:
                if info["pinned"] != (info["path"] in best):
                    with contextlib.suppress(NotFound):  # Removed meanwhile.
                        self._core.pin_best(info["step"], not info["pinned"])

    def _look_after(self, save: Save, metrics: dict[str, float]) -> None:
        try:
            save.release()
            # No younger save is committed yet, so the step's checkpoint is this save's.
            save.wait_ended(None)
            self.settle((save.step, metrics) if save.stats()["phase"] == "durable" else None)
        except Exception as error:  # noqa: BLE001
            _log.error("step %d: keep_best: %s", save.step, error)
