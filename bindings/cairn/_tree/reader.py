"""A tree's text, read along a tree that the caller gives. See _tree."""

from __future__ import annotations

import base64
import importlib
import reprlib
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from .. import _core
from .._errors import Corrupt, InvalidArgument, Unsupported
from . import values
from .optimizers import Beside, Fit, unlike_numbers
from .paths import (
    MAX_DEPTH,
    EnumName,
    fields_of,
    is_compiled,
    is_stateful,
    join,
    kind_name,
    listed,
    namedtuple_of,
    noted,
    part_of,
    readable,
    uncompiled,
    versions_along,
)
from .schedulers import unlike_state
from .values import is_plain
from .writer import Names, Writer

_NESTED = frozenset({dict, list})
_MAX_COLLIDING = 1000  # Keys with one hash: a dict or set of n such takes n * n steps to make.


class Nothing(Enum):
    """Stands in a tree for what the caller lacks, and the checkpoint must lack, too: it has None or an empty list there.
    In a tree those would be placeholders."""

    NOTHING = 0


# A dict's keys and nodes, the caller's dict, its name -> the caller's tensors that fit, NotImplemented for what the walk
# must handle itself; or None for all of it. See TreeTensors in bindings/.
MatchAll = Callable[[list[Any], list[Any], dict[Any, Any], str], list[Any] | None]


