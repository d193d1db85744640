"""A tree's text, read along a tree that the caller gives. See _tree."""

from __future__ import annotations

import base64
import importlib
import reprlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any

from .._errors import Corrupt, InvalidArgument, Unsupported
from .paths import (
    EnumName,
    fields_of,
    is_plain,
    is_stateful,
    join,
    kind_name,
    namedtuple_of,
    part_of,
    readable,
)
from .writer import Names, Writer

_MAX_LISTED = 20  # Names in one message.


class Reader:
    """One walk over a text, along the caller's tree (`like`) as far as that reaches; None matches anything.

    If `strict`, names and kinds must agree, and differences are collected. Within an object's state they may differ.
    """

    def __init__(self, leaf: Callable[..., Any], scalar: Callable[[Any], Any], module: Any) -> None:
        self._leaf, self._scalar, self._module = leaf, scalar, module
        self._known = Writer(Names()).kept
        self.loads: list[tuple[Any, Any]] = []
        self.only_stored: list[str] = []
        self.only_tree: list[str] = []
        self.differ: list[str] = []

    def node(self, node: Any, like: Any, name: str, strict: bool) -> Any:
        if type(like) not in self._known and is_stateful(like):
            return self._object(node, like, name, strict)
        match node:
            case dict():
                return self._mapping(node, [*node], [*node.values()], like, name, strict)
            case ["t" | "a" as kind]:
                return self._leaf("torch" if kind == "t" else "numpy", like, name or "~t", strict)
            case ["dict", *rest]:
                return self._mapping(node, [key_of(key) for key in rest[::2]], rest[1::2], like, name, strict)
            case ["counter", *rest]:
                keys = [key_of(key) for key in rest[::2]]
                return Counter(self._mapping(node, keys, rest[1::2], like, name, strict))
            case ["odict", metadata, *rest]:
                above = self.node(metadata, None, join(name, "~m"), False)
                keys = [key_of(key) for key in rest[::2]]
                ordered = OrderedDict(self._mapping(node, keys, rest[1::2], like, name, strict))
                if metadata is not None:
                    vars(ordered)["_metadata"] = above
                return ordered
            case ["list", *rest]:
                return self._sequence(node, rest, like, name, strict)
            case ["tuple", *rest]:
                return tuple(self._sequence(node, rest, like, name, strict))
            case ["namedtuple", str(kind), str(fields), *rest] if len(rest) == len(fields.split()):
                fits = isinstance(like, tuple) and fields_of(type(like)) == tuple(fields.split())
                if strict and not fits and fields_of(type(like)):
                    self._differs(name, like, f"a namedtuple {kind} of {fields}")
                made: Any = type(like) if fits else namedtuple_of(kind.rpartition(".")[2], fields)
                return made._make(self._sequence(node, rest, like, name, strict))
            case ["set" | "frozenset" as kind, *rest]:
                return self._set(frozenset if kind == "frozenset" else set, rest, like, name, strict)
            case ["state", inner]:
                return self.node(inner, like, name, strict)
            case ["enum", str(), str(member)] if isinstance(like, Enum):
                if member not in type(like).__members__:
                    self._differs(name, like, f'"{member}"')
                return type(like).__members__.get(member)
        if strict and not is_plain(like):
            self._differs(name, like, "a plain value")
        match node:
            case ["enum", str(kind), str(member)]:
                return EnumName.of(kind, member)
        return self._scalar(node)

    def raise_differences(self) -> None:
        found = [
            f"{len(items)} {what}: {', '.join(items[:_MAX_LISTED])}"
            + (f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else "")
            for items, what in (
                (self.only_stored, "only in the checkpoint"),
                (self.only_tree, "only in the given tree"),
                (self.differ, "that differ"),
            )
            if items
        ]
        if found:
            raise InvalidArgument("\n  ".join(["the given tree does not match the checkpoint:", *found]))

    def _differs(self, name: str, like: Any, found: str) -> None:
        self.differ.append(f"{readable(name)}: expected {kind_name(like)}, found {found}")

    def _mapping(
        self, node: Any, keys: list[Any], nodes: list[Any], like: Any, name: str, strict: bool
    ) -> dict[Any, Any]:
        parts = dict(zip([part_of(key, name) for key in keys], nodes, strict=False))
        if not len(parts) == len(keys) == len(nodes):
            raise Corrupt(f"the checkpoint's tree: {readable(name)}: expected one value for each key")
        theirs = {part_of(key, name): child for key, child in like.items()} if isinstance(like, dict) else None
        return dict(zip(keys, self._children(node, parts, like, theirs, name, strict), strict=True))

    def _sequence(self, node: Any, nodes: list[Any], like: Any, name: str, strict: bool) -> list[Any]:
        theirs = {str(i): child for i, child in enumerate(like)} if isinstance(like, (list, tuple)) else None
        return self._children(node, {str(i): child for i, child in enumerate(nodes)}, like, theirs, name, strict)

    def _children(
        self, node: Any, parts: dict[str, Any], like: Any, theirs: dict[str, Any] | None, name: str, strict: bool
    ) -> list[Any]:
        if theirs is None:
            if strict and not is_plain(like):
                self._differs(name, like, "a dict" if isinstance(node, dict) else f"a {node[0]}")
            theirs, strict = {}, False
        elif strict and name and is_plain(like) and not kinds_in(node, ""):
            strict = False  # Plain values on both sides: the checkpoint's as a whole. The root's names always count.
        if strict:
            self.only_stored += [readable(join(name, part)) for part in parts if part not in theirs]
            self.only_tree += [readable(join(name, part)) for part in theirs if part not in parts]
            parts = {part: child if part in theirs else None for part, child in parts.items()}
        return [self.node(child, theirs.get(part), join(name, part), strict) for part, child in parts.items()]

    def _set(self, kind: type, nodes: list[Any], like: Any, name: str, strict: bool) -> Any:
        if strict and not is_plain(like):
            self._differs(name, like, "a set")
        classes = {type(item).__qualname__: item for item in like} if isinstance(like, (set, frozenset)) else {}
        tagged = [node[1] if isinstance(node, list) and len(node) > 1 else None for node in nodes]
        likes = [classes.get(tag) if isinstance(tag, str) else None for tag in tagged]
        try:
            return kind([self.node(node, item, name, False) for node, item in zip(nodes, likes, strict=True)])
        except TypeError as error:
            raise Corrupt(f"the checkpoint's tree: {readable(name)}: {error}") from error

    def _object(self, node: Any, like: Any, name: str, strict: bool) -> Any:
        match node:
            case ["state", inner]:
                pass
            case dict() | ["dict" | "odict", *_]:
                inner = node
            case _:
                self._differs(name, like, "no state")
                return like
        state = like.state_dict()
        self.loads.append((like, self.node(inner, state, name, False)))
        if self._module and isinstance(like, self._module):
            given = Names()
            Writer(given).node(state, name)
            saved = kinds_in(inner, name)
            self.only_stored += [readable(path) for path in saved if path not in given.tensors]
            self.only_tree += [readable(path) for path in given.tensors if path not in saved]
        return like


