"""What one load of cairn.dcp reads, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from .._errors import InvalidArgument, Unsupported
from .._memory import note_writes
from .._tree import Stored
from .._tree.tensors import dtype_name, empty, target_view, torch_dtype
from .blocks import refuse_scattered
from .left_out import tell_unlike
from .optimizers import Optimizers, check_orders, orders_in, unlike_classes
from .plain_values import BELOW
from .stored import StoredItems, part_of
from .targets import (
    Goal,
    Targets,
    check_covered,
    check_kinds,
    check_numbers,
    check_schedulers,
    inner_targets,
    unlike_optimizers,
)


class Views:
    """Views for the engine, by which it fills tensors and what values need."""

    def __init__(self, stored: StoredItems) -> None:
        self._stored = stored
        self.views: list[Any] = []
        self.arrays: dict[str, Any] = {}  # Tensors of values, and pickled bytes, by name.
        self._regions: dict[str, int] = {}  # The number of names given, by fqn.
        self._named: set[str] = set()

    def fill(self, goal: Goal) -> Any:
        """Reads into a goal's target: in place, or into the temporary tensor that is returned."""
        target = goal.target
        name = goal.name if goal.part is None else self._name_region(goal.fqn)
        temporary = None
        try:
            if dtype_name(name, target) != goal.dtype:
                raise Unsupported("converted by copy_")
            view = target_view(name, target)
        except (InvalidArgument, Unsupported):
            device = target.device if target.is_cuda else "cpu"
            temporary = torch.empty(tuple(target.shape), dtype=torch_dtype(goal.dtype), device=device)
            view = target_view(name, temporary)
        self.views.append((*view, goal.part))
        return temporary

    def _name_region(self, fqn: str) -> str:
        """A name for messages that no other read of this load has."""
        while True:
            number = self._regions[fqn] = self._regions.get(fqn, -1) + 1
            name = f"{fqn}~{number}" if number else fqn
            if name not in self._named and (name not in self._stored.tensors or (not number and BELOW not in name)):
                self._named.add(name)
                return name

    def value(self, fqn: str) -> None:
        if fqn in self._stored.pickled:
            chunk = self._stored.find(fqn, None)
            self._array(
                fqn, empty(Stored(chunk.dtype, chunk.shape), "torch"), part_of(chunk, chunk.offset, chunk.shape)
            )
            return
        for name, kind in self._stored.tensors_of(fqn).items():
            self.whole(name, kind)

    def whole(self, name: str, kind: str) -> Any:
        """Reads a tensor of a value into a new one."""
        if name not in self.arrays:
            self._array(name, empty(self._stored.tensors[name].of_kind(kind), kind.partition(" ")[0]), None)
        return self.arrays[name]

    def _array(self, name: str, array: Any, part: Any) -> None:
        self.arrays[name] = array
        self.views.append((*target_view(name, array), part))


class Reads:
    """The reads of one rank. InvalidArgument, with the names, for what must not be loaded into what is given.

    `flat` has what the values are to replace, by fqn. `optimizers` are those
    whose state it has, where they are known. `read` reads views, at once."""

    def __init__(
        self,
        stored: StoredItems,
        where: str,
        goals: list[Goal],
        values: list[str],
        flat: Mapping[str, Any],
        optimizers: Optimizers,
        allow_loss: bool,
        strict: bool,
        read: Callable[[list[Any]], None],
    ) -> None:
        self._stored, self._where = stored, where
        if stored.whole:
            check_covered(stored, goals, flat, where)
        refuse_scattered(flat)
        check_kinds(values, flat, where)
        check_numbers(stored, values, flat, where)
        check_orders(orders_in(optimizers, flat), stored.parameters, stored.paths, where)
        check_schedulers(stored, values, flat, where)
        inner = inner_targets(stored, values, flat, where)
        unlike = unlike_optimizers(stored, values, flat, unlike_classes(optimizers, stored.optimizers))
        if strict:
            _tell_unlike(where, unlike, True)
        self.targets = Targets(stored, goals, allow_loss, where, unlike, inner)
        untied = [pair for pair in self.targets.tied if not self.targets.is_tied(pair)]
        if pair := self._first_unlike(untied, read):
            self.targets.raise_shared(pair)
        self._views = Views(stored)
        read_already = {second for _, second in self.targets.tied}
        self._landed = [
            (goal.target, None if number in read_already else self._views.fill(goal))
            for number, goal in enumerate(goals)
        ]
        for fqn in values:
            self._views.value(fqn)

    @property
    def views(self) -> list[Any]:
        return self._views.views

    @property
    def arrays(self) -> dict[str, Any]:
        """What the values need, by name."""
        return self._views.arrays

    def _first_unlike(self, pairs: list[tuple[int, int]], read: Callable[[list[Any]], None]) -> tuple[int, int] | None:
        """The first pair of tensors with one memory for which the checkpoint has different bytes. Of tied tensors that
        several ranks held, two of them may have written one each."""
        views, goals = Views(self._stored), self.targets.goals

        def made(number: int) -> torch.Tensor:
            if number >= len(goals):
                inner = self.targets.inner[number - len(goals)]
                whole: torch.Tensor = views.whole(inner.name, inner.kind)
                return whole
            goal = goals[number]
            one = torch.empty(tuple(goal.target.shape), dtype=torch_dtype(goal.dtype))
            views.fill(replace(goal, target=one))
            return one

        both = [(pair, made(pair[0]), made(pair[1])) for pair in pairs]
        if both:
            read(views.views)
        for pair, a, b in both:
            if a.dtype != b.dtype or not torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (a, b))):
                return pair
        return None

    def note_writes(self) -> None:
        note_writes(one.target for of in (self.targets.goals, self.targets.inner) for one in of)

    def convert(self) -> None:
        """Once all is read."""
        for target, temporary in self._landed:
            if temporary is not None:
                # torch's copy of float16 into what is lazily negated loses the sign.
                target.copy_(temporary.to(target.dtype) if target.is_neg() else temporary)

    def tell(self) -> None:
        self.targets.casts.log(self._where)
        _tell_unlike(self._where, self.targets.unlike, False)


def _tell_unlike(where: str, found: dict[str, list[str]], strict: bool) -> None:
    for what, unlike in found.items():
        tell_unlike(where, what, unlike, strict)
