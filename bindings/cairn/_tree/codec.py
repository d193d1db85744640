"""A tree taken apart, planned and built: the calls of this package. What the text says is in __init__.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from .. import _core
from .._errors import Corrupt, InvalidArgument, NotFound, Unsupported
from .._rng import RngState
from .arrays import as_numpy, is_foreign
from .casts import Casts, convert, is_lossless
from .optimizer_states import names_of
from .optimizers import Beside, Fit, fit_text, optimizer_of
from .parameters import TreeModules, modules_in, objects_in
from .paths import MAX_LEVELS, class_of, kind_name, listed, noted, readable
from .reader import MatchAll, Reader, is_lazy, kinds_in, scalar
from .schedulers import classes_of, is_of, unlike_class, unlike_functions, unlike_groups, unlike_options, unlike_order
from .values import bytes_of_element, is_plain
from .writer import PACKED as _VERSION
from .writer import Names, Sink, Writer

_TENSOR = ["t"]  # The node of each torch tensor. Nothing changes it.


@dataclass(frozen=True)
class Stored:
    """A tensor in a checkpoint: dtype by safetensors' name ("F32", "BF16"), or torch's if it is kept as bytes
    ("complex128"); shape in elements."""

    dtype: str
    shape: tuple[int, ...]

    def of_kind(self, kind: str) -> Stored:
        """What it is as a tensor of this kind, as `kinds` says it: some dtypes are kept as bytes."""
        _, _, dtype = kind.partition(" ")
        if not dtype:
            return self
        last = bytes_of_element(dtype)
        if self.dtype != "U8" or self.shape[len(self.shape) - len(last) :] != last:
            raise Corrupt(f"the checkpoint's tree: expected the bytes of {dtype}, found {self}")
        return Stored(dtype, self.shape[: len(self.shape) - len(last)])

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Plan:
    """Where a checkpoint's tensors go: name -> the caller's tensor (`in_place`) or a new one. `one_sided` says which names
    only the checkpoint or only the tree has, `remarks` what else of it should be said. `converted`: the caller's tensors
    of other dtypes, by name. Their new tensors in `tensors` have the checkpoint's, until `convert`. `twice`: paths of one
    object."""

    tensors: dict[str, Any]
    in_place: set[str]
    one_sided: list[str]
    remarks: list[str]
    converted: dict[str, Any]
    twice: list[tuple[str, str]]
    casts: Casts
    _tree: Any
    _loads: list[tuple[str, Any, Any, Fit | None]]
    _partial: bool

    def convert(self) -> None:
        """Once the tensors are filled, before `finish`."""
        for name, target in self.converted.items():
            convert(target, self.tensors[name])

    def finish(self) -> Any:
        """Calls load_state_dict on every object of the tree, once the tensors are filled, and returns the tree.

        The containers are new, with the checkpoint's plain values; tensors and objects are the caller's. RngState goes
        last, because another object's load_state_dict may draw random numbers. Errors of load_state_dict are not
        caught.
        """
        for name, target, state, fit in sorted(self._loads, key=lambda load: isinstance(load[1], RngState)):
            with noted(f"load_state_dict() of {kind_name(target)} at {readable(name)}"):
                if fit is not None:
                    fit.load(target, state)
                else:
                    lenient = self._partial and _is_module(target)
                    target.load_state_dict(state, **({"strict": False} if lenient else {}))
        return self._tree


def _is_module(target: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


def flatten(tree: Any, sink: Sink) -> str:
    """Takes a tree apart: gives its tensors to the sink and returns the text of everything else. Calls state_dict() on
    its objects.

    InvalidArgument, with the path, if the tree contains a value that cannot be kept, contains itself, or is too deep.
    """
    writer = Writer(sink, sets_aside=True)
    text = writer.whole(writer.node(tree, ""))
    writer.check_length(text)
    beside = ""
    if writer.optimizers:
        classes = {path: type(optimizer).__name__ for path, optimizer in writer.optimizers.items()}
        parameters = TreeModules(writer.modules).texts(writer.optimizers, writer.states)
        beside = f',"optimizers":{json.dumps(classes)}' + (f',"parameters":{parameters}' if parameters else "")
    if writer.schedulers:
        beside += f',"schedulers":{json.dumps(writer.schedulers)}'
    if writer.objects:
        beside += f',"objects":{json.dumps(writer.objects)}'
    return f'{{"version":{writer.version},"tree":{text}{beside}}}'


def plan_restore(
    text: str,
    stored: Mapping[str, Stored],
    tree: Any,
    describe: Callable[[Any], Stored],
    empty: Callable[..., Any],
    *,
    place: Callable[[str], Any] = lambda _name: None,
    partial: bool = False,
    cast: bool = False,
    match_all: MatchAll | None = None,
    where: str = "the checkpoint",
) -> Plan:
    """Matches a checkpoint with the caller's tree. Changes nothing yet; calls state_dict() on the tree's objects.

    `describe` returns a tensor's dtype and shape; `empty` makes a CPU tensor, "torch" or "numpy", or, given a device too,
    one of torch on that. The device is that of `place` for the tensor's name; where it is None, state that an optimizer
    lacks is made on its parameter's device. None, or any plain value, is a placeholder for whatever is stored. Plain values are the checkpoint's; a container of plain values is
    taken as a whole. Names on one side only are left to load_state_dict, except in a torch module. What `match_all`
    takes (see Reader) is not among the plan's tensors.

    InvalidArgument, with all differences, if the tree and the checkpoint differ in names, shapes or dtypes. `partial`
    permits names on one side only: the tree's stay as they are, the checkpoint's are left out. A dtype that holds every
    value of the checkpoint's is permitted, with `cast` any. `where` names the checkpoint in messages.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    writer = Writer(Names())
    tensors: dict[str, Any] = {}
    in_place: set[str] = set()
    converted: dict[str, Any] = {}
    casts = Casts(cast)

    def made(kind: str, name: str, found: Stored, device: Any) -> Any:
        kind = kind.partition(" ")[0]
        device = None if kind == "numpy" else place(name) or device
        tensors[name] = empty(found, kind) if device is None else empty(found, kind, device)
        return tensors[name]

    def beside(kind: str, name: str, found: Stored, like: Beside) -> Any:
        if (fit := reader.fit) is not None:
            own = describe(like.tensor)
            if found.shape != own.shape:
                reader.differ += fit.misfits(name, found.shape)
            may = cast or is_lossless(found.dtype, own.dtype)  # Which dtypes_kept says.
            if not may and fit.casts(name) and not casts.may(name, found.dtype, own.dtype):
                reader.narrowed.append(f"{readable(name)}: the optimizer keeps {own.dtype}, the checkpoint has {found}")
        return made(kind, name, found, like.device_of(name))

    def leaf(kind: str, like: Any, name: str, strict: bool) -> Any:
        found = stored.get(name)
        if found is None:
            raise Corrupt(f'tensor "{name}": the checkpoint\'s tree names it, but no shard holds it')
        found = found.of_kind(kind)
        if isinstance(like, Beside):
            return beside(kind, name, found, like)
        if is_lazy(like) and reader.may_reshape(name):
            return made(kind, name, found, like.device)
        if writer.is_tensor(like):
            writer.node(like, name)  # Refuses what cannot be kept.
            is_array = numpy is not None and isinstance(like, numpy.ndarray)
            expected = describe(like)
            if expected != found and reader.fit is not None and not is_array:
                return beside(kind, name, found, Beside(like))  # load_state_dict takes another one.
            if expected.shape != found.shape and reader.may_reshape(name):
                return made(kind, name, found, None if is_array else like.device)
            if is_array and not like.flags.writeable:
                reader.differ.append(f"{readable(name)}: the tree has a read-only array: give one that can be written")
            take(name, like, expected, found, "numpy" if is_array else "torch")
            in_place.add(name)
            return like
        elif is_foreign(like):
            # It may be immutable, so its values come back in a new numpy array.
            expected = describe(as_numpy(like, name))
            array = empty(expected, "numpy")
            take(name, array, expected, found, "numpy")
            return array
        elif strict and not is_plain(like):
            reader.differ.append(
                f"{readable(name)}: the tree has {kind_name(like)}, the checkpoint has a tensor, {found}"
            )
        else:
            made(kind, name, found, None)
        return tensors.get(name)

    def take(name: str, target: Any, expected: Stored, found: Stored, kind: str) -> None:
        tensors[name] = target
        if expected == found:
            return
        if expected.shape != found.shape or not casts.may(name, found.dtype, expected.dtype):
            reader.differ.append(f"{readable(name)}: the tree has {expected}, the checkpoint has {found}")
            return
        converted[name] = target
        tensors[name] = empty(found, kind, target.device) if kind == "torch" else empty(found, kind)

    root, classes, parameters, schedulers, objects = _parse_all(text)
    modules = TreeModules(modules_in(tree) if parameters else [])

    def fit(holder: Any, state: Any, node: Any, name: str) -> Fit | None:
        def both_names(optimizer: Any) -> tuple[list[str], list[str]] | None:
            return modules.both_names(optimizer, parameters.get(name), stored)

        return fit_text(holder, state, node, name, partial, classes.get(name), cast, both_names)

    def unlike(holder: Any, state: Any, node: Any, name: str) -> str | None:
        is_scheduler = bool(classes_of(holder))
        if saved := schedulers.get(name):
            how = unlike_class(holder, saved)
        else:
            how = unlike_options(state, node) if is_scheduler else None
        own = class_of(holder)
        if (kind := objects.get(name)) and kind not in names_of(own):
            how = f"the tree has {own.__name__}, the checkpoint has the state of {kind}"
        return how or ((unlike_groups(state, node) or unlike_functions(state, node)) if is_scheduler else None)

    reader = Reader(
        leaf, scalar, torch.nn.Module if torch else None, partial, match_all=match_all, fit=fit, unlike=unlike
    )
    result = reader.node(root, tree, "", True)
    fits = [fit for *_, fit in reader.loads if fit is not None]
    for name, holder, state, _ in reader.loads if any(fit.regrouped for fit in fits) else ():
        if how := next((unlike_order(state, fit.regrouped) for fit in fits if is_of(holder, fit)), None):
            reader.differ.append(f"{readable(name)}: {how}")
    reader.differ += [
        f"{readable(name)}: {how}" for name, holder, state, _ in reader.loads if (how := _unlike_scaler(holder, state))
    ]
    reader.raise_differences(where, casts.way_out())
    if partial:
        _refuse_nothing(tree, tensors, reader, where)
    in_place -= converted.keys()
    one_sided, remarks, twice = reader.one_sided(), reader.remarks, reader.twice
    return Plan(tensors, in_place, one_sided, remarks, converted, twice, casts, result, reader.loads, partial)


