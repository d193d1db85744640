"""Long lists of numbers, as bytes in a tree's text: their digits would take ten times as long. See _tree."""

from __future__ import annotations

import base64
from array import array
from typing import Any

VERSION = 4  # Of a text that has such a node: tree's and DCP's.
_MANY = 1024
_TAGS = frozenset({"list", "tuple"})
_CODES = {"<i4": "i", "<i8": "q", "<f8": "d"}
_OF = {int: ("<i4", "<i8"), float: ("<f8",)}


def pack(tag: str, children: list[Any]) -> str | None:
    """The node of a long list or tuple of only floats, or only ints of 64 bits; None for any other."""
    if len(children) < _MANY or tag not in _TAGS:
        return None
    kind = type(children[0])
    if kind not in _OF or not {kind}.issuperset(map(type, children)):
        return None
    for dtype in _OF[kind]:
        try:
            numbers = array(_CODES[dtype], children)
        except OverflowError:
            continue
        return f'["packed","{tag}","{dtype}","{base64.b64encode(numbers).decode()}"]'
    return None


def unpack(root: Any) -> None:
    """Replaces each such node below this one by the list or tuple that it stands for. ValueError if one is damaged."""
    level = [root]
    while level:
        nested = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
        for node in level:
            if isinstance(node, list) and node[:1] == ["packed"]:
                node[:] = _unpacked(node)
        level = [child for child in nested if isinstance(child, (dict, list))]


def _unpacked(node: list[Any]) -> list[Any]:
    match node:
        case [_, str(tag), str(dtype), str(text)] if tag in _TAGS and dtype in _CODES:
            numbers = array(_CODES[dtype])
            numbers.frombytes(base64.b64decode(text, validate=True))
            return [tag, *numbers]
    raise ValueError("expected a packed list's tag, dtype and base64")
