"""Reading a checkpoint by its path alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _in_flight
from ._arguments import host_memory_size, parse_size, seconds
from ._checkpointer import Checkpointer
from ._errors import InvalidArgument, NotFound
from ._paths import checkpoint_path, is_checkpoint


def load(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    names: str | Sequence[str] | None = None,
    lazy: bool = False,
    map_location: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Builds a tree from a checkpoint, every byte verified: objects come back as their state dicts.

    `path` is a root (its newest checkpoint, or `step`), or the folder of one checkpoint, such as root/step-70 (the zeros of
    its name may be left out), also where it was copied elsewhere. Nothing is written. It waits for saves of this process
    as Checkpointer.load does, and for no other process. The other options are Checkpointer.load's. Raises NotFound if
    there is no checkpoint, InvalidArgument if the path is a file, Corrupt if the checkpoint is damaged. To continue
    training use Checkpointer.restore.
    """
    path = checkpoint_path(path)
    how: dict[str, Any] = {"names": names, "lazy": lazy, "map_location": map_location, "progress": progress}
    expect_folder(path, {})
    if is_checkpoint(path):
        if step is not None:
            raise InvalidArgument(f"step {step}: {path} is no root, from which a step could be chosen")
        return load_checkpoint(path, {}, **how)
    reader = Checkpointer(path, read_only=True, **for_reading({}))
    if lazy:
        return reader.load(step, **how)  # Its tensors keep the engine alive.
    with reader:
        return reader.load(step, **how)


def load_checkpoint(path: str, options: Mapping[str, Any], **how: Any) -> Any:
    """The tree in one checkpoint's folder, as `load` reads it. `options` are a Checkpointer's that saves."""
    reader = reader_of(path, options)
    if how.get("lazy"):
        return reader.load(folder=path, **how)
    with reader:
        return reader.load(folder=path, **how)


def reader_of(path: str, options: Mapping[str, Any], group: Any = None) -> Checkpointer:
    """A Checkpointer that can read the checkpoint in this folder. `options` are a Checkpointer's that saves. With a
    `group` every rank calls it. Waits for what this process saves there."""
    expect_folder(path, options)
    return Checkpointer(os.path.dirname(path), read_only=True, group=group, **for_reading(options))


def expect_folder(path: str, options: Mapping[str, Any]) -> None:
    """Raises NotFound if there is nothing at the path, InvalidArgument for a file. Waits for what this process saves there."""
    _in_flight.wait_for("", None, path, seconds("close_timeout", options.get("close_timeout", 600.0)))
    if not os.path.exists(path):
        raise NotFound(f"there is no checkpoint at {path}")
    if not os.path.isdir(path):
        raise InvalidArgument(
            f"{path}: expected a Cairn checkpoint, which is a folder, found a file; if torch.save wrote it, read it "
            "with torch.load: Cairn unpickles nothing"
        )


def for_reading(options: Mapping[str, Any]) -> dict[str, Any]:
    """A Checkpointer's options with a pool that is no larger than reading needs."""
    left_out = (
        "staging",
        "trace_events",
        "metrics_file",
        "metrics_port",
        "on_failure",
        "mirrors",
        "restore_from",
        "memory",
    )
    chosen = {key: value for key, value in options.items() if key not in left_out}
    chunk, depth = parse_size(chosen.get("chunk", 0)) or 8 << 20, chosen.get("queue_depth", 0) or 8
    if memory := host_memory_size("host_memory", chosen.get("host_memory", "auto")):
        chosen["host_memory"] = min(memory, 2 * chunk * depth)
    return chosen
