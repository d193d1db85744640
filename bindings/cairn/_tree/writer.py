"""Writes a tree's text and gives its tensors to a sink. See _tree."""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import chain
from json.encoder import encode_basestring as _quote
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from .. import _core
from .._errors import InvalidArgument
from . import values
from .arrays import MORE_DTYPES, as_numpy, is_foreign
from .optimizers import optimizer_of
from .paths import (
    MAX_DEPTH,
    EnumName,
    class_of,
    fields_of,
    is_stateful,
    is_unicode,
    join,
    kind_name,
    noted,
    part_of,
    readable,
    refuse_classless,
)
from .schedulers import classes_of
from .taken import elements_of, items_of

PACKED = 4  # The version of a text that has packed lists: tree's and DCP's.
_TEXT = frozenset({str})
_LONGEST = 64 << 20  # Of one str or bytes, as in plain_text.cc: they are copied in the call, outside of host_memory.
_MOST = 100_000_000  # Bytes of them all.
_HEAVY = 1 << 20
_MARK = "\0"  # Not in JSON.
_DICT = '"dict"'
_FACTS = attrgetter("layout", "is_meta", "is_quantized", "is_nested")
_ALLOWED = (
    "a tree holds tensors, arrays (numpy's, and those with __array__ or __dlpack__), numpy scalars, None, bool, int, "
    "float, complex, str, bytes, bytearray, BytesIO, paths, dates and times, range, slice, Enum members, torch dtypes and "
    "devices, dict, OrderedDict, Counter, list, tuple, namedtuple, deque, dataclasses, set, frozenset, and objects with "
    "state_dict and load_state_dict"
)


class Sink(Protocol):
    """Takes the tensors of a tree, under their names."""

    def add(self, name: str, tensor: Any) -> None:
        """Takes a tensor that is known to be dense and strided."""

    def state_of(self, holder: Any) -> Any:
        """The state_dict() of an object."""

    def add_all(
        self, keys: list[Any], values: list[Any], prefix: str, mark: str, nests: bool, node: Callable[[Any, str], str]
    ) -> str | None:
        """Takes a dict or list at once and returns its text, or None and does nothing; see TreeTensors in bindings/."""


