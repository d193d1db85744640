"""Plain values beyond JSON's, and classes by name. See _tree.

Nothing that a file says is imported or called. A class is used only if its module is imported already; an object is
made without its constructor, and only if neither making nor freeing it runs any code of its class.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import inspect
import io
import pathlib
import sys
from collections import deque
from collections.abc import Callable
from enum import Enum
from types import MemberDescriptorType, ModuleType, SimpleNamespace, WrapperDescriptorType
from typing import Any

from .._errors import InvalidArgument
from .paths import MAX_DEPTH, fields_of, is_stateful, kind_name, readable

# What safetensors has no dtype for, and the bytes of an element. Kept as U8, with a last dimension of these bytes if it is
# more than one.
AS_BYTES = {
    "complex128": 16, "complex32": 4, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float4_e2m1fn_x2": 1, "bits1x8": 1,
    "bits2x4": 1, "bits4x2": 1, "bits8": 1, "bits16": 2,
} | {f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)}  # fmt: skip


def bytes_of_element(dtype: str) -> tuple[int, ...]:
    """The last dimension that the file has for a dtype that is kept as bytes; empty for every other."""
    return (AS_BYTES[dtype],) if AS_BYTES.get(dtype, 1) > 1 else ()


_PATHS = {kind.__name__: kind for kind in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)}
_TIMES = {kind.__name__: kind for kind in (datetime.datetime, datetime.date, datetime.time)}


def _base64(writer: Any, data: bytes, name: str) -> str:
    return str(writer.node(data, name)).removeprefix('["bytes",').removesuffix("]")


def _write_stream(writer: Any, value: io.BytesIO, name: str) -> str:
    if value.closed:
        raise InvalidArgument(f"{readable(name)}: a BytesIO that is closed cannot be kept")
    return f'["bytesio",{_base64(writer, value.getvalue(), name)},{value.tell()}]'


def _write_path(writer: Any, value: pathlib.PurePath, name: str) -> str:
    return f'["path","{type(value).__name__}",{writer.node(str(value), name)}]'


def _write_time(_writer: Any, value: Any, name: str) -> str:
    zone = getattr(value, "tzinfo", None)
    if zone is not None and type(zone) is not datetime.timezone:
        raise InvalidArgument(
            f"{readable(name)}: {kind_name(value)} with a tzinfo of {type(zone).__name__} cannot be kept; convert it with "
            "astimezone(datetime.timezone.utc)"
        )
    return f'["time","{type(value).__name__}","{value.isoformat()}",{getattr(value, "fold", 0)}]'


def _write_slice(writer: Any, value: slice, name: str) -> str:
    parts = [value.start, value.stop, value.step]
    if any(type(part) not in (int, type(None)) for part in parts):
        raise InvalidArgument(f"{readable(name)}: a slice cannot be kept, only of int and None")
    return f'["slice",{",".join(writer.node(part, name) for part in parts)}]'


WRITERS: dict[type, Callable[[Any, Any, str], str]] = {
    bytearray: lambda w, v, n: f'["bytearray",{_base64(w, bytes(v), n)}]',
    io.BytesIO: _write_stream,
    range: lambda w, v, n: f'["range",{w.node(v.start, n)},{w.node(v.stop, n)},{w.node(v.step, n)}]',
    slice: _write_slice,
    datetime.timedelta: lambda _w, v, _n: f'["timedelta",{v.days},{v.seconds},{v.microseconds}]',
    **dict.fromkeys(_TIMES.values(), _write_time),
    **dict.fromkeys(_PATHS.values(), _write_path),
}


_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, *WRITERS})
_CONTAINERS = frozenset({dict, list, tuple})


def is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether it contains no tensor and no object."""
    if type(value) in _PLAIN or isinstance(value, (Enum, str)):
        return True
    fields = dataclass_fields(value)
    if isinstance(value, (dict, list, tuple, set, frozenset, deque)) or fields is not None:
        children = fields.values() if fields is not None else value.values() if isinstance(value, dict) else value
        if depth == 0 or is_stateful(value):
            return False
        return _PLAIN.issuperset(map(type, children)) or all(is_plain(child, depth - 1) for child in children)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch and isinstance(value, (torch.dtype, torch.device)):
        return True
    return bool(numpy and isinstance(value, numpy.generic))


def holds(value: Any, *kinds: type) -> bool:
    """Whether it is one of these classes, or has one in dicts, lists and the like. They are none of the plain ones."""
    if isinstance(value, kinds):
        return True
    if type(value) in _PLAIN:
        return False
    fields = None if type(value) in _CONTAINERS else dataclass_fields(value)
    if fields is None and not isinstance(value, (dict, list, tuple, deque)):
        return False
    children = fields.values() if fields is not None else value.values() if isinstance(value, dict) else value
    if _PLAIN.issuperset(map(type, children)):  # There may be millions.
        return False
    return any(holds(child, *kinds) for child in children)


