"""A user's tree <-> named tensors and one JSON text. Pure Python; nothing is pickled.

**Names.** A tensor's name is its path, components joined by "/". A str key stands for itself with "~" as "~0" and "/"
as "~1", so a flat state_dict keeps its names; an int key and a position in a list or tuple is its decimal; True, False
and None are spelled out. A str key that would read as one of those, the empty one and "__metadata__" (which safetensors
reserves) gets the prefix "~s". A tree that is itself one tensor is named "~t"; "~m" is an OrderedDict's `_metadata`.
Names are injective: two leaves never share one.

**Text.** `{"version":1,"tree":NODE}`, compact, at most 64 levels, where NODE is

| value                                  | node |
|----------------------------------------|------|
| None, bool, finite float, str          | plain JSON |
| int of 64 bits with sign; longer       | plain JSON; `["int","0x..."]` |
| float inf, -inf, nan                   | `["float","inf"]`; a NaN's payload is not kept |
| complex                                | `["complex",NODE,NODE]` |
| bytes                                  | `["bytes","base64"]` |
| torch.Tensor or Parameter; numpy array | `["t"]`; `["a"]`: dtype and shape are with the tensor of that name |
| dict with str keys only; other dict    | `{"key":NODE,...}`; `["dict",KEY,NODE,KEY,NODE,...]` |
| OrderedDict; Counter                   | `["odict",METADATA or null,KEY,NODE,...]`; `["counter",KEY,NODE,...]` |
| list; tuple; torch.Size                | `["list",NODE,...]`; `["tuple",...]`; `["size",...]` |
| set; frozenset                         | `["set",NODE,...]`; `["frozenset",...]`, sorted by text |
| namedtuple                             | `["namedtuple","Class","field field",NODE,...]` |
| Enum member                            | `["enum","Class","NAME"]` |
| numpy scalar                           | `["numpy","<f4","hex of its bytes"]` |
| torch.dtype; torch.device              | `["dtype","float32"]`; `["device","cuda:0"]` |
| object with state_dict, load_state_dict | `["state",NODE of its state_dict()]` |

KEY is null, a bool, an int (`["int","0x..."]` too) or a str. Order of dicts is kept. Everything else is refused.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
import re
import reprlib
import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from json.encoder import encode_basestring as _quote
from operator import attrgetter
from typing import Any

from ._errors import Corrupt, InvalidArgument, NotFound, Unsupported
from ._rng import RngState

_VERSION = 1
_MAX_DEPTH = 64  # Levels of one tree.
_MAX_LISTED = 20  # Names in one message.
_READS_OTHERWISE = re.compile(r"(?:0|-?[1-9][0-9]*|True|False|None|__metadata__)?")
_FIRST_OF_THOSE = frozenset("-0123456789TFN_") | {""}
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_NUMBERS = frozenset({int, float, bool})
_TEXT = frozenset({str})
_FACTS = attrgetter("layout", "is_meta", "is_quantized", "is_nested")
_ALLOWED = (
    "a tree holds tensors, numpy arrays and scalars, None, bool, int, float, complex, str, bytes, Enum members, torch "
    "dtypes and devices, dict, OrderedDict, Counter, list, tuple, namedtuple, set, frozenset, and objects with "
    "state_dict and load_state_dict"
)


@dataclass(frozen=True)
class Stored:
    """What a checkpoint says of one tensor: dtype by safetensors' name ("F32", "BF16"), shape in elements."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Flat:
    """A tree taken apart: its tensors by name, in the tree's order, and the JSON text of everything else."""

    tensors: dict[str, Any]
    text: str


@dataclass(frozen=True)
class Plan:
    """Where a checkpoint's tensors go: name -> the caller's own tensor (in place) or a new one."""

    tensors: dict[str, Any]
    _tree: Any
    _loads: list[tuple[Any, Any]]

    def finish(self) -> Any:
        """Calls load_state_dict on every object of the tree, once the tensors are filled, and returns the tree.

        The containers are new ones, with the checkpoint's plain values; tensors and objects are the caller's own. RNG
        states go last, lest another object's load_state_dict draws from them. What load_state_dict raises goes through.
        """
        for target, state in sorted(self._loads, key=lambda load: isinstance(load[0], RngState)):
            target.load_state_dict(state)
        return self._tree


class EnumName(str):
    """The name of an Enum member where no target tells the class; `enum` is the class's name. Can be saved again."""

    enum: str = ""

    @classmethod
    def of(cls, enum: str, name: str) -> EnumName:
        self = cls(name)
        self.enum = enum
        return self