def _unlike_scaler(holder: Any, state: Any) -> str | None:
    """A GradScaler's state is empty if it was disabled: torch's raises, once all else is loaded, or drops the scale."""
    if not any(base.__name__ == "GradScaler" for base in type(holder).__mro__) or holder.is_enabled() == bool(state):
        return None
    own, saved = ("enabled", "disabled") if not state else ("disabled", "enabled")
    return f"the GradScaler is {own} in the tree and was {saved} at the save: make it so, or leave it out of the tree"


def _refuse_nothing(tree: Any, tensors: Mapping[str, Any], reader: Reader, where: str) -> None:
    """What has no name in common with the checkpoint is rather misspelt than left as it is on purpose."""
    nothing = reader.nothing + _left_objects(reader, tensors)
    nothing += [path for path, held in reader.apart if _has_tensors(held, Writer(Names()))]
    if not tensors and not nothing:
        given = Names()
        Writer(given).node(tree, "")
        nothing = [""] if given.tensors else []
    if nothing:
        way_out = (
            [] if "" in nothing else ["give the checkpoint's names, or leave out of the tree what it does not have"]
        )
        raise InvalidArgument(
            f"{where}: strict=False would restore nothing of {listed([readable(path) for path in nothing])}: "
            + "; ".join(reader.one_sided() + way_out)
        )


