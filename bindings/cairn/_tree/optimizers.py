"""An optimizer's state in a checkpoint, held against the optimizer that it is to go into.

torch's load_state_dict goes by number alone. It refuses other counts of parameters, when the model beside it has been
overwritten, and nothing else. Here, before anything is written, the two state dicts must agree in

- **parameters**: their number in each group. Where both sides have names, these must be the same; state and options follow
  them, in whatever order. They are those of the module that is in both trees (see parameters), or else param_names.
  Without names state goes by number, as torch has it.
- **class**: the saved one is the optimizer's, or one of its bases up to torch's. Older checkpoints do not say it. So the
  options that only some of torch's classes have must be there, or not, and those that decide which state there is must
  agree (amsgrad).
- **what there is**: all that torch's classes make, and of other classes what both the optimizer and other parameters in
  the checkpoint have. A parameter without state where others have some is refused if the optimizer has state for it,
  unless it is frozen. A new optimizer cannot tell whether it was frozen, or had no gradient yet, at the save: a warning.
- **shapes**: what torch's classes make in their parameter's shape (`CLASSES`), and of other classes what has that shape in
  the optimizer, has it in the checkpoint. All else goes to load_state_dict as it is: Adafactor's rows, LBFGS's history,
  the first state of optimizers that flatten, project or quantise.

A partial restore lets parameters be on one side only, if both have names; what else it permits is a remark.

torch casts state to its parameter's dtype. `Fit.load` keeps the saved dtypes (fp32 moments of bf16 parameters), except of
what torch's classes keep in their parameter's dtype, without which they cannot step: that is a cast as any other.

State that an optimizer lacks is made on its parameter's device. Read into the CPU's memory, it would need as much of that
as there is state.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from .._protect import inner_optimizer
from .optimizer_states import (
    CLASSES,
    FLAT,
    MARKS,
    WITHOUT_DIMENSIONS,
    Regrouped,
    State,
    dtypes_kept,
    has_torchs_load,
    names_of,
    of_dict,
    of_text,
    unlike_option,
)
from .paths import join, listed, part_of, readable

_log = logging.getLogger("cairn")
_DECOUPLED = "decoupled_weight_decay"  # All that makes AdamW of Adam.
BothNames = Callable[[Any], "tuple[list[str], list[str]] | None"]


class Beside:
    """Stands, in an optimizer's state dict, for state that is made anew: beside this tensor, or where all else is made."""

    def __init__(self, tensor: Any, on_its_device: bool = True) -> None:
        self.tensor = tensor
        self.device = tensor.device if on_its_device and tensor.device.type != "cpu" else None

    def device_of(self, name: str) -> Any:
        """The device of the tensor of this name; None for the usual one."""
        # load_state_dict leaves the number of steps where it is.
        return None if name.endswith("/step") else self.device


def optimizer_of(holder: Any) -> Any:
    """The torch optimizer that this is, or wraps; None if it is none."""
    torch = sys.modules.get("torch")
    return inner_optimizer(holder) if torch is not None and isinstance(holder, torch.optim.Optimizer) else None