def flatten(tree: Any) -> Flat:
    """Takes a tree apart; calls state_dict() on its objects. The tensors are referenced, not copied.

    InvalidArgument, with the path, where the tree holds what cannot be kept, holds itself, or is too deep.
    """
    writer = _Writer()
    node = writer.node(tree, "")
    return Flat(writer.tensors, f'{{"version":{_VERSION},"tree":{node}}}')


def plan_restore(
    text: str,
    stored: Mapping[str, Stored],
    tree: Any,
    describe: Callable[[Any], Stored],
    empty: Callable[[Stored, str], Any],
) -> Plan:
    """Lays a checkpoint over the caller's tree. Changes nothing yet; calls state_dict() on the tree's objects.

    `describe` tells a tensor's dtype and shape, `empty` makes a CPU tensor, "torch" or "numpy". None, or any plain
    value, is a placeholder that takes whatever is stored. Plain values are the checkpoint's, containers of plain values
    only as a whole. Within an object other than a torch module, names on one side only are load_state_dict's business.

    InvalidArgument, listing all of them, where the tree and the checkpoint differ in names, shapes or dtypes.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    writer = _Writer()
    tensors: dict[str, Any] = {}

    def leaf(kind: str, like: Any, name: str, strict: bool) -> Any:
        found = stored.get(name)
        if found is None:
            raise Corrupt(f'the checkpoint\'s tree names the tensor "{name}", but no shard holds it')
        if writer.is_tensor(like):
            writer.node(like, name)  # Refuses what cannot be kept.
            expected = describe(like)
            if expected != found:
                reader.differ.append(f"{_readable(name)}: expected {expected}, found {found}")
            elif numpy and isinstance(like, numpy.ndarray) and not like.flags.writeable:
                reader.differ.append(f"{_readable(name)}: expected an array that can be written, found a read-only one")
            tensors[name] = like
        elif strict and not _is_plain(like):
            reader.differ.append(f"{_readable(name)}: expected {_kind(like)}, found a tensor, {found}")
        else:
            tensors[name] = empty(found, kind)
        return tensors.get(name)

    reader = _Reader(leaf, _scalar, torch.nn.Module if torch else None)
    result = reader.node(_parse(text), tree, "", True)
    reader.raise_differences()
    return Plan(tensors, result, reader.loads)


def build(text: str, tensors: Mapping[str, Any]) -> Any:
    """Makes a tree from scratch. An object becomes its state dict, an Enum member an EnumName, a namedtuple one of a
    class made for it. NotFound where the text names a tensor that is not given."""

    def leaf(_kind: str, _like: Any, name: str, _strict: bool) -> Any:
        if name not in tensors:
            raise NotFound(f'no tensor "{name}" was given')
        return tensors[name]

    return _Reader(leaf, _scalar, None).node(_parse(text), None, "", False)


def names(text: str) -> list[str]:
    """The names of the tensors in a text, in the tree's order."""
    return list(_kinds(_parse(text), ""))


def kinds(text: str) -> dict[str, str]:
    """The names of the tensors in a text, in the tree's order, each with "torch" or "numpy"."""
    return _kinds(_parse(text), "")


def _kinds(node: Any, name: str) -> dict[str, str]:
    found: dict[str, str] = {}

    def leaf(kind: str, _like: Any, leaf_name: str, _strict: bool) -> None:
        found[leaf_name] = kind

    _Reader(leaf, lambda _: None, None).node(node, None, name, False)
    return found


