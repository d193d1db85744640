"""The dicts and lists of a state dict, which DCP takes apart: what they have beside their items, and what cannot be loaded.

A module's state dict has `_metadata`: the version of each of its modules' state, by which load_state_dict migrates older
ones. DCP drops it, so it is kept beside the items (see Items) and given to the dict in the same place at the load.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch.distributed.tensor import DTensor

from .._errors import InvalidArgument
from .._tree.paths import MAX_DEPTH, kind_name, listed, refuse_classless, shown, unwrapped
from .._tree.taken import elements_of, items_of

_log = logging.getLogger("cairn")
_LISTED = 5
# By the place of the dict: what modules have other than USUAL, by name.
ModuleMetadata: TypeAlias = dict[str, dict[str, Any]]
_LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, DTensor, int, float, bool, str, bytes, type(None)})
USUAL = {"version": 1}  # What nearly all modules have.
_DATA_PARALLEL = "module"  # The first name, of DistributedDataParallel's.


def containers(value: Any, place: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each dict and list, with its place as DCP names it."""
    if depth > MAX_DEPTH:
        raise InvalidArgument(f"{place}: {kind_name(value)} that holds itself, or is deeper than {MAX_DEPTH} levels")
    yield place, value
    keys, children = items_of(value, place) if isinstance(value, Mapping) else (None, elements_of(value, place))
    if _LEAVES.issuperset(map(type, children)):  # There may be millions of them.
        return
    for key, child in zip(range(len(children)) if keys is None else keys, children, strict=True):
        if type(child) not in _LEAVES:
            text = key if type(key) is str else shown(key)
            at = f"{place}.{text}" if place else text
            refuse_classless(child, at)
            if isinstance(child, (Mapping, list)):
                yield from containers(child, at, depth + 1)


def metadata_of(*states: Any) -> ModuleMetadata:
    """What is kept of `_metadata`. InvalidArgument, with the place, for what would not come back."""
    found: ModuleMetadata = {}
    for place, held in chain(*map(containers, states)):
        refuse_fixed(place, held)
        if isinstance(held, list) and type(held) is not list:
            raise InvalidArgument(f"{_named(place, held)} would come back as another type: convert it with list(...)")
        attributes = {**getattr(held, "__dict__", {})} if isinstance(held, dict) else {}
        metadata = attributes.pop("_metadata", None)
        # Some dicts have their items as attributes, too.
        if lost := [key for key, one in attributes.items() if dict.get(held, key, found) is not one]:
            raise InvalidArgument(
                f"{_named(place, held)} has attributes that would be lost: {', '.join(lost)}; keep them beside it"
            )
        if metadata is not None:
            found[place] = {name: of for name, of in metadata.items() if of != USUAL}
            if not _is_json(found[place]):
                raise InvalidArgument(f"{_named(place, held)} has a _metadata that JSON cannot keep: {metadata!r:.200}")
    return found


def refuse_fixed(place: str, held: Any) -> None:
    """InvalidArgument for what a load cannot put values into."""
    if not hasattr(type(held), "__setitem__"):
        raise InvalidArgument(f"{_named(place, held)} cannot be loaded into: convert it with dict(...)")


def give_metadata(saved: ModuleMetadata, where: str, *states: Any) -> None:
    """To the dicts of a state that have `_metadata`, where the checkpoint's had it: what it says of the same modules. Logs
    of which modules it does not know the version, though theirs is not the first: DCP's own planners do not keep it."""
    unknown: dict[str, None] = {}
    for place, held in chain(*map(containers, states)):
        own = getattr(held, "__dict__", {}).get("_metadata")
        if not isinstance(own, dict):
            continue
        if place in saved:
            own.update(_versions(saved[place], own))
        else:
            unknown |= {f"{place}.{name}".strip("."): None for name, of in own.items() if of != USUAL}
    if unknown:
        _log.warning(
            "%s: does not say of which version the state of these modules is, so load_state_dict takes it for the present "
            "one: %s. Save with cairn.dcp.save, or with planner=cairn.dcp.SavePlanner()",
            where,
            listed([*unknown], _LISTED),
        )


def made_with_metadata(saved: ModuleMetadata, state: Any, place: str = "") -> Any:
    """A state that was made of plain dicts, where the checkpoint's had `_metadata` with dicts that have it."""
    if not isinstance(state, (dict, list)) or not any(one.startswith(place) for one in saved):
        return state
    for key, held in state.items() if isinstance(state, dict) else enumerate(state):
        text = key if isinstance(key, str) else shown(key)
        state[key] = made_with_metadata(saved, held, f"{place}.{text}" if place else text)
    if place not in saved or not isinstance(state, dict):
        return state
    state = OrderedDict(state)
    # A module without parameters has no state to migrate.
    names = [str(key).split(".") for key in state]
    modules = {".".join(parts[:i]): None for parts in names for i in range(len(parts))}
    vars(state)["_metadata"] = OrderedDict(_versions(saved[place], modules))
    return state


def _versions(saved: Mapping[str, dict[str, Any]], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the checkpoint says of these modules, which may be wrapped otherwise than those that were saved:
    get_model_state_dict takes wrappers out of the names of tensors, not out of `_metadata`."""
    split = {name: unwrapped(name).split(".") for name in (*saved, *names)}
    in_one = any(split[name][0] == _DATA_PARALLEL for name in saved) != any(
        split[name][0] == _DATA_PARALLEL for name in names
    )
    plain = {name: ".".join(parts[in_one and parts[0] == _DATA_PARALLEL :]) for name, parts in split.items()}
    known = {plain[name]: of for name, of in saved.items()}
    return {name: {**known.get(plain[name], USUAL)} for name in names}


def _named(place: str, held: Any) -> str:
    return f"{repr(place) if place else 'the state dict'}: {kind_name(held)}"


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