@dataclass
class Fit:
    """How a saved state fits an optimizer: what contradicts it (`differ`), and what should be said (`remarks`)."""

    path: str
    partial: bool
    _allow_loss: bool = False
    differ: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _optimizer: Any = None
    _state: Any = None  # The optimizer's state dict.
    _own: State = field(default_factory=lambda: State([], [], None, {}))
    _saved: State = field(default_factory=lambda: State([], [], None, {}))
    _parameters: list[Any] = field(default_factory=list)
    _order: dict[Any, int] = field(default_factory=dict)  # A saved number -> the parameter's position.
    _sources: list[int | None] = field(default_factory=list)  # Which saved group has the options of each group.
    _moved: bool = False
    _makes: dict[str, str | None] | None = None  # Of CLASSES, if it is one of them.

    def __post_init__(self) -> None:
        self._numbers = [*chain(*self._own.numbers)]
        self._prefix = join(self.path, "state/")

    def is_of(self, optimizer: Any) -> bool:
        return optimizer is self._optimizer

    @property
    def regrouped(self) -> Regrouped | None:
        return Regrouped.of(self._sources, len(self._saved.groups)) if not self.differ else None

    def along(self) -> dict[str, Any]:
        """The optimizer's state dict, with the saved numbers, to read the checkpoint's along it."""
        held, numbers = self._state["state"], self._numbers
        torchs = has_torchs_load(self._optimizer)  # Another one may want the state elsewhere, such as on the CPU.
        like = {
            number: held[numbers[at]] if numbers[at] in held else Beside(self._parameters[at], torchs)
            for number, at in self._order.items()
        }
        groups: list[Any] = [None] * len(self._saved.groups)
        for source, group in zip(self._sources, self._state["param_groups"], strict=True):
            if source is not None:
                groups[source] = group
        known = {*numbers}
        others = {key: value for key, value in held.items() if key not in known}
        return {**self._state, "state": others | like, "param_groups": groups}

    def without_gone(self, node: Any) -> Any:
        """The text without the state of parameters that the optimizer lacks."""
        gone = {*chain(*self._saved.numbers)} - self._order.keys()
        match node:
            case {"state": ["dict", *pairs]} if gone:
                kept = [pair for pair in zip(pairs[::2], pairs[1::2], strict=True) if pair[0] not in gone]
                return {**node, "state": ["dict", *chain(*kept)]}
        return node

    def load(self, holder: Any, state: Any) -> None:
        """Calls load_state_dict with a state that has the saved numbers."""
        with self.loading(state) as renumbered:
            holder.load_state_dict(renumbered)

    @contextlib.contextmanager
    def loading(self, state: Any) -> Iterator[Any]:
        """Gives, of a state that has the saved numbers, what load_state_dict is to get within. torch's own then keeps the
        saved dtypes."""
        torchs = has_torchs_load(self._optimizer)
        with dtypes_kept(self._optimizer, self._allow_loss) if torchs else contextlib.nullcontext():
            yield self.renumbered(state)

    def at(self, *parts: Any) -> str:
        path = self.path
        for part in parts:
            path = join(path, part_of(part, path))
        return readable(path)

    def _place(self, name: str) -> tuple[int | None, str]:
        """The parameter's position and the key of a saved tensor of this name."""
        if not name.startswith(self._prefix):
            return None, ""
        number, _, key = name[len(self._prefix) :].partition("/")
        return self._order.get(int(number)) if number.isdecimal() else None, key

    def parameter_of(self, name: str) -> Any:
        at, _ = self._place(name)
        return None if at is None else self._parameters[at]

    def casts(self, name: str) -> bool:
        """Whether the saved tensor of this name must have the dtype of the state that the optimizer makes, to step."""
        at, key = self._place(name)
        if at is None or key not in (self._makes or ()) or key in WITHOUT_DIMENSIONS:
            return False
        return self._parameters[at].is_floating_point() and has_torchs_load(self._optimizer)

    def log(self) -> None:
        for remark in self.remarks:
            _log.warning("%s", remark)

    def misfits(self, name: str, shape: tuple[int, ...]) -> list[str]:
        """Why a saved tensor of this name and shape is not its parameter's state; empty if it is, or if nobody knows."""
        at, key = self._place(name)
        if self._makes is not None and (key not in self._makes or key in WITHOUT_DIMENSIONS):
            return []
        if at is None or shape == (expected := self._parameters[at].shape):
            return []
        if self._makes is None:
            mine = self._own.entries.get(self._numbers[at], {}).get(key)
            if not expected or getattr(mine, "shape", None) != expected:
                return []
        return [f"{readable(name)}: the tree's parameter has the shape {[*expected]}, the checkpoint has {[*shape]}"]

    def compare(self, kind: str | None) -> None:
        """`kind`: the saved class's name."""
        own = type(self._optimizer)
        mark, makes = CLASSES.get(own.__name__, ("", None))
        if getattr(sys.modules["torch"].optim, own.__name__, None) is not own:
            mark, makes = "", None
        self._makes = makes
        if kind is not None and kind not in names_of(own):
            self._contradicts(f"{self.at()}: the tree has {own.__name__}, the checkpoint has the state of {kind}")
        for i, group in enumerate(self._saved.groups if mark and not self.differ else ()):
            known = {*self._optimizer.defaults, *self._own.groups[min(i, len(self._own.groups) - 1)]}
            at = f"{self.at('param_groups', i)}: the tree has {own.__name__}, the checkpoint has a group with"
            if mark not in group:
                self.differ.append(f"{at}out {mark}")
            elif other := sorted(MARKS & group.keys() - known):
                self.differ.append(f"{at} {', '.join(other)}")
        if not self.differ:
            self._pair()
        if not self.differ:
            deciding = {option for option in (makes or {}).values() if option}
            self._compare_options(deciding | ({_DECOUPLED} if mark == "amsgrad" else set()))
        if not self.differ and any(self._saved.entries.values()):  # Else it was saved before its first step.
            self._compare_entries()

    # Internal

    def _contradicts(self, text: str) -> None:
        (self.remarks if self.partial else self.differ).append(text)

    def _pair(self) -> None:
        """Finds out which saved parameter and group is which of the optimizer's."""
        own, saved = self._own, self._saved
        same = [*map(len, own.numbers)] == [*map(len, saved.numbers)]
        if own.names is not None and saved.names is not None and own.names != saved.names:
            self._pair_by_name(own.names, saved.names)
        elif same:
            self._order = {number: at for at, number in enumerate(chain(*saved.numbers))}
            self._sources = [*range(len(own.groups))]
        else:
            self.differ.append(
                f"{self.at()}: the tree has {own}, the checkpoint has {saved}"
                + (
                    "; strict=False goes by the names of parameters: those of their module, if it is in both trees, or "
                    "those of named_parameters(), if both optimizers were made from it: leave it out"
                )
                * self.partial
            )

    def _pair_by_name(self, own: list[list[str]], saved: list[list[str]]) -> None:
        positions = {name: at for at, name in enumerate(chain(*own))}
        group_of = {name: i for i, names in enumerate(saved) for name in names}
        if len(positions) < sum(map(len, own)) or len(group_of) < sum(map(len, saved)):
            self.differ.append(
                f"{self.at()}: other names of parameters than the checkpoint's, of which some are the same"
            )
            return
        numbers = zip(chain(*self._saved.numbers), chain(*saved), strict=True)
        self._order = {number: positions[name] for number, name in numbers if name in positions}
        found = [{group_of[name] for name in names if name in group_of} for names in own]
        self._sources = [next(iter(groups)) if len(groups) == 1 else None for groups in found]
        self._moved = True
        if {*names_of(type(self._optimizer))} & FLAT and any(self._saved.entries.values()):
            self.differ.append(
                f"{self.at()}: its state is one vector of all parameters, in the checkpoint's order of these, and the tree "
                "has others, or another order: make the optimizer as it was at the save, or leave it out"
            )
            return
        gone = [name for name in group_of if name not in positions]
        new = [name for name in positions if name not in group_of]
        if gone:
            self._contradicts(f"{self.at()}: only the checkpoint has the parameters {_readable(gone)}")
        if new:
            self._contradicts(
                f"{self.at()}: only the tree has the parameters {_readable(new)}"
                + ", whose state is new" * self.partial
            )
        if None in self._sources or len({*self._sources}) < max(len(own), len(saved)):
            self._contradicts(
                f"{self.at()}: the tree has {self._own}, the checkpoint has {self._saved}, grouped otherwise"
                + "; a group whose parameters come from one group has its options, others keep theirs" * self.partial
            )

    def _compare_options(self, deciding: set[str]) -> None:
        for i, source in enumerate(self._sources):
            for option in sorted(deciding) if source is not None else ():
                mine, theirs = self._own.groups[i].get(option), self._saved.groups[source or 0].get(option)
                if option == _DECOUPLED and None in (mine, theirs):
                    continue  # Of an older torch.
                if bool(mine) != bool(theirs):
                    at = self.at("param_groups", i, option)
                    self._contradicts(f"{at}: the tree has {mine}, the checkpoint has {theirs}")

    def _compare_entries(self) -> None:
        lost, unknown, makes = [], [], self._makes
        for group, of_group in zip(self._saved.groups, self._saved.numbers, strict=True):
            if makes is None:
                wanted = {key for number in of_group for key in self._saved.entries.get(number, ())}
            else:
                wanted = {key for key, option in makes.items() if option is None or group.get(option)}
            for number in of_group:
                if (at := self._order.get(number)) is None:
                    continue
                parameter, mine = self._parameters[at], self._own.entries.get(self._numbers[at], {})
                if theirs := self._saved.entries.get(number):
                    for key in wanted:
                        if theirs.get(key) is None and (makes is not None or mine.get(key) is not None):
                            self.differ.append(f"{self.at('state', number, key)}: the checkpoint does not have it")
                elif parameter.requires_grad and mine:
                    lost.append(at)
                elif parameter.requires_grad and wanted:
                    unknown.append(at)
        if lost:
            self._contradicts(
                f"{self.at()}: the tree has state of {self._listed(lost)}, the checkpoint has only that of others"
                + ": it stays as it is" * self.partial
            )
        if unknown:
            self.remarks.append(
                f"{self.at()}: the checkpoint has no state of {self._listed(unknown)}, as of what was frozen or had no "
                "gradient yet: it is new"
            )

    def _listed(self, positions: list[int]) -> str:
        if self._own.names is None:
            return f"parameters [{listed([str(self._numbers[at]) for at in positions])}]"
        names = [*chain(*self._own.names)]
        return _readable([names[at] for at in positions])

    def renumbered(self, state: Any) -> Any:
        """A state that has the saved numbers, with the optimizer's own numbers, groups and names."""
        if not self._moved and not self.partial:
            return state
        theirs = {*chain(*self._saved.numbers)}
        entries = {key: value for key, value in state["state"].items() if key not in theirs}
        if self.partial:
            entries |= self._state["state"]
        for number, at in self._order.items():
            if self._saved.entries.get(number):
                entries[self._numbers[at]] = state["state"][number]
        groups = []
        for source, own in zip(self._sources, self._state["param_groups"], strict=True):
            # One saved group may become two.
            group = own if source is None else copy.deepcopy(state["param_groups"][source])
            options = {key: value for key, value in group.items() if key != "param_names"}
            groups.append({**options, **{key: own[key] for key in ("params", "param_names") if key in own}})
        return {**state, "state": entries, "param_groups": groups}


