"""Which items of torch.distributed.checkpoint training does not change. See cairn.dcp."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch

from .._checkpointer import Checkpointer
from .._ranks.replicas import matches, patterns_of
from .._tree.frozen import FrozenNames
from .._tree.tensors import TensorCollector
from .plain_values import BELOW


class Frozen:
    """What a save was given as `frozen`: as in Checkpointer.save, of a state dict. True means the modules at its top."""

    def __init__(self, given: bool | str | Iterable[str]) -> None:
        self._given = given if isinstance(given, bool) else patterns_of("frozen", given)
        self._modules: dict[Any, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._given)

    def look_at(self, state: Mapping[Any, Any]) -> None:
        """Before objects in the state dict were asked for theirs."""
        if self._given is True:
            self._modules = {key: one for key, one in state.items() if isinstance(one, torch.nn.Module)}

    def add_to(self, sink: TensorCollector, checkpointer: Checkpointer, fqns: Iterable[str]) -> None:
        """Once the sink has the tensors. `fqns`: of all items, whichever rank writes them."""
        if self:
            unmatched = partial(_unmatched, fqns)
            checkpointer._engine.freeze(sink, self._given, self._modules, unmatched, _item_names)


class _ItemNames(FrozenNames):
    """The same names as a tree's, or patterns, of items as a shard has them."""

    def __init__(self, found: FrozenNames | re.Pattern[str]) -> None:
        # A tree has a module's path before a "/".
        names = found.names if isinstance(found, FrozenNames) else ()
        super().__init__(frozenset(name.replace("/", ".", 1) for name in names))
        self._pattern = found if isinstance(found, re.Pattern) else None

    def match(self, name: str) -> str | None:
        if BELOW in name:  # What a rank keeps its own of may be a DTensor, and an array in a value is new at each save.
            return None
        fqn = re.sub(r"~\d+$", "", name)  # Of one of several chunks.
        found = fqn in self.names if self._pattern is None else self._pattern.match(fqn)
        return name if found else None


@lru_cache(maxsize=64)
def _item_names(found: FrozenNames | re.Pattern[str]) -> FrozenNames:
    """The same object for the same names, because a save then finds their tensors at once."""
    return _ItemNames(found)


def _unmatched(fqns: Iterable[str], patterns: Iterable[str]) -> list[str]:
    held = [*fqns]
    return [pattern for pattern in patterns if not any(matches((pattern,), fqn) for fqn in held)]
