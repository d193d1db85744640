"""Checkpoints that are in an output folder: Cairn's, and those of the stock Trainer."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .._paths import step_folder, step_named
from .export import reader

_log = logging.getLogger("cairn")


def root_of(output_dir: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> str:
    """The root of a Trainer's checkpoints: output_dir/cairn, unless another is given."""
    return os.fspath(root or os.path.join(output_dir, "cairn"))


def step_of(folder: str | os.PathLike[str], root: str, steps: Collection[int]) -> int | None:
    """The step, if the folder is a checkpoint under this root; also one of these `steps` that is in memory alone."""
    path = Path(folder)
    step = step_named(path.name)
    there = step is not None and (path.is_dir() or (step in steps and path.parent.is_dir()))
    return step if there and path.parent.samefile(root) else None


def stock_step(folder: str | os.PathLike[str]) -> int | None:
    """The step of a stock Trainer's checkpoint that is complete: it writes trainer_state.json last."""
    found = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", Path(folder).name)
    return int(found[1]) if found and Path(folder, TRAINER_STATE_NAME).is_file() else None


def stock_checkpoints(output_dir: str | os.PathLike[str]) -> dict[int, str]:
    """The complete checkpoint-N folders of the stock Trainer, by step; logs those that are not."""
    found: dict[int, str] = {}
    for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if os.path.isdir(output_dir) else ():
        if (step := stock_step(path)) is not None:
            found[step] = os.fspath(path)
        elif path.is_dir():
            _log.warning("%s is passed over: it has no %s", path, TRAINER_STATE_NAME)
    return found


def last_checkpoint(
    output_dir: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    memory: str | os.PathLike[str] | None = None,
) -> str | None:
    """The newest checkpoint's folder, for `train(resume_from_checkpoint=...)`; None if there is none.

    That is the newest under the root (default: output_dir/cairn), or in the `memory` that cairn_options has; or, if its
    step is higher, the newest complete `checkpoint-N` of the stock Trainer in output_dir. The folder of what is in memory
    alone is where the disk will have it: train finds it. Logs what it has found.
    """
    root = root_of(output_dir, root)
    newest: int | None = None
    if os.path.isdir(root):
        with reader(root, memory) as checkpointer:
            newest = checkpointer.latest()
    return newest_of(output_dir, root, newest)


def newest_of(output_dir: str | os.PathLike[str], root: str, newest: int | None) -> str | None:
    """The same, where the newest step under the root is known."""
    stock = stock_checkpoints(output_dir)
    chosen = None if newest is None else step_folder(root, newest)
    if stock and (newest is None or max(stock) > newest):
        chosen = stock[max(stock)]
    ours = "no checkpoint of Cairn" if newest is None else f"Cairn's checkpoints up to step {newest}"
    theirs = f"the stock Trainer's up to step {max(stock)}" if stock else "none of the stock Trainer"
    _log.info("%s: found %s, %s: %s", output_dir, ours, theirs, f"resume from {chosen}" if chosen else "start anew")
    return chosen
