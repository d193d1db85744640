"""What a container holds at one moment. Another thread may change it while it is saved, whenever Python code runs: so a
walk takes all of it first, in a single call that runs none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _core
from .._errors import InvalidArgument
from .paths import join, kind_name, readable, shown


def items_of(value: Mapping[Any, Any], name: str) -> tuple[list[Any], list[Any]]:
    """A dict's keys and values. InvalidArgument, with the path, if it was changed meanwhile."""
    try:
        if isinstance(value, dict) and type(value) in (dict, Counter):
            return _core.items_of(value)
        pairs = [*value.items()]
    except (RuntimeError, KeyError) as error:
        raise _changed(value, name) from error
    return [key for key, _ in pairs], [child for _, child in pairs]


def elements_of(value: Iterable[Any], name: str) -> list[Any]:
    """The same for a list, a deque or a set."""
    try:
        return [*value]
    except RuntimeError as error:
        raise _changed(value, name) from error


def copied(value: Any, name: str = "") -> Any:
    """New dicts and lists with the same contents, all the way down."""
    if isinstance(value, Mapping):
        keys, children = items_of(value, name)
        return {
            key: copied(child, join(name, key if type(key) is str else shown(key)))
            for key, child in zip(keys, children, strict=True)
        }
    if isinstance(value, list):
        return [copied(child, join(name, str(i))) for i, child in enumerate(elements_of(value, name))]
    return value


def _changed(value: Any, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"{readable(name)}: {kind_name(value)} was changed by another thread while it was read: change it between saves, "
        "or give save() a copy"
    )
