"""What a load of cairn.dcp reads into, checked before any of it is changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.tensor import DTensor

from .. import _core
from .._errors import Corrupt, InvalidArgument, counted
from .._memory import check as check_memory
from .._tree.casts import Casts
from .._tree.optimizer_states import DECIDING, Regrouped
from .._tree.paths import kind_name, listed, uncompiled
from .._tree.schedulers import refuse_order
from .._tree.tensors import dtype_name, memory_view
from .._tree.values import holds, is_plain
from .left_out import OTHER_CLASS
from .optimizers import GO_BY_NAME
from .stored import Chunk, Inner, StoredItems, part_of
from .tiles import Box, common, overlap, untiled

_SIMPLE = frozenset({int, float, bool, str, type(None)})  # Which hold neither tensors nor members of an Enum.


@dataclass
class Goal:
    """A tensor of the caller's, or a region of one, and what fills it."""

    fqn: str
    target: Any
    dtype: str  # The checkpoint's.
    name: str  # Of the tensor in the checkpoint that is read whole, where there is no `part`.
    part: _core.Part | None
    region: tuple[Any, ...]  # Two goals with one region are one in the checkpoint, too.

    @property
    def box(self) -> Box:
        """Of the whole."""
        shape = tuple(self.target.shape)
        return ((0,) * len(shape) if self.part is None else tuple(self.part[2][: len(shape)])), shape


def goal_of(
    fqn: str, target: Any, chunk: Chunk, begin: Sequence[int] | None = None, lengths: Sequence[int] | None = None
) -> Goal:
    """Of a chunk, or of a region of it. InvalidArgument if the target has another shape."""
    lengths = chunk.shape if lengths is None else tuple(lengths)
    begin = (0,) * len(lengths) if begin is None else tuple(begin)
    if tuple(target.shape) != lengths:
        raise InvalidArgument(f'"{fqn}": expected a target of {[*lengths]}, found {[*target.shape]}')
    region = (chunk.place, begin, lengths)
    return Goal(fqn, target, chunk.dtype, chunk.name, part_of(chunk, begin, lengths), region)


def refuse_copied_parts(fqn: str, whole: Any, shape: Sequence[int]) -> None:
    """InvalidArgument if a part of this shape of a caller's tensor may be a copy, which nobody would see filled: one that wraps
    another computes what its parts hold."""
    if (
        tuple(whole.shape) != tuple(shape)
        and type(whole) not in (torch.Tensor, torch.nn.Parameter)
        and not _has_memory(whole)
    ):
        raise InvalidArgument(
            f'"{fqn}": {kind_name(whole)} has no memory of its own, and would be filled in parts: load it with a plain tensor'
        )


def _has_memory(tensor: Any) -> bool:
    try:
        return bool(tensor.data_ptr()) or not tensor.numel()
    except RuntimeError:
        return False


class Targets:
    """The goals of a load, and how they differ from the checkpoint's tensors. Tensors within values (`inner`) are numbered
    after the goals.

    `casts` are to other dtypes. `unlike`: see `unlike_optimizers`. `tied`: pairs with one target; the second need not
    be read if the checkpoint has the same for both, which it surely has if `is_tied`.
    """

    def __init__(
        self,
        stored: StoredItems,
        goals: list[Goal],
        allow_loss: bool,
        where: str,
        unlike: dict[str, list[str]],
        inner: list[Inner],
    ) -> None:
        self.unlike = unlike
        self.inner = inner
        self._stored = stored
        self.goals = goals
        self.casts = Casts(allow_loss)
        self._where = where
        memory = _core.TreeTensors(None)
        saved = [(one.path, one.target, stored.tensors[one.name].of_kind(one.kind).dtype) for one in inner]
        for number, (fqn, target, dtype) in enumerate([*((one.fqn, one.target, one.dtype) for one in goals), *saved]):
            check_memory(fqn, target)
            if (given := dtype_name(fqn, target)) != dtype:
                self.casts.may(fqn, dtype, given)
            if (view := memory_view(fqn, target, where)) is not None:
                memory.add((str(number), *view[1:]), None, None)
        self.casts.raise_refused(where)
        pairs, overlap = memory.shared_memory(_core.TreeTensors(None))
        if overlap is not None:
            self.raise_shared((int(overlap[0]), int(overlap[1])))
        self.tied = [(int(first), int(second)) for first, second in pairs]

    def is_tied(self, pair: tuple[int, int]) -> bool:
        """Whether both are one region of the checkpoint, too."""
        return self._region(pair[0]) == self._region(pair[1])

    def raise_shared(self, pair: tuple[int, int]) -> None:
        goals = len(self.goals)
        first, second = (
            self.goals[number].fqn if number < goals else self.inner[number - goals].path for number in pair
        )
        raise InvalidArgument(
            f'{self._where}: "{first}" and "{second}" share memory in the state to load into, but the checkpoint has two '
            "tensors, of which one would overwrite the other: load one of them, or give each memory of its own"
        )

    def _region(self, number: int) -> tuple[Any, ...]:
        if number < len(self.goals):
            return self.goals[number].region
        _, target, name, _ = self.inner[number - len(self.goals)]
        return self._stored.places[name], (0,) * target.dim(), tuple(target.shape)


