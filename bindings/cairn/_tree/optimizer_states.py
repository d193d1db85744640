"""What torch's optimizers keep of each parameter, and state dicts of their form. See optimizers."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any

from .._errors import counted
from .paths import fields_of, uncompiled
from .values import holds

_log = logging.getLogger("cairn")
_ADAM = {"step": None, "exp_avg": None, "exp_avg_sq": None}
# torch's classes: an option that each has had from the beginning, and no class with other state has; and what it makes
# for each parameter, with the option without which it does not.
CLASSES: dict[str, tuple[str, dict[str, str | None]]] = {
    "Adadelta": ("rho", {"step": None, "square_avg": None, "acc_delta": None}),
    "Adafactor": ("beta2_decay", {"step": None}),
    "Adagrad": ("lr_decay", {"step": None, "sum": None}),
    "Adam": ("amsgrad", {**_ADAM, "max_exp_avg_sq": "amsgrad"}),
    "AdamW": ("amsgrad", {**_ADAM, "max_exp_avg_sq": "amsgrad"}),
    "Adamax": ("betas", {"step": None, "exp_avg": None, "exp_inf": None}),
    "ASGD": ("lambd", {"step": None, "eta": None, "mu": None, "ax": None}),
    "LBFGS": ("history_size", {}),
    "Muon": ("ns_steps", {"momentum_buffer": None}),
    "NAdam": ("momentum_decay", {**_ADAM, "mu_product": None}),
    "RAdam": ("betas", {**_ADAM}),
    "RMSprop": ("alpha", {"step": None, "square_avg": None, "momentum_buffer": "momentum", "grad_avg": "centered"}),
    "Rprop": ("etas", {"step": None, "prev": None, "step_size": None}),
    "SGD": ("dampening", {"momentum_buffer": "momentum"}),
    "SparseAdam": ("betas", {**_ADAM}),
}
FLAT = {"LBFGS"}  # Those of which the state is one vector of all parameters.
MARKS = {mark for mark, _ in CLASSES.values()}
# What makes another class of one that has the same state, and what decides which state there is.
DECIDING = {"amsgrad", "centered", "decoupled_weight_decay"}
WITHOUT_DIMENSIONS = {"step", "eta", "mu", "mu_product"}


def has_torchs_load(optimizer: Any) -> bool:
    return type(optimizer).load_state_dict is sys.modules["torch"].optim.Optimizer.load_state_dict


def names_of(kind: type) -> set[str]:
    """Of the class and its bases, up to torch's: its AdamW is an Adam too."""
    names: set[str] = set()
    for base in kind.__mro__:
        names.add(base.__name__)
        if base.__module__.startswith("torch."):
            break
    return names


def numbered(names: Iterable[str | None]) -> list[str]:
    """The names of an optimizer's parameters, with one for each that has none because it is in no module."""
    numbers = count(1)
    return [name or f"number {next(numbers)} of no module" for name in names]