class Names:
    """A sink that only keeps the tensors, by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def add(self, name: str, tensor: Any) -> None:
        self.tensors[name] = tensor

    def state_of(self, holder: Any) -> Any:
        return holder.state_dict()

    def add_all(self, *_: Any) -> None:
        return None


def _check_length(value: str | bytes, name: str) -> None:
    if len(value) > _LONGEST:
        raise InvalidArgument(
            f"{readable(name)}: {kind_name(value)} with a length of {len(value):,}; plain values are copied in the call, "
            f"with at most {_LONGEST:,} each: keep it as a tensor of uint8"
        )


def _check_attributes(value: Any, kept: set[str], name: str) -> None:
    if more := getattr(value, "__dict__", {}).keys() - kept:
        raise InvalidArgument(
            f"{readable(name)}: {kind_name(value)} has attributes that would be lost: {', '.join(sorted(more))}; keep them "
            "beside it"
        )


class Writer:
    """One walk over a tree. Every method returns the text of one node; the tensors go to the sink."""

    def __init__(self, sink: Sink, sets_aside: bool = False) -> None:
        """If it `sets_aside`, long texts are marks in what the methods return, and `whole` puts them in."""
        self._sink = sink
        self._aside: list[str] | None = [] if sets_aside else None
        self._leaves = 0  # What no set may hold: tensors, arrays, objects and dataclasses.
        self.optimizers: dict[str, Any] = {}  # torch's, by path.
        self.objects: dict[str, str] = {}  # The classes of others that only their position tells apart, by path.
        self.schedulers: dict[str, list[str]] = {}  # The classes of torch's, by path: see schedulers.
        self.modules: list[tuple[str, Any]] = []  # torch's, with their paths; and their state dicts.
        self.states: list[Any] = []
        self.begin()
        self.version = 1  # Of the text: 2 if it has nodes that version 1 lacks, PACKED if it has those.
        self._open: set[int] = set()  # ids of the containers and objects being walked.
        self.kept = dict(_WRITERS)
        self._tensor_types: frozenset[type] = frozenset()
        self._array_type: type | None = None
        self._module: type | None = None
        if torch := sys.modules.get("torch"):
            self._module = torch.nn.Module
            self._strided = (torch.strided, False, False, False)
            self._tensor_types = frozenset({torch.Tensor, torch.nn.Parameter})
            self._is_wrapped: Callable[[Any], bool] = torch._C._functorch.is_functorch_wrapped_tensor
            self._is_functional: Callable[[Any], bool] = torch._is_functional_tensor
            self._as_bytes = {getattr(torch, of): of for of in values.AS_BYTES if hasattr(torch, of)}
            self.kept.update(dict.fromkeys(self._tensor_types, Writer._tensor))
            self.kept[torch.Size] = lambda w, v, name: w._sequence("size", v, name)
            self.kept[torch.dtype] = lambda _w, v, _name: f'["dtype",{_quote(str(v).removeprefix("torch."))}]'
            self.kept[torch.device] = lambda _w, v, _name: f'["device",{_quote(str(v))}]'
        if numpy := sys.modules.get("numpy"):
            self._array_type = numpy.ndarray
            self.kept[numpy.ndarray] = Writer._array

    def begin(self) -> None:
        """Counts plain values anew."""
        self._left = _MOST  # Characters that plain values may still have. Below 0 none of their texts is kept any more.
        self._heavies: list[tuple[int, str, Any]] = []  # Long texts, their paths, and what they are of.

    def is_tensor(self, value: Any) -> bool:
        """True also for subclasses, which node() refuses."""
        return isinstance(value, tuple(self._tensor_types)) or (
            self._array_type is not None and isinstance(value, self._array_type)
        )

    def is_dense(self, value: Any) -> bool:
        """Whether it is a tensor that _tensor does not refuse."""
        return (
            type(value) in self._tensor_types
            and _FACTS(value) == self._strided
            and not self._is_wrapped(value)
            and not self._is_functional(value)
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
        if not is_unicode(value):
            raise InvalidArgument(f"{readable(name)}: a str with a lone surrogate is not Unicode text; use bytes")
        _check_length(value, name)
        return self._leaf(_quote(value), name, value)

    def _bytes(self, value: bytes, name: str) -> str:
        _check_length(value, name)
        return self._leaf(f'["bytes","{base64.b64encode(value).decode()}"]', name, value)

    def _tensor(self, value: Any, name: str) -> str:
        layout, meta, quantized, nested = facts = _FACTS(value)
        if facts != self._strided:
            which = "nested" if nested else "quantized" if quantized else "meta" if meta else str(layout)
            way_out = "; it has no memory yet: to_empty(device=...), or the module's, gives it some" if meta else ""
            raise InvalidArgument(
                f"{readable(name)}: a {which} tensor cannot be kept, only a dense, strided one{way_out}"
            )
        if self._is_wrapped(value) or self._is_functional(value):
            raise InvalidArgument(
                f"{readable(name)}: a tensor within torch.func's vmap, grad or functionalize has no memory of its own: save "
                "outside of the transformed function"
            )
        self._leaves += 1
        self._sink.add(name or "~t", value)
        return self._later(f'["t","{self._as_bytes[value.dtype]}"]') if value.dtype in self._as_bytes else '["t"]'

    def _array(self, value: Any, name: str) -> str:
        known = value.dtype.kind in "biufc" or value.dtype.name in MORE_DTYPES
        if not known or not value.dtype.isnative:
            raise InvalidArgument(
                f"{readable(name)}: a numpy array of dtype {value.dtype!s} cannot be kept, only bool, int, float and "
                "complex in this machine's byte order"
            )
        self._leaves += 1
        self._sink.add(name or "~t", value)
        return self._later(f'["a","{value.dtype}"]') if str(value.dtype) in values.AS_BYTES else '["a"]'

    def _heavy(self, text: str, name: str, value: Any) -> str:
        if len(text) > _HEAVY:
            self._heavies.append((len(text), name, value))
        return text

    def _leaf(self, text: str, name: str, value: Any) -> str:
        if len(text) > self._left:
            return self._too_long(name, value)
        self._left -= len(text)
        return self._heavy(text, name, value)

    def _too_long(self, name: str, value: Any) -> str:
        """Instead of a text that passes the limit: what is in a tree many times would be kept as often."""
        if self._left >= 0:
            self._heavies.append((_plain_length(value), name, value))
        self._left = -1
        return ""

    def check_length(self, *texts: str, shown: Callable[[str], str] = readable) -> None:
        """InvalidArgument if these texts, which are all, are too long; names what most of them is of."""
        if self._left >= 0 and (sum(map(len, texts)) <= _LONGEST or sum(len(text.encode()) for text in texts) <= _MOST):
            return
        heaviest: tuple[int, str, Any] = max(self._heavies, key=itemgetter(0), default=(0, "", None))
        length, most, value = heaviest
        while type(value) in (dict, list, tuple):
            children = value.items() if isinstance(value, dict) else enumerate(value)
            key, value = next(
                ((key, child) for key, child in children if 2 * _plain_length(child) > length), ("", None)
            )
            most = most if value is None else join(most, part_of(key, most))
        raise InvalidArgument(
            f"{shown(most)}: plain values of more than {_MOST:,} bytes in all; they are copied in the call: keep long lists "
            "as tensors or numpy arrays, and text as a tensor of uint8"
        )

    def _later(self, text: str) -> str:
        self.version = max(self.version, 2)
        return text

    def _enter(self, value: Any, name: str) -> None:
        if id(value) in self._open:
            raise InvalidArgument(f"{readable(name)}: {kind_name(value)} that holds itself cannot be kept")
        if len(self._open) == MAX_DEPTH:
            raise InvalidArgument(f"{readable(name)}: the tree is deeper than {MAX_DEPTH} levels")
        self._open.add(id(value))

    def _plain(self, value: Any, name: str, tag: str = "") -> str | None:
        """The text of a dict, list or tuple with nothing but plain values in it, all at once: there may be millions. None
        for others, or if something in it has to be refused."""
        if (found := _core.plain_text(value, MAX_DEPTH + 1 - len(self._open), max(self._left, 0), tag)) is None:
            return None
        text, packed = found
        if not text:
            return self._too_long(name, value)
        self._left -= len(text)
        self.version = max(self.version, PACKED if packed else 1)
        text = self._heavy(text, name, value)
        if self._aside is None or len(text) <= _HEAVY or tag not in ("", "list", "tuple"):
            return text
        self._aside.append(text)
        return f"{_MARK}{len(self._aside) - 1}{_MARK}"

    def whole(self, text: str) -> str:
        """The text with what was set aside."""
        if not self._aside:
            return text
        parts = text.split(_MARK)
        parts[1::2] = [self._aside[int(mark)] for mark in parts[1::2]]
        return "".join(parts)

    def _mapping(self, head: str, value: dict[Any, Any], name: str) -> str:
        as_object = not head
        if as_object and type(value) is dict and (plain := self._plain(value, name)) is not None:
            return plain
        keys, children = items_of(value, name)
        self._enter(value, name)
        # In C++ if possible: there may be 100,000 tensors, and the caller waits.
        nests = len(self._open) < MAX_DEPTH
        text = self._sink.add_all(keys, children, name, ":" if as_object else ",", nests, self.node)
        if text is None and as_object and not _TEXT.issuperset(map(type, keys)):
            as_object = False
            text = self._sink.add_all(keys, children, name, ",", nests, self.node)
        if text is None:
            named = zip(keys, children, strict=True)
            nodes = [self.node(child, join(name, part_of(key, name))) for key, child in named]
            texts = map(_quote, keys) if as_object else [self.node(key, name) for key in keys]
            text = ",".join(map(":".join if as_object else ",".join, zip(texts, nodes, strict=True)))
        self._open.remove(id(value))
        return self._heavy(f"{{{text}}}" if as_object else f"[{head or _DICT}{',' if text else ''}{text}]", name, None)

    def _ordered(self, value: Any, name: str) -> str:
        metadata = getattr(value, "_metadata", None)
        _check_attributes(value, {"_metadata"}, name)
        keys, children = items_of(value, name)
        # Such as the metadata of a module's state_dict(), which has an item for each module.
        if metadata is None and _TEXT.issuperset(map(type, keys)) and not any(map(self.is_tensor, children[:1])):
            pairs = [None, *chain.from_iterable(zip(keys, children, strict=True))]
            if (plain := self._plain(pairs, name, "odict")) is not None:
                return plain
        return self._mapping(f'"odict",{self.node(metadata, join(name, "~m"))}', value, name)

    def _sequence(self, tag: str, value: Iterable[Any], name: str) -> str:
        at_once = value if type(value) in (list, tuple) else elements_of(value, name)
        if (plain := self._plain(at_once, name, tag)) is not None:
            return plain
        children = elements_of(value, name)
        self._enter(value, name)
        nests = len(self._open) < MAX_DEPTH
        text = self._sink.add_all([*range(len(children))], children, name, "", nests, self.node)
        if text is None:
            text = ",".join(self.node(child, join(name, str(i))) for i, child in enumerate(children))
        self._open.remove(id(value))
        return self._heavy(f"[{_quote(tag)},{text}]", name, None)

    def _deque(self, value: deque[Any], name: str) -> str:
        head, nodes = '["deque"', self._sequence("deque", value, name)
        return self._later(f"{head},{'null' if value.maxlen is None else value.maxlen}{nodes[len(head) :]}")

    def _set(self, tag: str, value: Iterable[Any], name: str) -> str:
        before, children = self._leaves, elements_of(value, name)
        nodes = [self.whole(self.node(child, join(name, str(i)))) for i, child in enumerate(children)]
        # A tuple's tensors were taken in C++. In a str the quotes would be escaped.
        if self._leaves != before or any('["t"' in node for node in nodes):
            raise InvalidArgument(
                f"{readable(name)}: tensors, objects and dataclasses cannot be kept in a set; use a list"
            )
        if own := [child for child in children if values.is_hashed_by_code(child)]:
            raise InvalidArgument(
                f"{readable(name)}: {kind_name(own[0])} cannot be kept in a set, because its hash is code of its class, "
                "and loading runs none; use a list"
            )
        return f"[{','.join((_quote(tag), *sorted(nodes)))}]"

    def _other(self, value: Any, name: str) -> str:
        kind, numpy = type(value), sys.modules.get("numpy")
        refuse_classless(value, name)
        if is_stateful(value):
            self._enter(value, name)
            if (optimizer := optimizer_of(value)) is not None:
                self.optimizers[name] = optimizer
            elif classes := classes_of(value):
                self.schedulers[name] = classes
            elif name.rpartition("/")[2].isdecimal():
                self.objects[name] = class_of(value).__name__
            with noted(f"state_dict() of {kind_name(value)} at {readable(name)}"):
                state = self._sink.state_of(value)
            if self._module is not None and isinstance(value, self._module):
                self.modules.append((name, value))
                self.states.append(state)
            node = self.node(state, name)
            self._open.remove(id(value))
            self._leaves += 1
            return f'["state",{node}]'
        if isinstance(value, Enum) and value.name in kind.__members__:
            return f'["enum",{self.class_name(kind)},{_quote(value.name)}]'
        if isinstance(value, str) and not getattr(value, "__dict__", None):
            return self._str(
                str.__str__(value), name
            )  # torch.__version__, numpy.str_: comes back as the text that it is.
        if (held := values.dataclass_fields(value)) is not None:
            return self._dataclass(value, held, name)
        if isinstance(value, tuple) and fields_of(kind):
            _check_attributes(value, set(), name)
            head, fields = self._sequence("namedtuple", value, name), " ".join(fields_of(kind))
            return head.replace('"namedtuple"', f'"namedtuple",{self.class_name(kind)},{_quote(fields)}', 1)
        if numpy and isinstance(value, numpy.generic) and value.dtype.type is kind and value.dtype.kind in "biufcmM":
            return f'["numpy",{_quote(value.dtype.str)},"{value.tobytes().hex()}"]'
        if is_foreign(value):
            return self._array(as_numpy(value, name), name)
        raise InvalidArgument(f"{readable(name)}: {kind_name(value)} cannot be kept; {self._hint(value)}")

    def class_name(self, kind: type) -> str:
        """What the text calls the class of an Enum member or a namedtuple, quoted."""
        return _quote(kind.__qualname__)

    def _dataclass(self, value: Any, fields: dict[str, Any], name: str) -> str:
        if why := values.why_not_kept(value, fields):
            raise InvalidArgument(f"{readable(name)}: {kind_name(value)} cannot be kept: {why}")
        self._leaves += 1
        return self._later(f'["dataclass",{_quote(values.class_path(type(value)))},{self._mapping("", fields, name)}]')

    def _hint(self, value: Any) -> str:
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Generator):
            return "keep its get_state(), or cairn.RngState for the default generators"
        if torch and isinstance(value, torch.Tensor):
            if type(value).__name__ == "DTensor":
                return (
                    "of a DTensor each rank has a part: cairn.dcp saves them, or keep its to_local() or full_tensor()"
                )
            return "of tensors only torch.Tensor and torch.nn.Parameter themselves"
        if self._array_type and isinstance(value, self._array_type):
            return "numpy.array(...) makes a plain array from it"
        if isinstance(value, Enum):
            return "of a Flag only single members; keep its value"
        for base in (defaultdict, dict, list, tuple, set, frozenset, deque, int, float, complex, str, bytes, bytearray):
            if isinstance(value, base):
                plain = "dict" if base is defaultdict else base.__name__
                return f"a subclass would come back as another type: convert it with {plain}(...)"
        return _ALLOWED


def _plain_length(value: Any) -> int:
    found = _core.plain_text([value], MAX_DEPTH, _MOST)
    return 0 if found is None else len(found[0]) or _MOST + 1


def _later(write: Callable[[Writer, Any, str], str]) -> Callable[[Writer, Any, str], str]:
    return lambda writer, value, name: writer._later(write(writer, value, name))


_WRITERS: dict[type, Callable[[Writer, Any, str], str]] = {
    type(None): lambda _w, _v, _name: "null",
    bool: lambda _w, v, _name: "true" if v else "false",
    int: Writer._int,
    float: Writer._float,
    complex: Writer._complex,
    str: Writer._str,
    bytes: Writer._bytes,
    dict: lambda w, v, name: w._mapping("", v, name),
    OrderedDict: Writer._ordered,
    Counter: lambda w, v, name: w._mapping('"counter"', v, name),
    list: lambda w, v, name: w._sequence("list", v, name),
    tuple: lambda w, v, name: w._sequence("tuple", v, name),
    set: lambda w, v, name: w._set("set", v, name),
    frozenset: lambda w, v, name: w._set("frozenset", v, name),
    deque: Writer._deque,
    **{kind: _later(write) for kind, write in values.WRITERS.items()},
    EnumName: lambda _w, v, _name: f'["enum",{_quote(v.enum)},{_quote(v)}]',
}
