"""An optimizer's state dict that a framework has read and gives to load_state_dict itself: compared before that."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from .._errors import InvalidArgument
from .._protect import inner_optimizer
from .casts import Casts
from .optimizer_states import Regrouped, has_torchs_load, numbered, of_dict
from .optimizers import Fit, optimizer_of
from .optimizers import fit as compare
from .paths import listed, uncompiled
from .tensors import dtype_name

_log = logging.getLogger("cairn")
_told: weakref.WeakSet[Any] = weakref.WeakSet()  # The optimizers that warn_of_unsaved has looked at.


@dataclass
class Known:
    """What a plug knows of an optimizer, and keeps beside its state. As plain values in `vars`."""

    kind: str | None = None  # Its class.
    names: list[list[str | None]] | None = None  # Of each group's parameters, in their module.

    @staticmethod
    def of(holder: Any, module: Any) -> Known:
        optimizer = inner_optimizer(holder)
        names = {id(one): uncompiled(name) for name, one in module.named_parameters()}
        groups = [[names.get(id(one)) for one in group["params"]] for group in optimizer.param_groups]
        return Known(type(optimizer).__name__, groups)

    def flat(self) -> list[str]:
        """Each parameter's name; nothing if none is known."""
        names = [*chain(*(self.names or ()))]
        return numbered(names) if any(names) else []

    def regrouped(self, saved: Known) -> Regrouped | None:
        """How the groups of one that goes by name differ from the saved one's; None if that is not known."""
        own, theirs = self.grouped(), saved.grouped()
        return Regrouped.by_name(own, theirs) if own and theirs else None

    def grouped(self) -> list[list[str]]:
        """The same by group."""
        names = iter(self.flat())
        groups = [[*islice(names, len(group))] for group in self.names or ()]
        return groups if any(groups) else []


def warn_of_unsaved(optimizers: Iterable[Any], modules: Iterable[Any]) -> None:
    """Logs, once for each optimizer, that none of the modules whose state is saved has some of its parameters."""
    known: set[int] | None = None
    for optimizer in map(inner_optimizer, optimizers):
        if optimizer in _told:
            continue
        _told.add(optimizer)
        known = {id(one) for module in modules for one in module.parameters()} if known is None else known
        lost = [one for group in optimizer.param_groups for one in group["params"] if id(one) not in known]
        if lost:
            _log.warning(
                "%s: no module has %s of its parameters (%s): their values are in no checkpoint, unless your code saves them",
                type(optimizer).__name__,
                len(lost),
                listed([str([*one.shape]) for one in lost], 5),
            )


def fit_state(
    holder: Any,
    state: Any,
    path: str,
    own: Known,
    saved: Known,
    allow_loss: bool,
    where: str,
    way_out: str,
    beside: Iterable[Known] = (),
) -> Fit | None:
    """Compares a state dict with an optimizer that torch's load_state_dict would put it into, or what wraps one. Its
    tensors' contents do not count: they may be Stored. State follows the names of parameters, unless they are others now, as
    after a rename, which is a remark: then it goes by number. `beside`: the checkpoint's optimizers. None if nobody knows.

    InvalidArgument if it does not fit: `path` is what it calls the state in the checkpoint `where`, `way_out` what helps.
    """
    optimizer = optimizer_of(holder)
    if optimizer is None or not has_torchs_load(optimizer):
        return None
    found = of_dict(state)
    names, theirs = own.flat(), saved.flat()
    known = bool(names) and bool(theirs)
    elsewhere = {*chain(*(one.flat() for one in beside))} - {*theirs}
    others = [at for at, (now, then) in enumerate(zip(names, theirs, strict=False)) if now != then]
    # Those at other positions, and in the checkpoint's other optimizers, are no new names.
    new = {names[at] for at in others}.isdisjoint({*theirs} | elsewhere)
    renamed = known and new and bool(others) and len(names) == len(theirs)
    both = (names, theirs) if known and not renamed else None
    fit = compare(optimizer, optimizer.state_dict(), found, path, False, saved.kind, allow_loss, lambda _: both)
    if fit is None:
        return None
    if renamed:
        now, then = names[others[0]], theirs[others[0]]
        fit.remarks.append(f"{path}: parameters have other names now, as {now} for {then}: their state goes by number")
    casts = Casts(allow_loss)
    for number, entries in found.entries.items() if found is not None else ():
        for key, value in entries.items():
            if hasattr(value, "shape"):
                fit.differ += fit.misfits(name := f"{path}/state/{number}/{key}", value.shape)
                if fit.casts(name):
                    stored = value.dtype if isinstance(value.dtype, str) else dtype_name(name, value)
                    casts.may(name, stored, dtype_name(name, fit.parameter_of(name)))
    casts.raise_refused(where)
    if fit.differ:
        raise InvalidArgument(
            f"{where}: the optimizer does not match the checkpoint: {listed(fit.differ)}; or {way_out}"
        )
    return fit


def load_checked(holder: Any, state: Any, fit: Fit | None) -> None:
    """load_state_dict, after `fit_state`."""
    if fit is None:
        holder.load_state_dict(state)
    else:
        fit.log()
        fit.load(holder, state)