def unlike_option(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """What shows that two groups, of an optimizer and of a saved one, are of different classes; None if nothing does."""
    for option in sorted(DECIDING & mine.keys() & theirs.keys()):
        if bool(mine[option]) != bool(theirs[option]):
            return option
    return min(MARKS & (mine.keys() ^ theirs.keys()), default=None)


@dataclass
class State:
    """A state dict of torch's form, as far as it is compared."""

    groups: list[Mapping[str, Any]]
    numbers: list[list[Any]]  # Of each group's parameters.
    names: list[list[str]] | None  # Likewise.
    entries: dict[Any, Mapping[Any, Any]]  # Of each parameter.

    @staticmethod
    def of(state: Any, mapping: Callable[[Any], Any], sequence: Callable[[Any], Any]) -> State | None:
        """None if it has another form. `mapping` and `sequence` return a dict's and a list's contents, or raise TypeError."""
        try:
            top = mapping(state)
            groups = [mapping(group) for group in sequence(top["param_groups"])]
            numbers = [[*sequence(group["params"])] for group in groups]
            names = None
            if groups and all(group.get("param_names") is not None for group in groups):
                names = [[*map(uncompiled, sequence(group["param_names"]))] for group in groups]
            known = {*chain(*numbers)}
            held = {
                number: entries if type(entries) is dict else mapping(entries)
                for number, entries in mapping(top["state"]).items()
                if number in known
            }
        except (KeyError, TypeError, ValueError):
            return None
        if names is not None and [*map(len, names)] != [*map(len, numbers)]:
            names = None
        return State(groups, numbers, names, held)

    def named(self, names: list[str]) -> State:
        """The same with these names, in the parameters' order; without any if they are not as many."""
        rest = iter(names)
        groups = [[*islice(rest, len(numbers))] for numbers in self.numbers]
        fits = sum(map(len, self.numbers)) == len(names)
        return replace(self, names=groups if fits else None)

    def __str__(self) -> str:
        sizes = [*map(len, self.numbers)]
        of = f" ({', '.join(map(str, sizes))})" if len(sizes) > 1 else ""
        return f"{counted(sum(sizes), 'parameter')} in {counted(len(sizes), 'group')}{of}"


@dataclass(frozen=True)
class Regrouped:
    """An optimizer's groups that are others than the saved ones, or come in another order."""

    own: int
    saved: int

    @staticmethod
    def of(sources: Sequence[int | None], saved: int) -> Regrouped | None:
        """None if they are the same. `sources`: which saved group each one is."""
        return None if [*sources] == [*range(saved)] else Regrouped(len(sources), saved)

    @staticmethod
    def by_name(own: Sequence[Collection[Any]], saved: Sequence[Collection[Any]]) -> Regrouped | None:
        """Of the names of each group's parameters."""
        known = [{*names} for names in saved]
        sources: list[int | None] = []
        for i, names in enumerate(own):
            found = {j for j, theirs in enumerate(known) if theirs & {*names}} or {i}
            sources.append(found.pop() if len(found) == 1 else None)
        return Regrouped.of(sources, len(saved))


def of_dict(state: Any) -> State | None:
    def expect(kind: Any) -> Callable[[Any], Any]:
        def checked(value: Any) -> Any:
            if not isinstance(value, kind):
                raise TypeError
            return value

        return checked

    return State.of(state, expect(Mapping), expect((list, tuple)))


def of_text(node: Any) -> State | None:
    def mapping(node: Any) -> dict[Any, Any]:
        match node:
            case dict():
                return node
            case ["dict", *rest] | ["odict", _, *rest]:
                return dict(zip(rest[::2], rest[1::2], strict=True))
        raise TypeError

    def sequence(node: Any) -> list[Any]:
        match node:
            case ["list" | "tuple", *rest]:
                return rest
        raise TypeError

    return State.of(node, mapping, sequence)


class _Whole:
    """Hides a value from torch's load_state_dict, which takes all it can iterate over for a list of its class: text becomes
    a generator's name, and an array or a namedtuple raises TypeError."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _hidden(value: Any) -> Any:
    if type(value) is dict:
        return {key: _hidden(child) for key, child in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_hidden, value))
    is_torchs = not isinstance(value, Iterable) or (
        holds(value, sys.modules["torch"].Tensor) and not fields_of(type(value))
    )
    return value if is_torchs else _Whole(value)


@contextlib.contextmanager
def dtypes_kept(optimizer: Any, allow_loss: bool) -> Iterator[None]:
    """Puts back the saved dtypes of state that torch's load_state_dict has cast to its parameter's dtype, and what is no
    tensor as it was: in hooks between the optimizer's own, of which those before may change the state, those after expect
    it loaded.

    Most of torch's classes cannot step with state of another dtype. So with these a cast stays if it keeps every value, or
    if the caller allows a loss.
    """
    torch = sys.modules["torch"]
    optim = vars(torch.optim)
    torchs = any(base.__name__ in CLASSES and optim.get(base.__name__) is base for base in type(optimizer).__mro__)
    last: Any = None
    cast: list[bool] = []  # Of each tensor that stays cast, whether nothing was lost.

    def put_back(state: dict[Any, Any], saved: dict[Any, Any]) -> None:
        for key, value in saved.items():
            if (now := state.get(key, value)) is not value and key != "step":  # That may need another dtype.
                state[key] = as_saved(now, value)

    def as_saved(now: Any, saved: Any) -> Any:
        if isinstance(now, _Whole):
            return now.value
        if type(now) is dict and isinstance(saved, dict):
            put_back(now, saved)
        elif type(now) is type(saved) and isinstance(now, (list, tuple)) and len(now) == len(saved):
            return type(now)([as_saved(*both) for both in zip(now, saved, strict=True)])
        elif (
            hasattr(now, "dtype") and hasattr(saved, "dtype") and now.dtype != saved.dtype and now.shape == saved.shape
        ):
            wider = saved.dtype.is_floating_point and torch.promote_types(now.dtype, saved.dtype) == now.dtype
            if not (torchs and (wider or allow_loss)):
                return saved.to(now.device)
            cast.append(wider)
        return now

    def before(_optimizer: Any, given: Any) -> Any:
        nonlocal last
        last = given
        known = {*chain(*(group["params"] for group in given["param_groups"]))}
        states = {number: _hidden(of) if number in known else of for number, of in given["state"].items()}
        return {**given, "state": states}

    def after(_optimizer: Any) -> None:
        nonlocal last
        numbers = chain(*(group["params"] for group in last["param_groups"]))
        parameters = chain(*(group["params"] for group in optimizer.param_groups))
        states, loaded = last["state"], optimizer.state
        for number, parameter in zip(numbers, parameters, strict=True):
            if isinstance(saved := states.get(number), dict) and isinstance(now := loaded.get(parameter), dict):
                put_back(now, saved)
        last = None
        if cast:
            _log.log(
                logging.INFO if all(cast) else logging.WARNING,
                "%s: converted %s of its state to the parameters' dtype, %s with a loss",
                type(optimizer).__name__,
                counted(len(cast), "tensor"),
                cast.count(False) or "none",
            )

    with (  # These handles remove themselves at the end.
        optimizer.register_load_state_dict_pre_hook(before),
        optimizer.register_load_state_dict_post_hook(after, prepend=True),
    ):
        yield