def _readable(names: list[str]) -> str:
    return listed([*map(readable, names)])


def fit(
    optimizer: Any,
    state: Any,
    saved: State | None,
    path: str,
    partial: bool,
    kind: str | None,
    allow_loss: bool,
    both_names: BothNames = lambda _optimizer: None,
) -> Fit | None:
    own, torchs = of_dict(state), has_torchs_load(optimizer)
    parameters = [group["params"] for group in optimizer.param_groups]
    if own is None or [*map(len, own.numbers)] != [*map(len, parameters)]:
        return None
    if not torchs and (saved is None or partial):
        return None  # It may know what to do.
    if saved is None:
        return Fit(
            path, partial, differ=[f"{readable(path)}: the tree has an optimizer, the checkpoint has no state of one"]
        )
    # Two models may have the same param_names.
    if (not partial or own.names is None or saved.names is None) and (both := both_names(optimizer)):
        own, saved = own.named(both[0]), saved.named(both[1])
    found = Fit(path, partial, allow_loss, [], [], optimizer, state, own, saved, [*chain(*parameters)])
    found.compare(kind)
    return found


def fit_text(
    holder: Any,
    state: Any,
    node: Any,
    path: str,
    partial: bool,
    kind: str | None,
    allow_loss: bool,
    both_names: BothNames,
) -> Fit | None:
    """Compares an optimizer, with its `state`, with the text of the state at `path`, in all but shapes. None for every
    other object, and for state dicts of another form. `both_names`: the names of the optimizer's parameters and of the
    saved ones by the modules of both trees."""
    optimizer = optimizer_of(holder)
    if optimizer is None:
        return None
    return fit(optimizer, state, of_text(node), path, partial, kind, allow_loss, both_names)