def check_covered(stored: StoredItems, goals: Sequence[Goal], flat: Mapping[str, Any], where: str) -> None:
    """Corrupt if the parts of the checkpoint leave a hole in what a rank wants, which would keep what is there, or give it
    one element twice. `flat` is what the rank reads into, by fqn."""
    made: set[Any] = set()  # Layouts that make the whole: most sharded tensors have one of a few.
    for fqn in flat or {goal.fqn: None for goal in goals}:
        chunks = stored.chunks.get(fqn, ())
        if not chunks or (len(chunks) == 1 and chunks[0].shape == chunks[0].size):
            continue
        layout = chunks[0].size, frozenset((chunk.offset, chunk.shape) for chunk in chunks)
        if layout in made:
            continue
        if (unlike := untiled(*layout)) is None:
            made.add(layout)
            continue
        held = sum(common(goal.box, part) for goal in goals if goal.fqn == fqn for part in layout[1])
        if overlap(sorted(layout[1])) or fqn not in flat or held < _wanted(flat[fqn]):
            raise Corrupt(f'{where}: "{fqn}" was saved with a hole, or parts that overlap: {unlike}')


def _wanted(target: Any) -> int:
    """How many elements of a tensor this rank has."""
    if not isinstance(target, torch.Tensor):
        return 0
    if isinstance(target, DTensor) and target.device_mesh.get_coordinate() is None:
        return 0
    return sum(math.prod(chunk.sizes) for chunk in _create_chunk_list(target))


def check_kinds(fqns: Iterable[str], flat: Mapping[str, Any], where: str) -> None:
    """InvalidArgument if one of these values of the checkpoint would take a tensor's place: the tensor would stay as it is."""
    tensors = [fqn for fqn in fqns if isinstance(flat.get(fqn), torch.Tensor)]
    if tensors:
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        raise InvalidArgument(
            f'{where}: "{tensors[0]}"{more}: the state to load into has a tensor, the checkpoint has a plain value: put '
            "None in its place to get the value"
        )


def inner_targets(stored: StoredItems, fqns: Iterable[str], flat: Mapping[str, Any], where: str) -> list[Inner]:
    """The tensors within the values that these replace. InvalidArgument if one would not be filled: it would stay as it is,
    and another one come into the state; or if a value's class cannot take the checkpoint's. `fqns` and `flat` as in
    `check_numbers`."""
    found: list[Inner] = []
    unlike: list[str] = []
    classes: list[str] = []
    for fqn in fqns:
        if fqn not in stored.values or type(like := flat.get(fqn)) in _SIMPLE:
            continue
        if not holds(like, torch.Tensor, Enum):
            continue
        if holds(like, torch.Tensor):
            targets, differ = stored.inner(fqn, like)
            found += targets
            unlike += differ
        else:
            classes += stored.unlike(fqn, like)
    if classes:
        raise InvalidArgument(f"{where}: {listed(classes)}")
    if unlike:
        raise InvalidArgument(
            f"{where}: tensors within tuples and other values differ from the checkpoint's: {listed(unlike)}: make them as "
            "they were at the save, or put None in the value's place to get it as it was"
        )
    return found


def unlike_optimizers(
    stored: StoredItems, fqns: Iterable[str], flat: Mapping[str, Any], classes: list[str]
) -> dict[str, list[str]]:
    """What shows that the checkpoint has the state of another optimizer, by what it shows. `fqns` and `flat` as in
    `check_numbers`, `classes` is what is known of these already."""
    classes, groups = [*classes], []
    names = [fqn for fqn in fqns if "param_groups." in fqn]
    for fqn in names:
        option = fqn.rpartition(".")[2]
        given, saved = flat.get(fqn), stored.values.get(fqn)
        if option in DECIDING and isinstance(given, bool) and isinstance(saved, bool) and given != saved:
            classes.append(f'"{fqn}" is {given} in the state to load into, {saved} in the checkpoint')
    by_name = [fqn for fqn in names if fqn.endswith(".params") and _is_text(flat.get(fqn))]
    for place in {fqn.rpartition("param_groups.")[0]: None for fqn in by_name}:
        here = [fqn for fqn in by_name if fqn.startswith(f"{place}param_groups.")]
        saved_groups = {frozenset(map(str, _list_of(stored, fqn) or ())) for fqn in here}
        # torch gives each group the options of the one that has its parameters: the order of groups does not matter.
        groups += [f'"{fqn}"' for fqn in here if frozenset(flat[fqn]) not in saved_groups]
    told = {OTHER_CLASS: classes, "parameters of an optimizer that the checkpoint has in other groups": groups}
    return {what: unlike for what, unlike in told.items() if unlike}


