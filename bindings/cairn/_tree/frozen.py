"""Which of a tree's tensors training does not change: the parameters of its modules that have no gradient."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from operator import attrgetter
from typing import Any

from .._ranks.replicas import expression
from .parameters import modules_in
from .paths import join, part_of

_is_trained = attrgetter("requires_grad")
_COLLECTED = ("running_mean", "running_var", "num_batches_tracked")  # By batch norms.


class FrozenNames:
    """What TreeTensors.freeze asks, as it would ask a compiled expression."""

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.names = names

    def now(self, names: frozenset[str]) -> FrozenNames:
        """These names: the same object while they stay the same, because a save then finds their tensors at once."""
        return self if names == self.names else FrozenNames(names)

    def match(self, name: str) -> str | None:
        return name if name in self.names else None


@lru_cache(maxsize=64)
def frozen_expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Matches names that match all of one of the patterns, but for what a batch norm writes in forward: torch counts no
    such write, and a `state_dict()` does not say that it is a buffer. The same object for the same patterns, mostly.
    There may be 100,000 names, so it looks at their ends last."""
    return re.compile(f"(?:{expression(patterns).pattern})" + "".join(f"(?<!{name})" for name in _COLLECTED))


class FrozenParameters:
    """The frozen parameters of the trees of one Checkpointer. Made fast, because the caller of `save` waits: names are
    put together only if modules, or what is frozen of them, have changed."""

    def __init__(self) -> None:
        self._keys: list[str | None] = []
        self._trained: list[bool] = []
        self._names = FrozenNames()

    def of(self, tree: Any) -> FrozenNames:
        """The same object for the same names as at the last call."""
        keys: list[str | None] = []  # They tell the names: those of each module behind a None.
        parameters: list[Any] = []
        roots = modules_in(tree)
        keys.extend(path for path, _ in roots)
        left = [module for _, module in roots]
        while left:
            module = left.pop()
            keys.append(None)
            if own := module._parameters:
                keys += own.keys()
                parameters += own.values()
            if below := module._modules:
                keys.append(None)
                keys += below.keys()
                left += [one for one in below.values() if one is not None]
        try:
            trained = [*map(_is_trained, parameters)]
        except AttributeError:  # A parameter that is None.
            trained = [one is None or one.requires_grad for one in parameters]
        if keys != self._keys or trained != self._trained:
            self._keys, self._trained = keys, trained
            self._names = FrozenNames(frozen_parameters(roots))
        return self._names


def frozen_parameters(modules: list[tuple[str, Any]]) -> frozenset[str]:
    """The names of the parameters with requires_grad=False of torch modules, each with its path."""
    return frozenset(
        join(path, part_of(key, path))
        for path, module in modules
        # A class may change the names: not those of its state_dict().
        for key, parameter in sys.modules["torch"].nn.Module.named_parameters(module, remove_duplicate=False)
        if not parameter.requires_grad
    )
