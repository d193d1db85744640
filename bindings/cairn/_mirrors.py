"""Mirrors of a root: what a Checkpointer is asked for, as its engine takes it. That runs them."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._arguments import several, size, whole
from ._errors import InvalidArgument
from ._paths import local_path
from ._tree.paths import shown

_STORES = ("s3://", "gs://", "az://", "rclone:")


@dataclass(frozen=True)
class Mirror:
    """A copy of a root's checkpoints elsewhere, for Checkpointer(mirrors=...).

    target      a directory of its own, made if it is missing; or a place in an object store, by rclone: s3://BUCKET/PREFIX,
                gs://, az:// or rclone:REMOTE:PATH
    every       only steps divisible by it
    keep_last   checkpoints to keep there, newest first; 0 keeps all
    keep_every  with keep_last: also keep each step divisible by it; 0: none
    bandwidth   how many bytes it may copy in a second, as a number or as text ("100MB"); 0: no limit
    """

    target: str | os.PathLike[str]
    every: int = 1
    keep_last: int = 0
    keep_every: int = 0
    bandwidth: int | str = 0


def target_of(target: Any, what: str) -> str:
    """A directory's absolute path, or the place in an object store as it is. Raises as local_path does."""
    return target if isinstance(target, str) and target.startswith(_STORES) else local_path(target, what)


def checked_mirrors(name: str, mirrors: Any) -> list[tuple[str, int, int, int, int]]:
    checked = []
    for mirror in several(name, mirrors):
        if not isinstance(mirror, Mirror):
            raise InvalidArgument(f"{name}: expected cairn.Mirror(target, ...), found {shown(mirror)}")
        which = f"Mirror({str(mirror.target)!r})"
        every, keep_last, keep_every = (
            whole(f"{which}: {rule}", getattr(mirror, rule)) for rule in ("every", "keep_last", "keep_every")
        )
        bandwidth = size(f"{which}: bandwidth", mirror.bandwidth)
        checked.append((target_of(mirror.target, "Mirror"), every, keep_last, keep_every, bandwidth))
    return checked


def command() -> str:
    """The `cairn` that was installed with this package; empty if there is none. Then the engine looks in PATH."""
    for folder in (sysconfig.get_path("scripts"), Path(__file__).parents[1] / "bin"):
        if os.access(program := os.path.join(folder, "cairn"), os.X_OK):
            return program
    return ""