def check_numbers(stored: StoredItems, fqns: Iterable[str], flat: Mapping[str, Any], where: str) -> None:
    """InvalidArgument if an optimizer's state goes by number, as its own state_dict() has it, and a group's numbers mean
    other parameters than in the checkpoint. `fqns` are the values to load, `flat` is what they replace, by fqn."""
    for fqn in (one for one in fqns if one.endswith(".params") and "param_groups." in one):
        if not (isinstance(numbers := flat.get(fqn), list) and all(type(number) is int for number in numbers)):
            continue
        for name in (fqn.removesuffix("params") + "param_names", fqn):
            given, saved = flat.get(name), _list_of(stored, name)
            if not isinstance(given, list) or saved is None:
                continue
            if len(given) != len(saved):
                what = f"{counted(len(given), 'parameter')} in the state to load into, {len(saved)} in the checkpoint"
            elif unlike := [
                both for both in zip(given, saved, strict=True) if uncompiled(str(both[0])) != uncompiled(str(both[1]))
            ]:
                what = f"{unlike[0][0]} in the state to load into, {unlike[0][1]} in the checkpoint"
            else:
                continue
            raise InvalidArgument(f'{where}: "{name}": {what}, and {GO_BY_NAME}')


def check_schedulers(stored: StoredItems, fqns: Iterable[str], flat: Mapping[str, Any], where: str) -> None:
    """InvalidArgument if an optimizer's state goes by name to groups in another order, and a scheduler's would go to the
    groups in the checkpoint's, or if it is LBFGS, whose state is one vector of all parameters. `fqns` and `flat` as in
    `check_numbers`."""
    fqns = [*fqns]
    every = [fqn for fqn in flat if "param_groups." in fqn and fqn.endswith(".params") and _is_text(flat.get(fqn))]
    found = []
    for place in {fqn.rpartition("param_groups.")[0]: None for fqn in every}:
        own = [flat[fqn] for fqn in every if fqn.rpartition("param_groups.")[0] == place]
        saved = [*_groups(stored, place)]
        if own != saved and f"{place}param_groups.0.history_size" in fqns:
            raise InvalidArgument(
                f'{where}: "{place}param_groups": the state of LBFGS is one vector of all parameters, in the checkpoint\'s '
                "order of these, and the state to load into has another order: make the optimizer as it was at the save, "
                "or leave it out"
            )
        if (regrouped := Regrouped.by_name(own, saved)) is not None:
            found.append(regrouped)
    for place in [fqn.removesuffix("last_epoch") for fqn in fqns if f".{fqn}".endswith(".last_epoch")]:
        keys = [key for key in fqns if key.startswith(place) and "." not in key[len(place) :] and key in stored.values]
        state = {key[len(place) :]: stored.value(key, {}) for key in keys if not stored.tensors_of(key)}
        for fqn in stored.chunks if found else ():  # Of a list that is taken apart, as tensors' are.
            name, _, number = fqn[len(place) :].rpartition(".")
            if fqn.startswith(place) and number.isdecimal() and name and "." not in name:
                state.setdefault(name, []).append(stored.chunks[fqn])
        rates, theirs = flat.get(f"{place}base_lrs"), state.get("base_lrs")
        flattened = not every and any("param_groups." in fqn for fqn in fqns)  # Nobody knows its groups.
        if flattened and rates != theirs and is_plain(rates) and sorted(rates or ()) == sorted(theirs or ()):
            found = [Regrouped(len(theirs or ()), len(theirs or ()))]
        for regrouped in found:
            refuse_order(where, f'"{place.removesuffix(".")}"', state, regrouped)


def _groups(stored: StoredItems, place: str) -> Iterator[list[Any]]:
    number = 0
    while (names := _list_of(stored, f"{place}param_groups.{number}.params")) is not None:
        yield names
        number += 1


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _list_of(stored: StoredItems, fqn: str) -> list[Any] | None:
    match stored.values.get(fqn):
        case ["list", *items]:
            return items
    return None
