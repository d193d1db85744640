"""What a load without DCP's plan finds of a checkpoint. See loading.py.

Shard 0 tells of all shards (`rest`, see items.py). With it a rank needs its own header, those that have values it wants, and
for each other tensor the header of one shard that the checkpoint's index names. That is a hint: if anything is missing, or
refused, the headers of all shards decide. So what is refused does not depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .forms import Path
from .items import name_of
from .stored import StoredItems, Text, gather_items, read_items, text_of

# Of an optimizer's group, whose values are compared beside those that are loaded.
_GROUP = re.compile(r"(?:^|\.)param_groups\.[0-9]+\.")

Inspect = Callable[[int | None, list[str]], dict[str, Any]]


class Found(NamedTuple):
    """The items that a rank wants, and what the ranks count together: names that no rank has its own of."""

    items: StoredItems
    names: dict[str, Path]  # Of values, and of tensors with elements.
    values: set[str]  # Which of these are plain values.


def find_all(details: Mapping[str, Any], rank: int, world: int) -> Found:
    """By the headers of all shards."""
    items = read_items(details, rank, world)
    for fqn in items.paths.keys() - items.values.keys() - items.pickled:
        items.chunks_of(fqn)  # Raises Corrupt.
    own = {fqn for given in details["values"] for fqn in text_of(details, given).own}
    names = {fqn: path for fqn, path in items.paths.items() if fqn not in own and not items.is_empty(fqn)}
    return Found(items, names, {*items.values, *items.pickled})


def find_some(
    chosen: Mapping[str, Any], inspect: Inspect, wanted: Iterable[str], rank: int, world: int
) -> Found | None:
    """By some headers: `inspect(rank, names)` reads those of a rank's shard and of shards that hold these names. None if
    they do not tell of all that is wanted."""
    if chosen["world"] == 1:
        return None
    texts: dict[int, Text] = {}
    rows: dict[tuple[str, str], Any] = {}

    def look(at: int | None, names: list[str]) -> bool:
        details = inspect(at, names)
        rows.update(((row[4], row[0]), row) for row in details["tensors"])
        if at is not None and at < len(details["values"]) and "dcp" in details["values"][at]:
            texts[at] = text_of(details, details["values"][at])
        return at is None or at in texts

    if not look(0, []) or (rest := texts[0].rest) is None:
        return None
    wanted = [*wanted]
    groups = {fqn[: at.start()] for fqn in wanted for at in [_GROUP.search(fqn)] if at}
    for at, values in rest.values.items():
        if not 0 <= at < chosen["world"]:
            return None
        of_groups = (
            fqn for fqn in values for found in [_GROUP.search(fqn)] if found and fqn[: found.start()] in groups
        )
        if at and (not values.keys().isdisjoint(wanted) or any(of_groups)) and not look(at, []):
            return None
    # Last: the engine keeps the header that was read last for a rank, and reads from it.
    if world == chosen["world"] and rank and not look(rank, []):
        return None
    items = gather_items(chosen, texts, rows.values(), rank, world)
    if missing := [fqn for fqn in wanted if not _has(items, fqn)]:
        if not rest.tied.isdisjoint(missing):
            return None
        look(None, [*map(name_of, missing)])
        items = gather_items(chosen, texts, rows.values(), rank, world)
    items.tied |= rest.tied
    items.paths |= rest.tensors
    for values in rest.values.values():
        items.paths |= values
    read = {f"{kind}-{of:05}" for of in texts for kind in ("shard", "kept")}  # As the engine names files.
    for fqn in wanted:
        # Bytes may be those of another dtype, which the text of their shard tells.
        chunks = items.chunks.get(fqn, ())
        if not _has(items, fqn) or any(one.dtype == "U8" and not _is_of(one.place[0], read) for one in chunks):
            return None
    empty = {fqn for fqn in texts[0].paths if items.is_empty(fqn)}
    names = {fqn: path for fqn, path in texts[0].paths.items() if fqn not in texts[0].own and fqn not in empty}
    plain = {*texts[0].values, *texts[0].pickled, *(fqn for paths in rest.values.values() for fqn in paths)}
    for paths in (rest.tensors, *rest.values.values()):
        names |= paths
    return Found(items, names, plain)


def _has(items: StoredItems, fqn: str) -> bool:
    return fqn in items.values or fqn in items.chunks


def _is_of(file: str, read: set[str]) -> bool:
    return "-".join(re.split("[-.]", file)[:2]) in read
