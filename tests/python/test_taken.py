"""Containers that another thread changes while they are saved: what is kept is what they held at one moment."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cairn
import pytest
import torch
from cairn import _tree
from cairn._tree import tensors as tree_tensors
from cairn._tree.writer import Names

Make = Callable[..., cairn.Checkpointer]
COUNT = 30


@contextmanager
def changing(change: Callable[[], object], package: str = "cairn.") -> Iterator[None]:
    """Makes a change wherever another thread could run: before each bytecode of this package."""

    def at(frame: Any, *_: Any) -> Any:
        if frame.f_globals.get("__name__", "").startswith(package):
            frame.f_trace_opcodes = True
            change()
        return at

    before = sys.gettrace()
    sys.settrace(at)
    try:
        yield
    finally:
        sys.settrace(before)


class Numbers:
    """A container of consecutive numbers: each change drops the first and adds the next. What mixes two moments has a gap,
    or too many, or a key with another key's number."""

    def __init__(self, kind: str) -> None:
        keyed = {
            "dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter,
            "dict of tensors": dict, "OrderedDict of tensors": collections.OrderedDict, "dict with other keys": dict,
        }  # fmt: skip
        self._key: Callable[[int], Any] = (lambda i: i) if "other" in kind else (lambda i: f"k{i}")
        self._tensors = "tensors" in kind
        self.held: Any = (
            keyed[kind]() if kind in keyed else {"list": list, "deque": collections.deque, "set": set}[kind]()
        )
        self._next = 0
        for _ in range(COUNT):
            self._add()

    def _add(self) -> None:
        i, self._next = self._next, self._next + 1
        if isinstance(self.held, dict):
            self.held[self._key(i)] = torch.tensor([i]) if self._tensors else i
        elif isinstance(self.held, set):
            self.held.add(i)
        else:
            self.held.append(i)

    def change(self) -> None:
        first = self._next - COUNT
        if isinstance(self.held, dict):
            del self.held[self._key(first)]
        elif isinstance(self.held, set):
            self.held.remove(first)
        else:
            del self.held[0]
        self._add()

    def assert_of_one_moment(self, kept: Any) -> None:
        numbers = (
            sorted(kept) if isinstance(kept, set) else [int(one) for one in (kept.values() if self._keyed else kept)]
        )
        assert numbers == [*range(numbers[0], numbers[0] + COUNT)]
        assert not self._keyed or [*kept] == [self._key(i) for i in numbers]

    @property
    def _keyed(self) -> bool:
        return isinstance(self.held, dict)


KINDS = [
    "dict", "OrderedDict", "Counter", "dict of tensors", "OrderedDict of tensors", "dict with other keys", "list", "deque",
    "set",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sink", [Names, tree_tensors.TensorCollector])
def test_a_tree_holds_what_it_held_at_one_moment(kind: str, sink: Any) -> None:
    given, into = Numbers(kind), sink()

    with changing(given.change):
        text = _tree.flatten({"at": given.held}, into)

    numbers = {name: torch.tensor([int(name[4:])]) for name in _tree.names(text)}  # Each is its name's.
    kept = _tree.build(text, getattr(into, "tensors", numbers))["at"]
    given.assert_of_one_moment(kept)


@pytest.mark.parametrize("kind", ["dict of tensors", "OrderedDict"])
def test_a_checkpoint_of_what_changes(make: Make, kind: str) -> None:
    given, checkpointer = Numbers(kind), make()

    with changing(given.change):
        save = checkpointer.save(1, {"at": given.held})
    save.wait()

    given.assert_of_one_moment(checkpointer.load(1)["at"])


@pytest.mark.parametrize("kind", ["dict of tensors", "OrderedDict", "list"])
def test_through_dcp(make: Make, kind: str) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from cairn._dcp.direct import load_all
    from cairn.dcp import SavePlanner, StorageWriter

    given, checkpointer = Numbers(kind), make()

    with changing(given.change):
        answer = dcp.async_save(
            {"at": given.held}, storage_writer=StorageWriter(checkpointer, 1), planner=SavePlanner(), no_dist=True
        )
    getattr(answer, "upload_completion", answer).result()

    given.assert_of_one_moment(load_all(checkpointer)["at"])


def test_a_change_that_is_seen_names_the_path() -> None:
    class Key(str):
        """Looked up by Python code, in which the thread changes."""

        def __hash__(self) -> int:
            held[str(len(held))] = 0
            return super().__hash__()

    held: dict[str, int] = collections.OrderedDict()
    held[Key("a")] = 1

    with pytest.raises(
        cairn.InvalidArgument, match=r"^x/y: a value of type collections.OrderedDict was changed by another"
    ):
        _tree.flatten({"x": {"y": held}}, Names())
