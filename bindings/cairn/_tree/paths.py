"""Names of tensors in a tree, and how messages show paths and values. See _tree."""

from __future__ import annotations

import re
import reprlib
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from .._errors import Corrupt, InvalidArgument

MAX_DEPTH = 64  # Levels of one tree.
MAX_LEVELS = 2 * MAX_DEPTH + 8  # Of JSON in a text: a dataclass has two for one of its tree's, leaves may be lists.
_COMPILED = "_orig_mod"  # The module within the one that torch.compile returns.
_WRAPPERS = frozenset({_COMPILED, "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_READS_OTHERWISE = re.compile(r"(?:0|-?[1-9][0-9]*|True|False|None|__metadata__)?")


class EnumName(str):
    """The name of an Enum member if no target gives the class; `enum` is the class's name. Can be saved again."""

    enum: str = ""

    @classmethod
    def of(cls, enum: str, name: str) -> EnumName:
        self = cls(name)
        self.enum = enum
        return self


def part_of(key: Any, name: str) -> str:
    """The component of a tensor's name that stands for a key of the container at `name`."""
    if type(key) is str and is_unicode(key):
        part = key.replace("~", "~0").replace("/", "~1")
        return "~s" + part if _READS_OTHERWISE.fullmatch(part) else part
    if type(key) in (int, bool, type(None)) and (key is None or key.bit_length() <= 4096):
        return str(key)
    raise InvalidArgument(
        f"{readable(name)}: the key {shown(key)} of type {type_name(key)} cannot be kept; keys are str in Unicode, "
        "int (at most 4,096 bits), bool or None"
    )


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def join(name: str, part: str) -> str:
    return f"{name}/{part}" if name else part


def readable(name: str) -> str:
    """A tensor's name as a path for messages. Keys that look like other types, or contain a slash, are quoted."""
    if name in ("", "~t"):
        return "the tree"
    parts = ["_metadata" if part == "~m" else part for part in name.split("/")]
    return "/".join(repr(p.removeprefix("~s").replace("~1", "/").replace("~0", "~")) if "~" in p else p for p in parts)


def shown(value: Any) -> str:
    """A value for a message, in short; also one that Python cannot show, as an int of 5,000 digits."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001 (of the value's own code)
        return kind_name(value)


def listed(items: list[str], most: int = 20) -> str:
    """Names for a message, at most so many."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def is_compiled(name: str) -> bool:
    """Whether torch.compile has added to it."""
    return _COMPILED in name


def uncompiled(name: str) -> str:
    """The name without what torch.compile adds to it."""
    if _COMPILED not in name:
        return name
    parts = [".".join(word for word in part.split(".") if word != _COMPILED) for part in name.split("/")]
    return "/".join(parts)


def unwrapped(name: str) -> str:
    """A module's name, without those of what wraps it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def versions_along(stored: Any, given: Any) -> Any:
    """The `_metadata` of a module's saved state dict, by the names of that in `given`, which torch reads it by: its modules
    may be wrapped otherwise now."""
    if not (isinstance(stored, dict) and isinstance(given, dict)):
        return stored
    names = {str(name): unwrapped(str(name)) for name in (*stored, *given)}
    if all(name == plain for name, plain in names.items()):
        return stored
    plain = {names[str(name)]: value for name, value in stored.items()}  # What is wrapped comes after its wrapper.
    return {name: plain[names[str(name)]] for name in given if names[str(name)] in plain}


def is_stateful(value: Any) -> bool:
    """By its class: a dict whose items are attributes may answer to every name, or run code of its own."""
    kind = type(value)
    return kind is not type and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")


def refuse_classless(value: Any, name: str) -> None:
    """InvalidArgument, with the path, for what raises when it is asked for its class, as a proxy of what is gone."""
    try:
        value.__class__  # noqa: B018
    except Exception as error:
        raise InvalidArgument(
            f"{readable(name)}: {kind_name(value)} cannot be kept: its __class__ raises {error!r}"
        ) from error


def class_of(value: Any) -> type:
    """Of a module that torch.compile returned, the one that it has compiled."""
    torch = sys.modules.get("torch")
    return type(getattr(value, "_orig_mod", value) if torch and isinstance(value, torch.nn.Module) else value)


def fields_of(kind: type) -> tuple[str, ...]:
    fields = getattr(kind, "_fields", ())
    return fields if isinstance(fields, tuple) and issubclass(kind, tuple) else ()


@lru_cache(maxsize=256)
def namedtuple_of(name: str, fields: tuple[str, ...]) -> Any:
    try:
        return namedtuple(name, fields)
    except (ValueError, TypeError, SyntaxError) as error:  # SyntaxError: two that Python reads as the same name.
        raise Corrupt(f"the checkpoint's tree: {error}") from error


def type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def kind_name(value: Any) -> str:
    return f"a value of type {type_name(value)}"


@contextmanager
def noted(doing: str) -> Iterator[None]:
    """Adds to an error of somebody else's code what Cairn was doing, where Python can (3.11 and later)."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "add_note"):
            error.add_note(f"cairn: {doing}")
        raise