def read(node: Any, scalar: Callable[[Any], Any]) -> Any:
    """The value of a node; the node itself if it is none of these. ValueError, TypeError, OverflowError if damaged."""
    match node:
        case ["bytearray", str(text)]:
            return bytearray(base64.b64decode(text, validate=True))
        case ["bytesio", str(text), int(position)]:
            stream = io.BytesIO(base64.b64decode(text, validate=True))
            stream.seek(position)
            return stream
        case ["path", str(kind), str(text)] if kind in _PATHS:
            return _PATHS[kind](text)
        case ["time", str(kind), str(text), int(fold)] if kind in _TIMES:
            read_time = _TIMES[kind].fromisoformat(text)
            return read_time.replace(fold=fold) if fold else read_time  # type: ignore[call-arg]
        case ["timedelta", int(days), int(seconds), int(microseconds)]:
            return datetime.timedelta(days, seconds, microseconds)
        case ["range", start, stop, step]:
            return range(scalar(start), scalar(stop), scalar(step))
        case ["slice", start, stop, step]:
            return slice(scalar(start), scalar(stop), scalar(step))
    return node


# Classes


def class_path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(path: str) -> type | None:
    """The class of this path, if its module is imported. Neither imports nor runs anything."""
    module, _, names = path.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = vars(found).get(name) if isinstance(found, (ModuleType, type)) else None
    return found if isinstance(found, type) else None


def is_found(kind: type) -> bool:
    return find_class(class_path(kind)) is kind


def dataclass_fields(value: Any) -> dict[str, Any] | None:
    """A dataclass instance's fields that are set, by name; None for anything else."""
    if not is_dataclass(type(value)):
        return None
    names = [one.name for one in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def is_dataclass(kind: type) -> bool:
    return any("__dataclass_fields__" in vars(base) for base in kind.__mro__)


def why_not_made(kind: type) -> str:
    """Why `make` refuses this dataclass; empty if it does not."""
    if any("__del__" in vars(base) for base in kind.__mro__):
        return "its class has __del__"
    for one in dataclasses.fields(kind):
        attribute = inspect.getattr_static(kind, one.name, None)
        if hasattr(type(attribute), "__set__") and not isinstance(attribute, MemberDescriptorType):
            return f"its field {one.name} is a property"
    try:
        object.__new__(kind)
    except TypeError as error:
        return str(error)
    return ""


def why_not_kept(value: Any, fields: dict[str, Any]) -> str:
    """Why a dataclass instance does not come back equal; empty if it does."""
    slots = {name for base in type(value).__mro__ for name in _listed(vars(base).get("__slots__", ()))}
    extra = {*getattr(value, "__dict__", ()), *(name for name in slots - {"__dict__", "__weakref__"})} - {*fields}
    extra = {name for name in extra if hasattr(value, name)}
    if extra:
        return f"it has more than its fields: {', '.join(sorted(extra))}"
    missing = [one.name for one in dataclasses.fields(value) if one.name not in fields]
    return f"its field {missing[0]} is not set" if missing else why_not_made(type(value))


def _listed(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def make(kind: type | None, fields: dict[str, Any]) -> Any:
    """An instance of this dataclass with these fields. Without a class, something that has the same attributes.

    ValueError if the class is none, has other fields (it may have changed since the save), or would run code.
    """
    if kind is None:
        return SimpleNamespace(**fields)
    if not is_dataclass(kind):
        raise ValueError(f"{class_path(kind)} is no dataclass here")
    own = [one.name for one in dataclasses.fields(kind)]
    if {*own} != {*fields}:
        raise ValueError(
            f"{class_path(kind)} is no dataclass with the fields {', '.join(fields)}; it has {', '.join(own)}"
        )
    if why := why_not_made(kind):
        raise ValueError(f"{class_path(kind)}: {why}")
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def is_hashed_by_code(value: Any, trusted: type = object) -> bool:
    """Whether a set that holds this value would run code of a class that a text named, other than the trusted one."""
    if isinstance(value, (tuple, frozenset)) and any(is_hashed_by_code(child) for child in value):
        return True
    kind = type(value)
    if kind is trusted or (not isinstance(value, Enum) and not fields_of(kind)):
        return False
    used: list[Any] = [kind.__hash__, kind.__eq__]
    return any(one is not Enum.__hash__ and not isinstance(one, WrapperDescriptorType) for one in used)


def member_of(kind: type | None, name: str) -> Any:
    """The Enum's member; None if there is none."""
    return kind.__members__.get(name) if kind is not None and issubclass(kind, Enum) else None


def tuple_of(kind: type | None, fields: tuple[str, ...], values: list[Any]) -> Any:
    """A namedtuple of this class; None if the class is none with these fields, or would run code."""
    if kind is None or not fields or fields_of(kind) != fields or any("__del__" in vars(base) for base in kind.__mro__):
        return None
    return tuple.__new__(kind, values)
