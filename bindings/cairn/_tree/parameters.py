"""What a tree calls the parameters of its optimizers: by the names of the tensors of its modules. See _tree."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from json.encoder import encode_basestring as _quote
from typing import Any
from weakref import WeakKeyDictionary

from .optimizer_states import numbered
from .paths import MAX_DEPTH, is_stateful, join, part_of, uncompiled
from .values import dataclass_fields
from .writer import Names, Writer

_LEAVES = (type(None), bool, int, float, str, bytes)
# Of each optimizer, from the last save: what its names follow from, and their text. It keeps no parameter alive.
_texts: WeakKeyDictionary[Any, tuple[Any, str | None]] = WeakKeyDictionary()


class TreeModules:
    """The torch modules of a tree, each with its path."""

    def __init__(self, found: Iterable[tuple[str, Any]]) -> None:
        self._found = [*found]

    def texts(self, optimizers: Mapping[str, Any], states: Iterable[Any]) -> str:
        """The names of these optimizers' parameters, as JSON, by the optimizers' paths; empty if there are none. `states`:
        the modules' state dicts of now. With the same tensors under the same names in each, and the same parameters in
        the optimizer, the names are those of the last save: to find them takes longer than the caller should wait."""
        if not self._found:
            return ""
        held = [(path, id(module), *_look(state)) for (path, module), state in zip(self._found, states, strict=True)]
        found = [(path, self._text_of(optimizer, held)) for path, optimizer in optimizers.items()]
        texts = [f"{_quote(path)}:{text}" for path, text in found if text is not None]
        return f"{{{','.join(texts)}}}" if texts else ""

    def names_of(self, optimizer: Any) -> list[str] | None:
        """The names of an optimizer's parameters in their order, without what torch.compile adds; "" for what is in none of
        these modules. A parameter with several has the first by alphabet. None if no parameter has one, or two have the
        same."""
        known: dict[int, str] = {}
        for path, module in self._found:
            # A class may change the names: not those of a module within another.
            named = sys.modules["torch"].nn.Module.named_parameters(module, remove_duplicate=False)
            for key, parameter in named:
                name = uncompiled(join(path, part_of(key, path)))
                known[id(parameter)] = min(name, known.get(id(parameter), name))
        names = [known.get(of, "") for of in _parameters_of(optimizer)]
        found = [name for name in names if name]
        return names if found and len({*found}) == len(found) else None

    def both_names(
        self, optimizer: Any, saved: list[str] | None, stored: Iterable[str]
    ) -> tuple[list[str], list[str]] | None:
        """The optimizer's names and the `saved` ones, if they can be compared. `stored` has the names of all tensors of the
        checkpoint."""
        own = self.names_of(optimizer) if saved and self._found else None
        if own is None or saved is None:
            return None
        if own != saved and not self._are_tensors({*own} - {""}, {*saved} - {""}, {*map(uncompiled, stored)}):
            return None
        return numbered(own), numbered(saved)

    def _text_of(self, optimizer: Any, held: Any) -> str | None:
        basis = (_parameters_of(optimizer), held)
        last, text = _texts.get(optimizer, (None, None))
        if last != basis:
            names = self.names_of(optimizer)
            text = None if names is None else f"[{','.join(map(_quote, names))}]"
            _texts[optimizer] = basis, text
        return text

    def _are_tensors(self, own: set[str], saved: set[str], stored: set[str]) -> bool:
        """Whether all are names of tensors, and both trees have the modules. Otherwise other names mean nothing: a module
        may have moved, or be within a wrapper that its state dict does not show."""
        modules = {uncompiled(path): module for path, module in self._found}
        paths = {path_of(name) for name in own}
        given = Names()
        for path in paths:
            Writer(given).node(modules[path].state_dict(), path)
        return (
            stored.issuperset(saved)
            and {*map(uncompiled, given.tensors)}.issuperset(own)
            and modules.keys() >= {path_of(name) for name in saved}
            and paths <= {path_of(name) for name in stored}
        )


def path_of(name: str) -> str:
    """The path of the module that has a parameter of this name."""
    return name.rpartition("/")[0]


def modules_in(tree: Any) -> list[tuple[str, Any]]:
    """The torch modules of a tree, but for those within objects, each with its path."""
    torch = sys.modules.get("torch")
    return [] if torch is None else [(name, one) for name, one in objects_in(tree) if isinstance(one, torch.nn.Module)]


def objects_in(tree: Any, name: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    """The objects of a tree that have a state_dict(), but for those within others, each with its path."""
    if depth > MAX_DEPTH:
        return []
    if is_stateful(tree):
        return [(name, tree)]
    if isinstance(tree, (list, tuple, deque)):
        children: Iterable[tuple[Any, Any]] = enumerate(tree)
    elif isinstance(tree, dict):
        children = tree.items()
    else:
        children = (dataclass_fields(tree) or {}).items()
    leaves = set(_LEAVES)  # There may be 100,000.
    if torch := sys.modules.get("torch"):
        leaves |= {torch.Tensor, torch.nn.Parameter}
    inner = [(key, child) for key, child in children if type(child) not in leaves]
    return [*chain(*(objects_in(child, join(name, part_of(key, name)), depth + 1) for key, child in inner))]


def _parameters_of(optimizer: Any) -> list[int]:
    return [*map(id, chain(*(group["params"] for group in getattr(optimizer, "param_groups", ()))))]


def _look(state: Any) -> tuple[list[Any], list[int]]:
    """A state dict's names, and where its tensors are."""
    torch = sys.modules["torch"]
    # Not an OrderedDict's own methods, which are slow.
    keys, values = ([*dict.keys(state)], [*dict.values(state)]) if isinstance(state, dict) else ([], [])
    if not {torch.Tensor, torch.nn.Parameter}.issuperset(map(type, values)):
        values = [value for value in values if isinstance(value, torch.Tensor)]
    return keys, [*map(torch.Tensor.data_ptr, values)]