def _left_objects(reader: Reader, tensors: Mapping[str, Any]) -> list[str]:
    """The paths of objects with tensors that only the tree has, unless they are restored at another path too."""
    found = [one for path, child in reader.left for one in objects_in(child, path)]
    if not found:
        return []
    loaded = [target for _, target, _, _ in reader.loads]
    restored = {*map(id, chain(loaded, tensors.values(), *map(_parts_of, loaded)))}
    writer = Writer(Names())
    found = [(path, one) for path, one in found if restored.isdisjoint(map(id, (one, *_parts_of(one))))]
    return [path for path, one in found if optimizer_of(one) is not None or _has_tensors(_state_of(one, path), writer)]


def _parts_of(target: Any) -> list[Any]:
    """The parameters and buffers of a torch module."""
    return [*target.parameters(), *target.buffers()] if _is_module(target) else []


def _state_of(target: Any, path: str) -> Any:
    with noted(f"state_dict() of {kind_name(target)} at {readable(path)}"):
        return target.state_dict()


def _has_tensors(state: Any, writer: Writer) -> bool:
    if isinstance(state, (dict, list, tuple)):
        return any(_has_tensors(child, writer) for child in (state.values() if isinstance(state, dict) else state))
    return writer.is_tensor(state) or is_foreign(state)


