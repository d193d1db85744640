"""What is known of the optimizers in a state dict that has these themselves, and DCP's format does not have: their classes,
and the names of their parameters."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .._errors import InvalidArgument
from .._protect import inner_optimizer
from .._tree.optimizer_states import dtypes_kept, has_torchs_load, names_of

Optimizers = dict[str, list[Any]]  # By key of the state dict.
Orders = dict[str, list[list[str | None]]]  # Likewise, names of the parameters: a list for each order that ranks have.
_PLAIN = {torch.Tensor, torch.nn.Parameter}
GO_BY_NAME = (
    "this state goes by number: make the optimizer as it was, or save and load what get_optimizer_state_dict of "
    "torch.distributed.checkpoint.state_dict gives, which goes by name"
)


def optimizers_in(state: Mapping[str, Any]) -> Optimizers:
    """Each optimizer, or those of what holds several, as torchtitan's does."""
    found = {str(key): _optimizers_in(value) for key, value in state.items()}
    return {key: optimizers for key, optimizers in found.items() if optimizers}


def _optimizers_in(value: Any) -> list[Any]:
    held = getattr(value, "__dict__", {}).get("optimizers")  # A property would run code.
    each = held if isinstance(held, (list, tuple)) else [value]
    return [inner_optimizer(one) for one in each if isinstance(one, torch.optim.Optimizer)]


@contextlib.contextmanager
def state_kept(state: Mapping[str, Any], allow_loss: bool) -> Iterator[None]:
    """Keeps torch's load_state_dict of the optimizers in a state dict from changing what they are given."""
    with contextlib.ExitStack() as stack:
        for optimizer in chain(*map(_optimizers_in, state.values())):
            if has_torchs_load(optimizer):
                stack.enter_context(dtypes_kept(optimizer, allow_loss))
        yield


def class_names(optimizers: Optimizers) -> dict[str, list[str]]:
    return {key: sorted({type(one).__name__ for one in each}) for key, each in optimizers.items()}


def orders_in(optimizers: Optimizers, flat: Mapping[str, Any]) -> Orders:
    """Of the optimizers of which the flat state dict has their own state, by number: the names in it of what lies in their
    parameters' memory, None where nothing does. Of several names the first by alphabet."""
    orders: Orders = {}
    names: dict[int, str] | None = None
    states = tuple(f"{key}." for key in optimizers)
    for key, each in optimizers.items():
        if not _goes_by_number(flat, key):
            continue
        parameters = [one for group in each[0].param_groups for one in group["params"]]
        order = _last.get(each[0], [])
        if not _is_still(order, parameters, flat):
            names = _names_by_address(flat, states) if names is None else names
            _last[each[0]] = order = [names.get(_address_of(one)) for one in parameters]
        if any(order):
            orders[key] = [order]
    return orders


# Of the last save, for the next one: to find them takes longer than the caller should wait.
_last: weakref.WeakKeyDictionary[Any, list[str | None]] = weakref.WeakKeyDictionary()


def _is_still(order: list[str | None], parameters: list[Any], flat: Mapping[str, Any]) -> bool:
    if len(order) != len(parameters) or None in order:
        return False
    held = [flat.get(name) for name in order]  # type: ignore[arg-type]
    if not {*map(type, held), *map(type, parameters)} <= _PLAIN:
        return [*map(_address_of, held)] == [*map(_address_of, parameters)]
    try:
        return [*map(torch.Tensor.data_ptr, held)] == [*map(torch.Tensor.data_ptr, parameters)]  # type: ignore[arg-type]
    except RuntimeError:  # Of another layout by now.
        return False


def _names_by_address(flat: Mapping[str, Any], states: tuple[str, ...]) -> dict[int, str]:
    names: dict[int, str] = {}
    for fqn, one in flat.items():
        if not fqn.startswith(states) and (at := _address_of(one)):
            names[at] = min(fqn, names.get(at, fqn))
    return names


def add_orders(known: Orders, more: Orders) -> None:
    """Those of another rank, which may have no part of some parameters, and so no names for these."""
    for key, orders in more.items():
        held = known.setdefault(key, [])
        for order in orders:
            if order in held:
                continue
            for i, other in enumerate(held):
                if len(order) == len(other) and _first_unlike(order, other) is None:
                    held[i] = [a or b for a, b in zip(order, other, strict=True)]
                    break
            else:
                held.append(order)


def check_orders(own: Orders, saved: Orders, names: Container[str], where: str) -> None:
    """InvalidArgument where the numbers of an optimizer's state mean other parameters than in the checkpoint, which has
    these `names`. It has the orders of all ranks, as in `unlike_classes`."""
    for key in own.keys() & saved.keys():
        for mine in own[key]:
            # Of what only this state has, as under another name, nothing is known.
            order = [name if name is not None and name in names else None for name in mine]
            unlike = [_first_unlike(order, theirs) for theirs in saved[key] if len(theirs) == len(order)]
            if unlike and None not in unlike:
                at, (given, found) = unlike[0]  # type: ignore[misc]
                raise InvalidArgument(
                    f'{where}: "{key}": parameter {at} is {given} in the state to load into, {found} in the checkpoint, and '
                    + GO_BY_NAME
                )


def _first_unlike(own: Sequence[str | None], saved: Sequence[str | None]) -> tuple[int, tuple[str, str]] | None:
    for at, (a, b) in enumerate(zip(own, saved, strict=True)):
        if a != b and a is not None and b is not None:
            return at, (a, b)
    return None


def _goes_by_number(flat: Mapping[str, Any], key: str) -> bool:
    first = flat.get(f"{key}.param_groups.0.params")
    return isinstance(first, list) and all(type(number) is int for number in first)


def _address_of(value: Any) -> int:
    """0: it has no elements here, or computes them, or is no tensor."""
    local = value._local_tensor if isinstance(value, DTensor) else value
    return local.data_ptr() if type(local) in _PLAIN and local.layout == torch.strided else 0


def unlike_classes(own: Optimizers, saved: Mapping[str, list[str]]) -> list[str]:
    """Where a class is not among the checkpoint's. It has those of all ranks: the stages of a pipeline may have some each,
    and be others by now."""
    unlike = []
    for key in own.keys() & saved.keys():
        if not all(names_of(type(one)) & {*saved[key]} for one in own[key]):
            mine = ", ".join(class_names(own)[key])
            unlike.append(f'"{key}" is {mine} in the state to load into, {", ".join(saved[key])} in the checkpoint')
    return unlike
