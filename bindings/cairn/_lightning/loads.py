"""What Lightning loads into a module and its optimizers is held against them first: Lightning would convert it silently."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping
from typing import Any

import torch

from .._errors import InvalidArgument, counted
from .._protect import inner_optimizer
from .._tree.module_loads import check_into
from .._tree.optimizer_loads import Known, fit_state, warn_of_unsaved
from .._tree.optimizer_states import names_of
from .._tree.schedulers import is_of, refuse_order, warn_of_unlike
from .checkpoint_io import CheckpointIO
from .package import pl
from .values import fit_versions

_log = logging.getLogger("cairn")
CALLBACK = "cairn.lightning.Callback"  # Its state's key. The state says what is known of the optimizers.


def check_what_loads() -> None:
    """Lets Lightning's strategies check, where they load through a CheckpointIO of Cairn; its own sharded ones have their
    own way."""
    kind = pl.strategies.Strategy
    if not hasattr(kind.load_model_state_dict, "checks_cairn"):
        kind.load_model_state_dict = _checking(kind.load_model_state_dict, _check_module)
        kind.load_optimizer_state_dict = _checking(kind.load_optimizer_state_dict, _check_optimizers)


def known_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What the Callback has kept; empty without it, and in an older checkpoint."""
    kept: dict[str, Any] = checkpoint.get("callbacks", {}).get(CALLBACK, {})
    return kept


def tell_schedulers(path: str, checkpoint: Mapping[str, Any], trainer: Any) -> None:
    """Warns of schedulers that Lightning will give the state of others, or none."""
    own = [one.scheduler for one in trainer.lr_scheduler_configs]
    states = checkpoint.get("lr_schedulers", ())
    known = known_of(checkpoint)
    warn_of_unlike(path, own, known.get("schedulers") or [[] for _ in states], states)
    for i, (now, then) in enumerate(zip(scheduled(own, trainer.optimizers), known.get("scheduled", ()), strict=False)):
        if now != then:
            _log.warning("%s: scheduler %d is of optimizer %s, in the checkpoint of optimizer %s", path, i, now, then)


def scheduled(schedulers: list[Any], optimizers: list[Any]) -> list[int | None]:
    """The number of each scheduler's optimizer."""
    numbers = {id(inner_optimizer(one)): i for i, one in enumerate(optimizers)}
    return [numbers.get(id(inner_optimizer(getattr(one, "optimizer", None)))) for one in schedulers]


def names_beside(trainer: Any) -> list[str]:
    """Under which a checkpoint has the state of what belongs to the run, if that has any."""
    return [type(one).__qualname__ for one in (trainer.datamodule, trainer.precision_plugin) if one is not None]


def check_classes(path: str, optimizers: list[Any], checkpoint: Mapping[str, Any], module: Any) -> None:
    """InvalidArgument if a sharded state is that of another optimizer class, or if a scheduler's would go to other groups
    of its optimizer."""
    schedulers = [one.scheduler for one in module.trainer.lr_scheduler_configs]
    for own, saved in zip(optimizers, known_of(checkpoint).get("optimizers", ()), strict=False):
        kind = type(inner_optimizer(own))
        if saved["kind"] not in names_of(kind):
            raise InvalidArgument(
                f"{path}: the optimizer is {kind.__name__}, the checkpoint has the state of {saved['kind']}"
            )
        regrouped = Known.of(own, module).regrouped(Known(**saved))
        for i, (scheduler, state) in enumerate(zip(schedulers, checkpoint.get("lr_schedulers", ()), strict=False)):
            if inner_optimizer(scheduler.optimizer) is inner_optimizer(own):
                refuse_order(path, f"lr_schedulers/{i}", state, regrouped)


def _checking(load: Any, check: Any) -> Any:
    @functools.wraps(load)
    def checked(self: Any, checkpoint: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        io = self.checkpoint_io
        io = getattr(io, "checkpoint_io", io)  # What a wrapper wraps.
        with contextlib.ExitStack() as during:
            if isinstance(io, CheckpointIO):
                checkpoint = check(self, io, checkpoint, during)
            return load(self, checkpoint, *args, **kwargs)

    checked.checks_cairn = True  # type: ignore[attr-defined]
    return checked


def _check_module(strategy: Any, io: CheckpointIO, checkpoint: Any, _: contextlib.ExitStack) -> Any:
    becomes, state = _dtype_of(strategy.precision_plugin), checkpoint["state_dict"]
    check_into(strategy.lightning_module.state_dict(), state, io.read_from, io.cast, becomes).log(io.read_from)
    fit_versions(strategy.lightning_module, state)
    return checkpoint


def _dtype_of(precision: Any) -> torch.dtype | None:
    """What the precision makes of a module after the load; None if it stays as it is."""
    plugins = pl.plugins
    if not isinstance(precision, (plugins.HalfPrecision, plugins.TransformerEnginePrecision)):
        return None
    probe = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(0))])
    converted: torch.dtype = next(precision.convert_module(probe).parameters()).dtype
    return converted


def _check_optimizers(strategy: Any, io: CheckpointIO, checkpoint: Any, during: contextlib.ExitStack) -> Any:
    """All of them before the first one changes. Lightning would leave out what one side has more."""
    optimizers, states = strategy.optimizers, checkpoint["optimizer_states"]
    if len(states) != len(optimizers):
        raise InvalidArgument(
            f"{io.read_from}: the module has {counted(len(optimizers), 'optimizer')}, the checkpoint has the states of "
            f"{len(states)}"
        )
    tell_schedulers(io.read_from, checkpoint, strategy.lightning_module.trainer)
    known = known_of(checkpoint).get("optimizers", ())
    if len(known) != len(states):
        known = [{}] * len(states)  # Without the Callback, or of an older version.
    way_out = "begin with new optimizers: fit, without ckpt_path, the model of cairn.lightning.load_from_checkpoint"
    saved_ones = [Known(**saved) for saved in known]
    fits = [
        fit_state(
            optimizer,
            state,
            f"optimizer_states/{i}",
            Known.of(optimizer, strategy.lightning_module),
            saved,
            io.cast is not None,
            io.read_from,
            way_out,
            saved_ones,
        )
        for i, (optimizer, state, saved) in enumerate(zip(optimizers, states, saved_ones, strict=True))
    ]
    schedulers = [one.scheduler for one in strategy.lightning_module.trainer.lr_scheduler_configs]
    for i, (scheduler, state) in enumerate(zip(schedulers, checkpoint.get("lr_schedulers", ()), strict=False)):
        for fit in fits:
            if fit is not None and is_of(scheduler, fit):
                refuse_order(io.read_from, f"lr_schedulers/{i}", state, fit.regrouped)
    warn_of_unsaved(optimizers, [strategy.lightning_module])
    loaded = []
    for fit, state in zip(fits, states, strict=True):
        if fit is not None:
            fit.log()
            state = during.enter_context(fit.loading(state))
        loaded.append(state)
    return {**checkpoint, "optimizer_states": loaded}
