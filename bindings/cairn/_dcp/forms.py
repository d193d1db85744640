"""The forms that a checkpoint's DCP items must have: a file may be damaged, or hostile. See items.py."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Iterator
from typing import Any, TypeAlias

from .._errors import Corrupt, Error
from .._tree.values import AS_BYTES

Path: TypeAlias = tuple[str | int, ...]


@contextlib.contextmanager
def well_formed(what: str) -> Iterator[None]:
    """Corrupt, with `what` it is, instead of any error that text of the wrong form brings about."""
    try:
        yield
    except Error:
        raise
    except RecursionError as error:
        raise Corrupt(f"{what}: nested too deep") from error
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise Corrupt(f"{what}: {error}") from error


def path_of(path: Any) -> Path:
    if isinstance(path, list) and path and not any(isinstance(key, (list, dict)) for key in path):
        return tuple(path)
    raise ValueError(f"expected a path, found {reprlib.repr(path)}")


def tie_of(fqn: Any, at: Any, holder: Any) -> tuple[str, tuple[int, ...], str]:
    if isinstance(fqn, str) and isinstance(holder, str) and all(isinstance(one, int) for one in at):
        return fqn, tuple(at), holder
    raise ValueError(f"expected a tied chunk, found {reprlib.repr([fqn, at, holder])}")


def own_of(names: Any, paths: dict[str, Any]) -> frozenset[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name in paths for name in names):
        raise ValueError(f"expected names of items that each rank has its own of, found {reprlib.repr(names)}")
    return frozenset(names)


def dtypes_of(dtypes: Any) -> dict[str, str]:
    for dtype in dict(dtypes).values():
        if not isinstance(dtype, str) or dtype not in AS_BYTES:
            raise ValueError(f"expected a dtype that is kept as bytes, found {reprlib.repr(dtype)}")
    return dict(dtypes)


def optimizers_of(classes: Any) -> dict[str, list[str]]:
    for names in dict(classes).values():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"expected names of optimizers' classes, found {reprlib.repr(names)}")
    return dict(classes)


def orders_of(orders: Any) -> dict[str, list[list[str | None]]]:
    for lists in dict(orders).values():
        every = lists if isinstance(lists, list) else [None]
        if not all(isinstance(one, list) and all(isinstance(n, (str, type(None))) for n in one) for one in every):
            raise ValueError(f"expected names of optimizers' parameters, found {reprlib.repr(lists)}")
    return dict(orders)


def metadata_in(places: Any) -> dict[str, dict[str, Any]]:
    for modules in dict(places).values():
        if not isinstance(modules, dict) or not all(isinstance(one, dict) for one in modules.values()):
            raise ValueError(f"expected the _metadata of state dicts, found {reprlib.repr(modules)}")
    return dict(places)


def rest_of(rest: Any) -> tuple[dict[str, Path], dict[int, dict[str, Path]], set[str]]:
    match rest:
        case {"tensors": dict(tensors), "values": dict(values), "tied": list(tied)}:
            return _paths_of(tensors), {int(rank): _paths_of(dict(paths)) for rank, paths in values.items()}, {*tied}
    raise ValueError(f"expected the places of what other shards hold, found {reprlib.repr(rest)}")


def _paths_of(paths: dict[str, Any]) -> dict[str, Path]:
    return {fqn: path_of(path) for fqn, path in paths.items()}