class Reader:
    """One walk over a text, along the caller's tree (`like`) as far as that reaches; None matches anything.

    If a node is `strict`, names and kinds must agree, and differences are collected. Within an object's state they may
    differ. `partial`: a strict container keeps what only the tree has, and leaves out what only the checkpoint has; but a
    torch optimizer's state dict gets the state that it lacks, as the optimizer itself would.

    `_orig_mod` in a name is what torch.compile puts there. A key that differs from the tree's only by that matches it.

    `fit` compares an object and its state with the text of its state: see optimizers. `unlike` says what else of them
    differs: see schedulers.

    `find` gives the class of a path where the tree gives none; stand-ins come where it returns None.
    Without it, classes that are imported are used if they fit, and stand-ins otherwise.

    If it `makes` nothing, only the leaves count: plain values are None.
    """

    def __init__(
        self,
        leaf: Callable[..., Any],
        scalar: Callable[[Any], Any],
        module: Any,
        partial: bool = False,
        find: Callable[[str, str], type | None] | None = None,
        match_all: MatchAll | None = None,
        fit: Callable[[Any, Any, Any, str], Fit | None] = lambda *_: None,
        unlike: Callable[[Any, Any, Any, str], str | None] = lambda *_: None,
        makes: bool = True,
    ) -> None:
        self._leaf, self._scalar, self._module = leaf, scalar, module
        self._partial, self._stands_in, self._makes = partial, find is None, makes
        self._find = find or (lambda path, _name: values.find_class(path))
        self._match_all = None if partial else match_all
        self._known = Writer(Names()).kept
        self._optimizer_states: set[str] = set()  # Paths of "state" beside "param_groups".
        self._fit, self._unlike = fit, unlike
        self.fit: Fit | None = None  # Of the optimizer whose state is read.
        self.loads: list[tuple[str, Any, Any, Fit | None]] = []
        self._holder: tuple[Any, str] | None = None  # The object whose state is read, and its path.
        self._objects: dict[int, tuple[str, Any]] = {}  # By id: its first path, and the text of its state there.
        self.twice: list[tuple[str, str]] = []  # Paths of one object.
        self.remarks: list[str] = []
        self.only_stored: list[str] = []
        self.only_tree: list[str] = []
        self.differ: list[str] = []
        self.nothing: list[str] = []  # Modules of which the checkpoint has no tensor.
        self.left: list[tuple[str, Any]] = []  # If partial: what only the tree has, by path.
        self.apart: list[tuple[str, Any]] = []  # And dicts that have no name of the checkpoint's tensors there.
        self.unlike: list[str] = []  # Optimizers among those.
        self.narrowed: list[str] = []  # Optimizers' state, which a cast would narrow.

    def node(self, node: Any, like: Any, name: str, strict: bool) -> Any:
        if like is Nothing.NOTHING:
            self.only_stored += [] if node in (None, ["list"]) else [readable(name)]
            return None
        if type(like) not in self._known and is_stateful(like):
            return self._object(node, like, name, strict)
        # All at once: there may be millions. The root's names always count.
        at_once = type(node) in _NESTED and (like is None or name or not strict)
        if at_once and (found := _core.plain_value(node, like, MAX_DEPTH, self._makes)) is not NotImplemented:
            return found
        match node:
            case dict():
                return self._mapping(node, [*node], [*node.values()], like, name, strict)
            case ["t" | "a" as kind]:
                return self._leaf("torch" if kind == "t" else "numpy", like, name or "~t", strict)
            case ["t" | "a" as kind, str(dtype)] if dtype in values.AS_BYTES:
                return self._leaf(("torch " if kind == "t" else "numpy ") + dtype, like, name or "~t", strict)
            case ["dict", *rest]:
                return self._mapping(node, [key_of(key) for key in rest[::2]], rest[1::2], like, name, strict)
            case ["counter", *rest]:
                keys = [key_of(key) for key in rest[::2]]
                return Counter(self._mapping(node, keys, rest[1::2], like, name, strict))
            case ["odict", None, *rest] if (
                like is None
                and (found := _core.plain_value(["dict", *rest], None, MAX_DEPTH, self._makes)) is not NotImplemented
            ):
                return None if found is None else OrderedDict(found)
            case ["odict", metadata, *rest]:
                above = self.node(metadata, None, join(name, "~m"), False)
                keys = [key_of(key) for key in rest[::2]]
                ordered = OrderedDict(self._mapping(node, keys, rest[1::2], like, name, strict))
                if metadata is not None:
                    vars(ordered)["_metadata"] = versions_along(above, _metadata_of(like))
                return ordered
            case ["list", *rest]:
                return self._sequence(node, rest, like, name, strict)
            case ["tuple", *rest]:
                return tuple(self._sequence(node, rest, like, name, strict))
            case ["deque", None | int() as longest, *rest] if longest is None or len(rest) <= longest <= sys.maxsize:
                given = [*like] if type(like) is deque else like
                return deque(self.node(["list", *rest], given, name, strict) or (), longest)
            case ["dataclass", str(kind), dict(fields)]:
                return self._dataclass(node, kind, fields, like, name, strict)
            case ["namedtuple", str(kind), str(fields), *rest] if len(rest) == len(fields.split()):
                fits = isinstance(like, tuple) and fields_of(type(like)) == tuple(fields.split())
                if strict and not fits and fields_of(type(like)):
                    self._differs(name, like, f"a namedtuple {kind} of {fields}")
                made: Any = type(like) if fits else None
                items = self._sequence(node, rest, like, name, strict)
                if made is None and ":" in kind:
                    found = values.tuple_of(self._find(kind, name), tuple(fields.split()), items)
                    if found is not None:
                        return found
                made = made or namedtuple_of(kind.rpartition(":")[2].rpartition(".")[2], tuple(fields.split()))
                return made._make(items)
            case ["set" | "frozenset" as kind, *rest]:
                return self._set(frozenset if kind == "frozenset" else set, rest, like, name, strict)
            case ["state", inner]:
                return self.node(inner, like, name, strict)
            case ["enum", str(kind), str(member)] if isinstance(like, Enum):
                known = values.member_of(type(like), member)
                if known is None or not _is_named(type(like), kind):
                    of = kind.replace(":", ".")
                    self._differs(name, like, f'"{member}" of the Enum {of}; None in its place takes that')
                return known
        if strict and not is_plain(like):
            self._differs(name, like, "a plain value")
        match node:
            case ["enum", str(kind), str(member)]:
                found = values.member_of(self._find(kind, name), member) if ":" in kind else None
                return EnumName.of(kind, member) if found is None else found
        return self._scalar(node)

    def may_reshape(self, name: str) -> bool:
        """Whether what is read is of an object's state, and its load_state_dict may take a tensor of another shape than it
        has now: a module's, only where it is not torch's own that copies the tensor."""
        if self._holder is None:
            return False
        holder, path = self._holder
        if self._module is None or not isinstance(holder, self._module):
            return not hasattr(holder, "param_groups")
        # Not what lies within the value: an extra state may be a tree.
        *inner, last = name[len(path) + 1 :].partition("/")[0].split(".")
        for part in inner:
            if not isinstance(holder, self._module):
                return False
            if part != "_orig_mod":
                holder = getattr(_plain(holder), part, None)
        holder = _plain(holder)
        if not isinstance(holder, self._module):
            return False  # A hook of the module has named it.
        of = type(holder)
        own_way = getattr(of, "_load_from_state_dict", None) is not self._module._load_from_state_dict
        return (
            last == "_extra_state"
            or is_lazy(getattr(holder, last, None))
            or (own_way and not of.__module__.startswith("torch.nn.modules."))
        )

    def raise_differences(self, where: str, way_out: str) -> None:
        """InvalidArgument, with all of them. If partial, a name on one side only is none. `where` names the checkpoint,
        `way_out` is one for dtypes."""
        one_sided = [] if self._partial else self.one_sided()
        differ = self.differ + self.narrowed
        found = one_sided + ([f"{len(differ)} that differ: {listed(differ)}"] if differ else [])
        if found:
            if one_sided:
                found.append("leave them out of the tree or add them, or restore(..., strict=False) for what both have")
            if self.unlike and not self._partial:
                found.append(
                    f"leave {listed(self.unlike)} out of the tree, or restore(..., strict=False), which matches an "
                    "optimizer's state by the names of its parameters"
                )
            if way_out:
                found.append(way_out)
            raise InvalidArgument("\n  ".join([f"the given tree does not match {where}:", *found]))

    def one_sided(self) -> list[str]:
        """The names on one side only, for messages."""
        return [
            f"{len(items)} only in the {where}: {listed(items)}"
            for items, where in ((self.only_stored, "checkpoint"), (self.only_tree, "given tree"))
            if items
        ]

    def _differs(self, name: str, like: Any, found: str) -> None:
        self.differ.append(f"{readable(name)}: the tree has {kind_name(like)}, the checkpoint has {found}")

    def _mapping(
        self, node: Any, keys: list[Any], nodes: list[Any], like: Any, name: str, strict: bool
    ) -> dict[Any, Any]:
        if not isinstance(node, dict):
            _check_spread(keys, name)
            if not len(keys) == len(nodes) == len(set(keys)):
                raise Corrupt(f"the checkpoint's tree: {readable(name)}: expected one value for each key")
        if strict and isinstance(like, dict) and "param_groups" in like:
            self.differ += unlike_numbers(like, node, name)
        if strict and isinstance(like, dict) and (how := unlike_state(like, node)):
            self.differ.append(f"{readable(name)}: {how}; None in its place takes that")
        if self._match_all and type(like) in (dict, OrderedDict):
            found = self._match_all(keys, nodes, like, name)
            if found is not None:
                return {
                    key: self.node(child, like[key], join(name, key), strict) if one is NotImplemented else one
                    for key, child, one in zip(keys, nodes, found, strict=True)
                }
        parts = dict(zip([part_of(key, name) for key in keys], nodes, strict=True))
        made_keys = dict(zip(parts, keys, strict=True))
        theirs: dict[str, Any] | None = None
        if isinstance(like, dict):
            given = {part_of(key, name): key for key in like}
            renamed = _renamed(parts, given)
            theirs = {renamed.get(part, part): like[key] for part, key in given.items()}
            made_keys |= {renamed.get(part, part): key for part, key in given.items()}
        made = self._children(node, parts, like, theirs, name, strict)
        return {made_keys[part]: value for part, value in made.items()}

    def _sequence(self, node: Any, nodes: list[Any], like: Any, name: str, strict: bool) -> list[Any]:
        theirs = {str(i): child for i, child in enumerate(like)} if isinstance(like, (list, tuple, deque)) else None
        parts = {str(i): child for i, child in enumerate(nodes)}
        return [*self._children(node, parts, like, theirs, name, strict).values()]

    def _children(
        self, node: Any, parts: dict[str, Any], like: Any, theirs: dict[str, Any] | None, name: str, strict: bool
    ) -> dict[str, Any]:
        """The container's values by part: the checkpoint's, along the tree's."""
        if isinstance(like, Beside):
            theirs, strict = dict.fromkeys(parts, like), False
        elif theirs is None:
            if strict and not is_plain(like):
                self._differs(name, like, "a dict" if isinstance(node, dict) else f"a {node[0]}")
            theirs, strict = {}, False
        elif strict and name and (not theirs or (is_plain(like) and not kinds_in(node, ""))):
            # A container without content is a placeholder; plain values on both sides are the checkpoint's as a whole. The
            # root's names always count.
            strict = False
        if strict:
            if self._partial and "param_groups" in parts.keys() & theirs.keys():
                self._optimizer_states.add(join(name, "state"))
            new = [] if name not in self._optimizer_states else [part for part in parts if part not in theirs]
            theirs = {**theirs, **dict.fromkeys(new)}
            self.only_stored += [readable(join(name, part)) for part in parts if part not in theirs]
            self.only_tree += [readable(join(name, part)) for part in theirs if part not in parts]
            if self._partial:
                if name and parts.keys().isdisjoint(theirs) and kinds_in(node, name):
                    self.apart.append((name, theirs))
                self.left += [(join(name, part), child) for part, child in theirs.items() if part not in parts]
                return {
                    part: self.node(parts[part], child, join(name, part), True) if part in parts else child
                    for part, child in theirs.items()
                }
            parts = {part: child if part in theirs else None for part, child in parts.items()}
        return {part: self.node(child, theirs.get(part), join(name, part), strict) for part, child in parts.items()}

    def _dataclass(self, node: Any, kind: str, fields: dict[str, Any], like: Any, name: str, strict: bool) -> Any:
        theirs = values.dataclass_fields(like)
        fits = theirs is not None and theirs.keys() == fields.keys()
        if strict and theirs is not None and not fits:
            found = f"a dataclass {kind} with the fields {', '.join(fields)}; the tree's has {', '.join(theirs)}"
            self._differs(name, like, found)
            return like
        held = self._mapping(node[2], [*fields], [*fields.values()], theirs if fits else like, name, strict)
        try:
            return values.make(type(like) if fits else self._find(kind, name), held)
        except ValueError as error:
            # The class may have changed since the save, so that the text is not damaged.
            if self._stands_in and theirs is None:
                return values.make(None, held)
            raise InvalidArgument(
                f"{readable(name)}: the checkpoint has a dataclass {kind} with the fields {', '.join(fields)}, which "
                f"cannot be made here: {error}"
            ) from error

    def _set(self, kind: type, nodes: list[Any], like: Any, name: str, strict: bool) -> Any:
        if strict and not is_plain(like):
            self._differs(name, like, "a set")
        classes = {type(item).__qualname__: item for item in like} if isinstance(like, (set, frozenset)) else {}
        tagged = [node[1] if isinstance(node, list) and len(node) > 1 else None for node in nodes]
        likes = [classes.get(tag.rpartition(":")[2]) if isinstance(tag, str) else None for tag in tagged]
        items = [self.node(node, item, name, False) for node, item in zip(nodes, likes, strict=True)]
        for item, given in zip(items, likes, strict=True):
            if _holds_dataclass(item):
                raise Corrupt(f"the checkpoint's tree: {readable(name)}: a dataclass in a set")
            if values.is_hashed_by_code(item, type(given)):
                raise InvalidArgument(
                    f"{readable(name)}: the checkpoint has a set with {kind_name(item)}, whose hash is code of its class, "
                    "and loading a checkpoint runs none: restore into a tree whose set holds one"
                )
        try:
            _check_spread(items, name)
            return kind(items)
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
        first, text = self._objects.setdefault(id(like), (name, inner))
        if first != name:
            self.twice.append((first, name))
            if text != inner:
                self.differ.append(
                    f"{readable(name)}: the tree has the object of {readable(first)}, the checkpoint another"
                )
        with noted(f"state_dict() of {kind_name(like)} at {readable(name)}"):
            state = like.state_dict()
        if fit := self._fit(like, state, inner, name):
            self._optimizer(like, inner, fit)
            return like
        if how := self._unlike(like, state, inner, name):
            text = f"{readable(name)}: {how}"
            if self._partial or (self._module and isinstance(like, self._module)):  # A module's names are compared.
                self.remarks.append(text)
            else:
                self.differ.append(f"{text}: leave it out of the tree, or strict=False takes it")
        outer, self._holder = self._holder, (like, name)
        self.loads.append((name, like, self.node(inner, state, name, False), None))
        self._holder = outer
        if self._module and isinstance(like, self._module):
            given = Names()
            Writer(given).node({key: None if is_lazy(child) else child for key, child in state.items()}, name)
            lazy = [join(name, part_of(key, name)) for key, child in state.items() if is_lazy(child)]
            saved = {uncompiled(path): path for path in kinds_in(inner, name)}
            own = {uncompiled(path): path for path in (*given.tensors, *lazy)}
            if own and own.keys().isdisjoint(saved):
                self.nothing.append(name)
            self.only_stored += [readable(path) for plain, path in saved.items() if plain not in own]
            self.only_tree += [readable(path) for plain, path in own.items() if plain not in saved]
        return like

    def _optimizer(self, like: Any, inner: Any, fit: Fit) -> None:
        self.remarks += fit.remarks
        before = len(self.differ)
        self.differ += fit.differ
        if not fit.differ:
            self.fit = fit
            self.loads.append((fit.path, like, self.node(fit.without_gone(inner), fit.along(), fit.path, False), fit))
            self.fit = None
        if len(self.differ) > before:
            self.unlike.append(readable(fit.path))