class _Writer:
    """One walk over a tree. Every method returns the text of one node; tensors gather on the side."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self._objects = 0
        self._known_keys: set[tuple[str, ...]] = set()  # Small dicts' keys that need no escape.
        self._open: set[int] = set()  # ids of the containers and objects being walked.
        self.kept = dict(_WRITERS)
        self._tensor_types: frozenset[type] = frozenset()
        self._array_type: type | None = None
        if torch := sys.modules.get("torch"):
            self._strided = (torch.strided, False, False, False)
            self._tensor_types = frozenset({torch.Tensor, torch.nn.Parameter})
            self.kept.update(dict.fromkeys(self._tensor_types, _Writer._tensor))
            self.kept[torch.Size] = lambda w, v, name: w._sequence("size", v, name)
            self.kept[torch.dtype] = lambda _w, v, _name: f'["dtype",{_quote(str(v).removeprefix("torch."))}]'
            self.kept[torch.device] = lambda _w, v, _name: f'["device",{_quote(str(v))}]'
        if numpy := sys.modules.get("numpy"):
            self._array_type = numpy.ndarray
            self.kept[numpy.ndarray] = _Writer._array

    def is_tensor(self, value: Any) -> bool:
        """Also for subclasses, which node() then refuses."""
        return isinstance(value, tuple(self._tensor_types)) or (
            self._array_type is not None and isinstance(value, self._array_type)
        )

    def node(self, value: Any, name: str) -> str:
        write = self.kept.get(type(value))
        return write(self, value, name) if write else self._other(value, name)

    def _int(self, value: int, _name: str) -> str:
        return str(value) if -(2**63) <= value < 2**63 else f'["int","{value:#x}"]'

    def _float(self, value: float, _name: str) -> str:
        return repr(value) if math.isfinite(value) else f'["float","{value}"]'

    def _complex(self, value: complex, name: str) -> str:
        return f'["complex",{self._float(value.real, name)},{self._float(value.imag, name)}]'

    def _str(self, value: str, name: str) -> str:
        if not _is_unicode(value):
            raise InvalidArgument(f"{_readable(name)}: a str with a lone surrogate is not Unicode text; use bytes")
        return _quote(value)

    def _bytes(self, value: bytes, _name: str) -> str:
        return f'["bytes","{base64.b64encode(value).decode()}"]'

    def _tensor(self, value: Any, name: str) -> str:
        self._check_strided((value,), (name,))
        self.tensors[name or "~t"] = value
        return '["t"]'

    def _check_strided(self, values: Collection[Any], names: Iterable[str]) -> None:
        if set(map(_FACTS, values)) == {self._strided}:
            return
        for value, name in zip(values, names, strict=True):
            layout, meta, quantized, nested = facts = _FACTS(value)
            if facts != self._strided:
                which = "nested" if nested else "quantized" if quantized else "meta" if meta else str(layout)
                raise InvalidArgument(f"{_readable(name)}: a {which} tensor cannot be kept, only a dense, strided one")

    def _array(self, value: Any, name: str) -> str:
        if value.dtype.kind not in "biufc" or not value.dtype.isnative:
            raise InvalidArgument(
                f"{_readable(name)}: a numpy array of dtype {value.dtype!s} cannot be kept, only bool, int, float and "
                "complex in this machine's byte order"
            )
        self.tensors[name or "~t"] = value
        return '["a"]'

    def _enter(self, value: Any, name: str) -> None:
        if id(value) in self._open:
            raise InvalidArgument(f"{_readable(name)}: {_kind(value)} that holds itself cannot be kept")
        if len(self._open) == _MAX_DEPTH:
            raise InvalidArgument(f"{_readable(name)}: the tree is deeper than {_MAX_DEPTH} levels")
        self._open.add(id(value))

    def _mapping(self, head: str, value: dict[Any, Any], name: str) -> str:
        # Column by column, not item by item: 100,000 tensors pass here while the caller waits.
        self._enter(value, name)
        text_keys = _TEXT.issuperset(map(type, value))
        parts: Collection[str] = value
        if not text_keys or not (tuple(value) in self._known_keys if len(value) <= 8 else _are_names(value)):
            if text_keys and len(value) <= 8 and _are_names(value):
                self._known_keys.add(tuple(value))  # Optimizers have one such dict for each parameter.
            parts = [_part(key, name) for key in value]
        children: Collection[str] = [f"{name}/{part}" for part in parts] if name else parts
        nodes: Iterable[str]
        if value and self._tensor_types.issuperset(map(type, value.values())):
            self._check_strided(value.values(), children)
            self.tensors.update(zip(children, value.values(), strict=True))
            if text_keys and not head:
                self._open.remove(id(value))
                return "{" + ':["t"],'.join(map(_quote, value)) + ':["t"]}'
            nodes = ['["t"]'] * len(value)
        else:
            nodes = [self.node(child, path) for child, path in zip(value.values(), children, strict=True)]
        self._open.remove(id(value))
        if text_keys and not head:
            return "{" + ",".join([f"{_quote(key)}:{node}" for key, node in zip(value, nodes, strict=True)]) + "}"
        pairs = [f",{self.node(key, name)},{node}" for key, node in zip(value, nodes, strict=True)]
        return "[" + (head or '"dict"') + "".join(pairs) + "]"

    def _ordered(self, value: Any, name: str) -> str:
        metadata = getattr(value, "_metadata", None)
        return self._mapping(f'"odict",{self.node(metadata, _join(name, "~m"))}', value, name)

    def _sequence(self, tag: str, value: Iterable[Any], name: str) -> str:
        if _NUMBERS.issuperset(map(type, value)):
            return f"[{','.join((_quote(tag), *[self.node(child, name) for child in value]))}]"
        self._enter(value, name)
        prefix = f"{name}/" if name else ""
        nodes = [self.node(child, f"{prefix}{i}") for i, child in enumerate(value)]
        self._open.remove(id(value))
        return f"[{','.join((_quote(tag), *nodes))}]"

    def _set(self, tag: str, value: Iterable[Any], name: str) -> str:
        before = len(self.tensors) + self._objects
        nodes = [self.node(child, _join(name, str(i))) for i, child in enumerate(value)]
        if len(self.tensors) + self._objects != before:
            raise InvalidArgument(f"{_readable(name)}: tensors and objects cannot be kept in a set; use a list")
        return f"[{','.join((_quote(tag), *sorted(nodes)))}]"

    def _other(self, value: Any, name: str) -> str:
        kind, numpy = type(value), sys.modules.get("numpy")
        if _is_stateful(value):
            self._enter(value, name)
            node = self.node(value.state_dict(), name)
            self._open.remove(id(value))
            self._objects += 1
            return f'["state",{node}]'
        if isinstance(value, Enum) and value.name in kind.__members__:
            return f'["enum",{_quote(kind.__qualname__)},{_quote(value.name)}]'
        if isinstance(value, tuple) and _fields(kind):
            head, fields = self._sequence("namedtuple", value, name), " ".join(_fields(kind))
            return head.replace('"namedtuple"', f'"namedtuple",{_quote(kind.__qualname__)},{_quote(fields)}', 1)
        if numpy and isinstance(value, numpy.generic) and value.dtype.type is kind and value.dtype.kind in "biufcmM":
            return f'["numpy",{_quote(value.dtype.str)},"{value.tobytes().hex()}"]'
        raise InvalidArgument(f"{_readable(name)}: {_kind(value)} cannot be kept; {self._hint(value)}")

    def _hint(self, value: Any) -> str:
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Generator):
            return "keep its get_state(), or cairn.RngState for the default generators"
        if torch and isinstance(value, torch.Tensor):
            return "of tensors only torch.Tensor and torch.nn.Parameter themselves"
        if self._array_type and isinstance(value, self._array_type):
            return "numpy.array(...) makes a plain array of it"
        if isinstance(value, Enum):
            return "of a Flag only single members; keep its value"
        for base in (defaultdict, dict, list, tuple, set, frozenset, int, float, complex, str, bytes):
            if isinstance(value, base):
                plain = "dict" if base is defaultdict else base.__name__
                return f"a subclass would come back as another type: convert it with {plain}(...)"
        return _ALLOWED


_WRITERS: dict[type, Callable[[_Writer, Any, str], str]] = {
    type(None): lambda _w, _v, _name: "null",
    bool: lambda _w, v, _name: "true" if v else "false",
    int: _Writer._int,
    float: _Writer._float,
    complex: _Writer._complex,
    str: _Writer._str,
    bytes: _Writer._bytes,
    dict: lambda w, v, name: w._mapping("", v, name),
    OrderedDict: _Writer._ordered,
    Counter: lambda w, v, name: w._mapping('"counter"', v, name),
    list: lambda w, v, name: w._sequence("list", v, name),
    tuple: lambda w, v, name: w._sequence("tuple", v, name),
    set: lambda w, v, name: w._set("set", v, name),
    frozenset: lambda w, v, name: w._set("frozenset", v, name),
    EnumName: lambda _w, v, _name: f'["enum",{_quote(v.enum)},{_quote(v)}]',
}


class _Reader:
    """One walk over a text, along the caller's tree (`like`) as far as that goes; None is like anything.

    `strict`: names and kinds must agree, and what does not is gathered. Within an object's state they need not.
    """

    def __init__(self, leaf: Callable[..., Any], scalar: Callable[[Any], Any], module: Any) -> None:
        self._leaf, self._scalar, self._module = leaf, scalar, module
        self._known = _Writer().kept
        self.loads: list[tuple[Any, Any]] = []
        self.only_stored: list[str] = []
        self.only_tree: list[str] = []
        self.differ: list[str] = []

    def node(self, node: Any, like: Any, name: str, strict: bool) -> Any:
        if type(like) not in self._known and _is_stateful(like):
            return self._object(node, like, name, strict)
        match node:
            case dict():
                return self._mapping(node, [*node], [*node.values()], like, name, strict)
            case ["t" | "a" as kind]:
                return self._leaf("torch" if kind == "t" else "numpy", like, name or "~t", strict)
            case ["dict", *rest]:
                return self._mapping(node, [_key(key) for key in rest[::2]], rest[1::2], like, name, strict)
            case ["counter", *rest]:
                keys = [_key(key) for key in rest[::2]]
                return Counter(self._mapping(node, keys, rest[1::2], like, name, strict))
            case ["odict", metadata, *rest]:
                above = self.node(metadata, None, _join(name, "~m"), False)
                keys = [_key(key) for key in rest[::2]]
                ordered = OrderedDict(self._mapping(node, keys, rest[1::2], like, name, strict))
                if metadata is not None:
                    vars(ordered)["_metadata"] = above
                return ordered
            case ["list", *rest]:
                return self._sequence(node, rest, like, name, strict)
            case ["tuple", *rest]:
                return tuple(self._sequence(node, rest, like, name, strict))
            case ["namedtuple", str(kind), str(fields), *rest] if len(rest) == len(fields.split()):
                fits = isinstance(like, tuple) and _fields(type(like)) == tuple(fields.split())
                if strict and not fits and _fields(type(like)):
                    self._differs(name, like, f"a namedtuple {kind} of {fields}")
                made: Any = type(like) if fits else _namedtuple(kind.rpartition(".")[2], fields)
                return made._make(self._sequence(node, rest, like, name, strict))
            case ["set" | "frozenset" as kind, *rest]:
                return self._set(frozenset if kind == "frozenset" else set, rest, like, name, strict)
            case ["state", inner]:
                return self.node(inner, like, name, strict)
            case ["enum", str(), str(member)] if isinstance(like, Enum):
                if member not in type(like).__members__:
                    self._differs(name, like, f'"{member}"')
                return type(like).__members__.get(member)
        if strict and not _is_plain(like):
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
        self.differ.append(f"{_readable(name)}: expected {_kind(like)}, found {found}")

    def _mapping(
        self, node: Any, keys: list[Any], nodes: list[Any], like: Any, name: str, strict: bool
    ) -> dict[Any, Any]:
        parts = dict(zip([_part(key, name) for key in keys], nodes, strict=False))
        if not len(parts) == len(keys) == len(nodes):
            raise Corrupt(f"the checkpoint's tree: {_readable(name)}: expected one value for each key")
        theirs = {_part(key, name): child for key, child in like.items()} if isinstance(like, dict) else None
        return dict(zip(keys, self._children(node, parts, like, theirs, name, strict), strict=True))

    def _sequence(self, node: Any, nodes: list[Any], like: Any, name: str, strict: bool) -> list[Any]:
        theirs = {str(i): child for i, child in enumerate(like)} if isinstance(like, (list, tuple)) else None
        return self._children(node, {str(i): child for i, child in enumerate(nodes)}, like, theirs, name, strict)

    def _children(
        self, node: Any, parts: dict[str, Any], like: Any, theirs: dict[str, Any] | None, name: str, strict: bool
    ) -> list[Any]:
        if theirs is None:
            if strict and not _is_plain(like):
                self._differs(name, like, "a dict" if isinstance(node, dict) else f"a {node[0]}")
            theirs, strict = {}, False
        elif strict and name and _is_plain(like) and not _kinds(node, ""):
            strict = False  # Plain values on both sides: the checkpoint's as a whole. The root's names always count.
        if strict:
            self.only_stored += [_readable(_join(name, part)) for part in parts if part not in theirs]
            self.only_tree += [_readable(_join(name, part)) for part in theirs if part not in parts]
            parts = {part: child if part in theirs else None for part, child in parts.items()}
        return [self.node(child, theirs.get(part), _join(name, part), strict) for part, child in parts.items()]

    def _set(self, kind: type, nodes: list[Any], like: Any, name: str, strict: bool) -> Any:
        if strict and not _is_plain(like):
            self._differs(name, like, "a set")
        classes = {type(item).__qualname__: item for item in like} if isinstance(like, (set, frozenset)) else {}
        tagged = [node[1] if isinstance(node, list) and len(node) > 1 else None for node in nodes]
        likes = [classes.get(tag) if isinstance(tag, str) else None for tag in tagged]
        try:
            return kind([self.node(node, item, name, False) for node, item in zip(nodes, likes, strict=True)])
        except TypeError as error:
            raise Corrupt(f"the checkpoint's tree: {_readable(name)}: {error}") from error

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
            writer = _Writer()
            writer.node(state, name)
            saved = _kinds(inner, name)
            self.only_stored += [_readable(path) for path in saved if path not in writer.tensors]
            self.only_tree += [_readable(path) for path in writer.tensors if path not in saved]
        return like


def _scalar(node: Any) -> Any:
    try:
        match node:
            case None | bool() | int() | float() | str():
                return node
            case ["int", str(text)]:
                return int(text, 16)
            case ["float", str(text)]:
                return float(text)
            case ["complex", real, imag]:
                return complex(_scalar(real), _scalar(imag))
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


def _key(node: Any) -> Any:
    key = _scalar(node)
    if type(key) not in (str, int, bool, type(None)):
        raise Corrupt(f"the checkpoint's tree: expected a key, found {reprlib.repr(node)}")
    return key


def _parse(text: str) -> Any:
    try:
        match json.loads(text):
            case {"version": int(version), "tree": tree} if version <= _VERSION:
                pass
            case {"version": int(version)} if version > _VERSION:
                raise Unsupported(f"the checkpoint's tree has version {version}, this Cairn reads {_VERSION}")
            case _:
                raise Corrupt("the checkpoint's tree: expected an object with version and tree")
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"the checkpoint's tree: {error}") from error
    level = [tree]
    for _ in range(_MAX_DEPTH + 3):
        level = [n for n in level if isinstance(n, (dict, list))]
        level = [child for n in level for child in (n.values() if isinstance(n, dict) else n)]
    if level:
        raise Corrupt(f"the checkpoint's tree: deeper than {_MAX_DEPTH} levels")
    return tree


def _part(key: Any, name: str) -> str:
    """The component of a tensor's name that stands for a key of the container at `name`."""
    if type(key) is str and _is_unicode(key):
        part = key.replace("~", "~0").replace("/", "~1")
        return "~s" + part if _READS_OTHERWISE.fullmatch(part) else part
    if type(key) in (int, bool, type(None)) and (key is None or key.bit_length() <= 4096):
        return str(key)
    raise InvalidArgument(
        f"{_readable(name)}: the key {reprlib.repr(key)} of type {_type(key)} cannot be kept; keys are str in Unicode, "
        "int (at most 4,096 bits), bool or None"
    )