class Parsed:
    """A text, parsed once for `names` or `kinds`, and for `build`."""

    def __init__(self, text: str) -> None:
        self.root = _parse_all(text)[0]


def build(text: str | Parsed, tensors: Mapping[str, Any]) -> Any:
    """Builds a new tree. An object becomes its state dict, an Enum member an EnumName, a namedtuple an instance of a
    new class. NotFound if the text names a tensor that is not given."""

    def leaf(kind_name: str, _like: Any, name: str, _strict: bool) -> Any:
        if name not in tensors:
            raise NotFound(f'no tensor "{name}" was given')
        return tensors[name]

    return Reader(leaf, scalar, None).node(_root_of(text), None, "", False)


def names(text: str | Parsed) -> list[str]:
    """The names of the tensors in a text, in the tree's order."""
    return list(kinds_in(_root_of(text), ""))


def kinds(text: str | Parsed) -> dict[str, str]:
    """The names of the tensors in a text, in the tree's order, each with "torch" or "numpy", and the dtype if it is kept
    as bytes: "torch complex128"."""
    return kinds_in(_root_of(text), "")


def _root_of(text: str | Parsed) -> Any:
    return (Parsed(text) if isinstance(text, str) else text).root


def members_of(text: str, tensor: Any, *, unpack: bool) -> dict[str, Any]:
    """What a tree's text has beside "tree", and that, with `tensor` for each ["t"]; packed lists stay so, or not."""
    try:
        members = _core.parse_tree(text, tensor, MAX_LEVELS, unpack)
    except ValueError as error:
        raise Corrupt(f"the checkpoint's tree: {error}") from error
    version = members.get("version") if isinstance(members, dict) and "tree" in members else None
    if not isinstance(version, int):
        raise Corrupt("the checkpoint's tree: expected an object with version and tree")
    if version > _VERSION:
        raise Unsupported(f"the checkpoint's tree has version {version}, this Cairn reads {_VERSION}")
    return cast("dict[str, Any]", members)


def _parse_all(text: str) -> tuple[Any, dict[str, str], dict[str, list[str]], dict[str, list[str]], dict[str, str]]:
    """The tree; by path, the classes of the optimizers in it, the names of their parameters, and the classes of schedulers
    and of other objects."""
    members = members_of(text, _TENSOR, unpack=True)
    tree = members["tree"]
    classes, parameters = members.get("optimizers", {}), members.get("parameters", {})
    schedulers, objects = members.get("schedulers", {}), members.get("objects", {})
    if not isinstance(classes, dict) or not _is_text([*classes.values()]):
        raise Corrupt("the checkpoint's tree: expected the name of each optimizer's class")
    if not isinstance(objects, dict) or not _is_text([*objects.values()]):
        raise Corrupt("the checkpoint's tree: expected the name of each object's class")
    if not isinstance(parameters, dict) or not all(_is_text(names) for names in parameters.values()):
        raise Corrupt("the checkpoint's tree: expected the names of each optimizer's parameters")
    if not isinstance(schedulers, dict) or not all(_is_text(kinds) for kinds in schedulers.values()):
        raise Corrupt("the checkpoint's tree: expected the names of each scheduler's classes")
    return tree, classes, parameters, schedulers, objects


def _is_text(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, str) for item in items)
