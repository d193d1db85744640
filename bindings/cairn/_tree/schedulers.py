"""A torch scheduler's class, which is kept beside its state: each class takes another's state without a word, and goes on
with a mixture of both."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import InvalidArgument, counted
from .._protect import inner_optimizer
from .optimizer_states import Regrouped, names_of
from .optimizers import Fit
from .paths import listed
from .values import is_plain

_log = logging.getLogger("cairn")
_OF_NO_GROUPS = {"_milestones", "_schedule_phases"}  # Of torch's schedulers' lists, those that are not of groups.
_FORMER = {"verbose"}  # An option until torch 2.7.
_ORDER = "make the optimizer's groups as they were at the save, or leave the scheduler out"


def _flat(scheduler: Any) -> list[Any]:
    """The torch scheduler, and those within it; nothing if it is none."""
    base = getattr(sys.modules.get("torch.optim.lr_scheduler"), "LRScheduler", None)
    if base is None or not isinstance(scheduler, base):
        return []
    inner = getattr(scheduler, "_schedulers", ())  # Of SequentialLR and ChainedScheduler.
    return [scheduler, *(one for part in inner for one in _flat(part))]


def classes_of(scheduler: Any) -> list[str]:
    """The names of its class and of those within it; empty if it is no torch scheduler."""
    return [type(one).__name__ for one in _flat(scheduler)]


def unlike_class(scheduler: Any, saved: list[str]) -> str | None:
    """How a scheduler's class differs from the saved one; None if it does not."""
    own = _flat(scheduler)
    if len(own) == len(saved) and all(kind in names_of(type(one)) for one, kind in zip(own, saved, strict=True)):
        return None
    return f"the tree has {_told(classes_of(scheduler))}, the checkpoint has the state of {_told(saved)}"


def unlike_options(state: Any, saved: Any) -> str | None:
    """The same by the options in its state, and in those of the schedulers within it, for one that was saved as its
    state_dict(), which names no class. `saved`: the text of that."""
    if not isinstance(state, Mapping) or not isinstance(saved, Mapping):
        return None
    own, theirs = ({key for key in of if not key.startswith("_")} - _FORMER for of in (state, saved))
    if own != theirs:
        return (
            f"another scheduler class: the tree's has {listed(sorted(own), 8)}, the checkpoint's "
            f"{listed(sorted(theirs), 8) or 'none of a scheduler'}"
        )
    inner, inner_saved = (_listed_in(of, "_schedulers") for of in (state, saved))
    if inner is None or inner_saved is None:
        return None
    if len(inner) != len(inner_saved):
        return f"the tree's is of {counted(len(inner), 'scheduler')}, the checkpoint's of {len(inner_saved)}"
    return next(filter(None, map(unlike_options, inner, inner_saved)), None)


def _listed_in(state: Any, key: str) -> list[Any] | None:
    """A list in a scheduler's state, or in its text."""
    found = state.get(key) if isinstance(state, Mapping) else None
    return found[found[:1] == ["list"] :] if isinstance(found, list) else None


def unlike_groups(state: Any, saved: Any) -> str | None:
    """The same for the number of an optimizer's groups, of which each has a rate. `saved`: the text of the state."""
    own = state.get("base_lrs") if isinstance(state, Mapping) else None
    match saved:
        case {"base_lrs": ["list", *theirs]} if isinstance(own, list) and len(own) != len(theirs):
            return f"the tree's is of {counted(len(own), 'group')}, the checkpoint's of {len(theirs)}"
    return None


def unlike_functions(state: Any, saved: Any) -> str | None:
    """The same for the functions of a LambdaLR or MultiplicativeLR. Those that are objects have attributes in its state, which
    torch puts into whatever is in their place. `saved`: the state, or its text."""
    inner = (_listed_in(of, "_schedulers") or () for of in (state, saved))
    if how := next(filter(None, map(unlike_functions, *inner)), None):
        return how
    own, theirs = (_listed_in(of, "lr_lambdas") or () for of in (state, saved))
    for i, (mine, other) in enumerate(zip(own, theirs, strict=False)):
        names, saved_names = (sorted(of) if isinstance(of, Mapping) else [] for of in (mine, other))
        if names != saved_names:
            here, there = (listed(of, 8) or "none" for of in (names, saved_names))
            return f"another function: the attributes of the tree's lr_lambdas.{i} are {here}, the checkpoint's {there}"
    return None


def unlike_state(state: Mapping[str, Any], saved: Any) -> str | None:
    """How a torch scheduler's state_dict() in the tree differs from the saved one, which replaces it; None if it does not, or
    is none."""
    if "_last_lr" not in state or not isinstance(saved, Mapping) or "_last_lr" not in saved:
        return None
    return unlike_options(state, saved) or unlike_groups(state, saved) or unlike_functions(state, saved)


def is_of(scheduler: Any, fit: Fit) -> bool:
    """Whether it sets the rates of the optimizer that was compared."""
    held = getattr(scheduler, "__dict__", {})
    inner = getattr(held.get("scheduler", scheduler), "__dict__", {})  # What accelerate's wraps.
    return fit.is_of(inner_optimizer(inner.get("optimizer")))


def unlike_order(saved: Any, regrouped: Regrouped | None) -> str | None:
    """What of a scheduler's state would go to other groups of its optimizer: that one's state follows the names of
    parameters, and a scheduler knows none."""
    if regrouped is None or not isinstance(saved, Mapping):
        return None
    own, theirs = regrouped.own, regrouped.saved
    for key, value in saved.items():
        if key == "_schedulers" and isinstance(value, (list, tuple)):
            if how := next(filter(None, (unlike_order(one, regrouped) for one in value)), None):
                return how
        elif isinstance(value, (list, tuple)) and len(value) == theirs and key not in _OF_NO_GROUPS:
            if own != theirs:
                return f"its {key} are of {counted(theirs, 'group')}, the optimizer has {own}: {_ORDER}"
            if _is_unlike(value):
                return f"its {key} are of the optimizer's groups in the order of the checkpoint, another one here: {_ORDER}"
    return None


def _is_unlike(values: Sequence[Any]) -> bool:
    """Whether they may differ: a tensor may not have been read yet."""
    return not is_plain(values) or any(one != values[0] for one in values)


def refuse_order(where: str, name: str, saved: Any, regrouped: Regrouped | None) -> None:
    """For a framework that loads a scheduler's state itself: InvalidArgument, by `unlike_order`."""
    if how := unlike_order(saved, regrouped):
        raise InvalidArgument(f"{where}: {name}: {how}")


def warn_of_unlike(where: str, own: Sequence[Any], saved: Sequence[list[str]], states: Sequence[Any]) -> None:
    """For a framework that gives each scheduler the state of its place, whatever that is. `saved` are their classes, empty
    where nobody has kept them, and `states` what it gives."""
    if len(own) != len(saved):
        of = counted(len(own), "scheduler")
        _log.warning("%s: the module has %s, the checkpoint has the state of %d", where, of, len(saved))
    for scheduler, classes, state in zip(own, saved, states, strict=False):
        if classes and (how := unlike_class(scheduler, classes)):
            _log.warning("%s: another scheduler class: %s", where, how)
        elif _flat(scheduler) and not classes and (how := unlike_options(scheduler.state_dict(), state)):
            _log.warning("%s: %s", where, how)
        elif _flat(scheduler) and (how := unlike_functions(scheduler.state_dict(), state)):
            _log.warning("%s: a scheduler has %s", where, how)


def _told(kinds: list[str]) -> str:
    outer, *within = kinds or ["another object"]
    return f"{outer} of {', '.join(within)}" if within else outer
