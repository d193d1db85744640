"""Paths as users write them, and the folders of checkpoints."""

from __future__ import annotations

import os
import re
import sys

from ._errors import InvalidArgument, Unsupported
from ._tree.paths import shown

_MANIFEST = "manifest.json"


def local_path(path: str | os.PathLike[str], what: str = "the path") -> str:
    """The absolute path, with `~` expanded; `what` it is, for messages. Raises Unsupported for a URL that is not local,
    InvalidArgument for an empty path, and for one that is not UTF-8, as every name that Cairn writes is."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise InvalidArgument(f"{what}: expected a path, found {shown(path)}") from None
    if not text:
        raise InvalidArgument(f"{what}: expected a path, found an empty one")
    if match := re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text):
        if match[1] not in ("file", "local"):
            raise Unsupported(
                f"{text}: Cairn saves to mounted filesystems only: give a path of one, and copy checkpoints to "
                f"{match[1]}:// from there"
            )
        text = text[match.end() :]
    found = os.path.abspath(os.path.expanduser(text))
    try:
        same = os.fsencode(found).decode() == found
    except UnicodeError:
        same = False
    if not same or "\0" in found:
        raise InvalidArgument(
            f"{what}: expected a path of UTF-8 without NUL, found {found!a}; if it is one, this process's encoding of "
            f"names is {sys.getfilesystemencoding()}: set PYTHONUTF8=1"
        )
    return found


def checkpoint_path(path: str | os.PathLike[str], what: str = "the path") -> str:
    """The same for a checkpoint's folder, which may be written without its zeros: root/step-70."""
    found = local_path(path, what)
    folder, name = os.path.split(found)
    match = re.fullmatch(r"step-([0-9]{1,20})", name)
    return found if match is None or os.path.exists(found) else step_folder(folder, int(match[1]))


def step_folder(root: str, step: int) -> str:
    """Where a root has its checkpoint of this step."""
    return os.path.join(root, f"step-{step:020}")


def step_named(folder: str) -> int | None:
    """The step of a checkpoint's folder, from its name alone."""
    match = re.fullmatch(r"step-(\d{20})", folder)
    return int(match[1]) if match else None


def steps_in(root: str) -> list[int]:
    """Those of whatever has a checkpoint's name in a root, in any order."""
    return [step for name in os.listdir(root) if (step := step_named(name)) is not None]


def is_checkpoint(path: str) -> bool:
    return os.path.isfile(os.path.join(path, _MANIFEST))