def is_lazy(value: Any) -> bool:
    """Whether it is a parameter or buffer of a lazy module that has no shape yet."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.nn.parameter.is_lazy(value))


def _plain(module: Any) -> Any:
    return getattr(module, "_orig_mod", module)


def _is_named(kind: type, path: str) -> bool:
    """Whether a class has the last name of this path: its module may have moved."""
    return kind.__qualname__.rpartition(".")[2] == path.rpartition(":")[2].rpartition(".")[2]


def _holds_dataclass(value: Any) -> bool:
    if isinstance(value, tuple) and any(map(_holds_dataclass, value)):
        return True
    return values.is_dataclass(type(value)) and not isinstance(value, Enum)


def _check_spread(keys: list[Any], name: str) -> None:
    """Corrupt if so many have the same hash that no one but an attacker chose them."""
    if len(keys) <= _MAX_COLLIDING:
        return
    distinct = {id(key): key for key in keys}.values()  # A walk for names has None for all.
    if max(Counter(map(hash, distinct)).values()) > _MAX_COLLIDING:
        raise Corrupt(f"the checkpoint's tree: {readable(name)}: more than {_MAX_COLLIDING} keys have the same hash")


def _renamed(stored: dict[str, Any], given: dict[str, Any]) -> dict[str, str]:
    """For names of the tree that the checkpoint has only compiled, or only not compiled: the checkpoint's."""
    if not any(map(is_compiled, (*stored, *given))):
        return {}
    plain = {uncompiled(name): name for name in stored}
    return {name: plain[uncompiled(name)] for name in given if name not in stored and uncompiled(name) in plain}


