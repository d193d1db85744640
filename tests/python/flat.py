"""A tree taken apart, for tests: by both sinks, which must agree."""

from dataclasses import dataclass
from typing import Any

from cairn import _tree
from cairn._tree import tensors as tree_tensors
from cairn._tree.writer import Names


@dataclass(frozen=True)
class Flat:
    tensors: dict[str, Any]
    text: str


def flatten(tree: Any) -> Flat:
    names = Names()
    text = _tree.flatten(tree, names)
    try:
        natively = _tree.flatten(tree, tree_tensors.TensorCollector())
    except tree_tensors.Unsupported:  # A dtype that a tree may name and no file holds.
        natively = text
    assert natively == text
    return Flat(names.tensors, text)
