"""What the ranks of a Checkpointer compare of the trees that they save: names, dtypes, shapes and values of what is
replicated at each save, and the contents of its tensors as `compare_replicas` says."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .._save import Save
from .._tree.tensors import TensorCollector
from .digests import crc_of, spelled
from .replicas import NOTHING, STATISTICS, TENSOR, Arguments, Rules, find_modules, leaves_of, short

_CONTENTS = "the contents of what is replicated"  # No name of a tree has a blank before "of".


@dataclass
class _Told:
    """The contents that a save has told the other ranks."""

    of: Any  # The names of the tensors, and their sizes in bytes.
    text: str
    save: Save | None = None  # None if it did not begin.

    @property
    def failed(self) -> bool:
        return self.save is None or (self.save.done() and not self.committed)

    @property
    def committed(self) -> bool:
        """On the disk, or in memory, also if the disk does not get it: each rank hears that at another moment."""
        return self.save is not None and self.save.stats["phase"] in ("kept", "durable")


class Comparison:
    """What one Checkpointer compares. With "first", the first save of some tensors tells a digest of each, and only these,
    so that an error names one of them. Later saves tell one digest of all, which costs nothing: so none is committed
    before that comparison, whatever became of the first. If that save failed, or names or sizes change, the next one is a
    first save again."""

    def __init__(self, compare: str) -> None:
        self._compare = compare
        self._classes: tuple[Any, list[bool], list[bool]] = (None, [], [])  # Of the leaves of the last tree.
        self._places = _Places()
        self._agreed: _Told | None = None
        self._told: _Told | None = None

    def arguments(
        self,
        step: int,
        tree: Any,
        text: str,
        declared: Rules,
        tensors: TensorCollector,
        streams: Iterable[Any] = (),
        buffers: Iterable[str] = (),
    ) -> tuple[list[tuple[str, str]], Arguments]:
        """What _core.Checkpointer.save needs to know of a tree with this text: more values, and what is replicated.

        Modules' buffers, and these, are rank 0's and never compared. Call `saved` with the save.
        """
        self._told = None if self._told is not None and self._told.failed else self._told
        rules, of_modules = find_modules(tree)
        rules |= declared
        if not rules:
            return [], NOTHING
        leaves = leaves_of(text)
        covered, of_rank_0 = self._classified(rules, [*of_modules, *buffers], [name for name, _ in leaves])
        names: list[str] = []
        first: list[str] = []
        identical: list[tuple[str, str]] = []
        for (name, node), is_covered, is_of_rank_0 in zip(leaves, covered, of_rank_0, strict=True):
            if not is_covered:
                continue
            if node is TENSOR:
                (first if is_of_rank_0 else names).append(name)
            else:
                identical.append((name, short(json.dumps(node))))
        if self._compare != "never" and names:
            identical += self._contents(step, names, tensors, streams)
        return [("replicas", rules.text())], (names, first, identical)

    def saved(self, save: Save) -> None:
        """The save for which `arguments` was called last has begun."""
        if self._told is not None and self._told.save is None:
            self._told.save = save

    def _classified(self, rules: Rules, buffers: list[str], names: list[str]) -> tuple[list[bool], list[bool]]:
        """Of each leaf, whether it is replicated, and whether rank 0 writes it then."""
        of = (rules, buffers, names)
        if self._classes[0] != of:
            known = set(buffers)
            self._classes = (
                of,
                [rules.covers(name) for name in names],
                [name in known or STATISTICS.search(name) is not None for name in names],
            )
        return self._classes[1:]

    def _contents(
        self, step: int, names: list[str], tensors: TensorCollector, streams: Iterable[Any]
    ) -> list[tuple[str, str]]:
        found = self._places.find(names, tensors)
        of = names, [tensor.nbytes for tensor in found]
        if self._told is not None and self._told.committed:
            self._agreed, self._told = self._told, None
        for told in (self._agreed, self._told) if self._compare == "first" else ():
            if told is not None and told.of == of:
                return [(_CONTENTS, told.text)]
        _wait_for(streams)
        digests = [spelled(crc_of(tensor)) for tensor in found]
        # If a rank alone takes this for a first save, the error says so.
        what = "contents, first save" if self._compare == "first" else "contents"
        each = sorted(zip((f"{name} ({what})" for name in names), digests, strict=True))
        if self._compare == "first":
            self._told = _Told(of, f"{spelled(zlib.crc32(json.dumps(each).encode()))} at step {step}")
        return each


class _Places:
    """Where a collector has the tensors of some names. Remembers it: there may be 100,000, and the caller waits."""

    def __init__(self) -> None:
        self._keys: list[tuple[str, list[Any]]] = []
        self._names: list[str] = []
        self._at: list[tuple[int, int]] = []

    def find(self, names: list[str], tensors: TensorCollector) -> list[Any]:
        keys = [(prefix, keys) for prefix, keys, _ in tensors.given]
        if keys != self._keys or names != self._names:
            at = {
                (f"{prefix}/{key}" if prefix else str(key)): (i, j)
                for i, (prefix, block) in enumerate(keys)
                for j, key in enumerate(block)
            }
            self._keys, self._names, self._at = keys, names, [at[name] for name in names]
        blocks = [values for _, _, values in tensors.given]
        return [blocks[i][j] for i, j in self._at]


def _wait_for(streams: Iterable[Any]) -> None:
    """Orders what current streams do next after what was given to these."""
    for stream in streams:
        sys.modules["torch"].cuda.current_stream(stream.device).wait_stream(stream)