def _metadata_of(like: Any) -> Any:
    return vars(like).get("_metadata") if isinstance(like, OrderedDict) else None


def kinds_in(node: Any, name: str) -> dict[str, str]:
    found: dict[str, str] = {}

    def leaf(kind: str, _like: Any, leaf_name: str, _strict: bool) -> None:
        found[leaf_name] = kind

    Reader(leaf, lambda _: None, None, find=lambda _path, _name: None, makes=False).node(node, None, name, False)
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
                if isinstance(named := vars(torch).get(text), torch.dtype):  # getattr may import a module.
                    return named
            case ["device", str(text)]:
                return importlib.import_module("torch").device(text)
            case ["size", *sizes]:
                return importlib.import_module("torch").Size(sizes)
            case [str(), *_] if (found := values.read(node, scalar)) is not node:
                return found
    except ImportError as error:
        raise Unsupported(f"the checkpoint's tree holds {node[0]} values: {error}") from error
    except (ValueError, TypeError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
        raise Corrupt(f"the checkpoint's tree: {reprlib.repr(node)}: {error}") from error
    raise Corrupt(f"the checkpoint's tree: expected a value, found {reprlib.repr(node)}")


def key_of(node: Any) -> Any:
    key = scalar(node)
    if type(key) not in (str, int, bool, type(None)):
        raise Corrupt(f"the checkpoint's tree: expected a key, found {reprlib.repr(node)}")
    return key