def kinds_in(node: Any, name: str) -> dict[str, str]:
    found: dict[str, str] = {}

    def leaf(kind: str, _like: Any, leaf_name: str, _strict: bool) -> None:
        found[leaf_name] = kind

    Reader(leaf, lambda _: None, None).node(node, None, name, False)
    return found


def scalar(node: Any) -> Any:
    try:
        match node:
            case None | bool() | int() | float() | str():
                return node
            case ["int", str(text)]:
                return int(text, 16)
            case ["float", str(text)]:
                return float(text)
            case ["complex", real, imag]:
                return complex(scalar(real), scalar(imag))
            case ["bytes", str(text)]:
                return base64.b64decode(text, validate=True)
            case ["numpy", str(dtype), str(text)]:
                return importlib.import_module("numpy").frombuffer(bytes.fromhex(text), dtype)[0]
            case ["dtype", str(text)]:
                torch = importlib.import_module("torch")
                if isinstance(dtype := getattr(torch, text), torch.dtype):
                    return dtype
            case ["device", str(text)]:
                return importlib.import_module("torch").device(text)
            case ["size", *sizes]:
                return importlib.import_module("torch").Size(sizes)
    except ImportError as error:
        raise Unsupported(f"the checkpoint's tree holds {node[0]} values: {error}") from error
    except (ValueError, TypeError, IndexError, AttributeError, RuntimeError) as error:
        raise Corrupt(f"the checkpoint's tree: {reprlib.repr(node)}: {error}") from error
    raise Corrupt(f"the checkpoint's tree: expected a value, found {reprlib.repr(node)}")


def key_of(node: Any) -> Any:
    key = scalar(node)
    if type(key) not in (str, int, bool, type(None)):
        raise Corrupt(f"the checkpoint's tree: expected a key, found {reprlib.repr(node)}")
    return key