def unlike_numbers(state: Any, node: Any, path: str) -> list[str]:
    """What keeps a state dict by number, as an optimizer makes it, from being read along another such: each number must
    mean the same parameter. Nobody knows the parameters here, so nothing is renumbered."""
    own, saved = of_dict(state), of_text(node)
    if own is None or saved is None or not all(type(number) is int for number in chain(*own.numbers)):
        return []
    at = readable(join(path, "param_groups"))
    if [*map(len, own.numbers)] != [*map(len, saved.numbers)]:
        return [f"{at}: the tree has {own}, the checkpoint has {saved}"]
    for i, (mine, theirs) in enumerate(zip(own.groups, saved.groups, strict=True)):
        if option := unlike_option(mine, theirs):
            at = readable(join(path, f"param_groups/{i}/{option}"))
            had, has = (one.get(option, "none") for one in (theirs, mine))
            return [f"{at}: the tree has {has}, the checkpoint has {had}: the state of another optimizer class"]
    pairs = zip(chain(*own.names or ()), chain(*saved.names or ()), strict=False)
    for i, (mine, theirs) in enumerate(pairs):
        if mine != theirs:
            way_out = "give the optimizer itself, not its state_dict(), and its state follows the names"
            return [f"{at}: parameter {i} is {mine} in the tree and {theirs} in the checkpoint: {way_out}"]
    return []