def _are_names(keys: Iterable[str]) -> bool:
    """Whether each key is its own component, with nothing to escape. Never a wrong yes; for many keys at once."""
    text = "\0".join(keys)
    return "~" not in text and "/" not in text and text.isascii() and _FIRST_OF_THOSE.isdisjoint({k[:1] for k in keys})


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _join(name: str, part: str) -> str:
    return f"{name}/{part}" if name else part


def _readable(name: str) -> str:
    """A tensor's name as a path for messages: keys that look like others, or hold a slash, are quoted."""
    if name in ("", "~t"):
        return "the tree"
    parts = ["_metadata" if part == "~m" else part for part in name.split("/")]
    return "/".join(repr(p.removeprefix("~s").replace("~1", "/").replace("~0", "~")) if "~" in p else p for p in parts)


def _is_stateful(value: Any) -> bool:
    return (
        callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
        and not isinstance(value, type)
    )


def _is_plain(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether there is no tensor and no object in it."""
    if type(value) in _PLAIN or isinstance(value, (Enum, EnumName)):
        return True
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        children = value.values() if isinstance(value, dict) else value
        return depth > 0 and not _is_stateful(value) and all(_is_plain(child, depth - 1) for child in children)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch and isinstance(value, (torch.dtype, torch.device)):
        return True
    return bool(numpy and isinstance(value, numpy.generic))


def _fields(kind: type) -> tuple[str, ...]:
    fields = getattr(kind, "_fields", ())
    return fields if isinstance(fields, tuple) and issubclass(kind, tuple) else ()


@lru_cache(maxsize=256)
def _namedtuple(name: str, fields: str) -> Any:
    try:
        return namedtuple(name, fields)
    except ValueError as error:
        raise Corrupt(f"the checkpoint's tree: {error}") from error


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _kind(value: Any) -> str:
    return f"a value of type {_type(value)}"
