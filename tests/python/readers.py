"""The ways to read a checkpoint into tensors: restore, cairn.dcp by path, and its StorageReader with DCP's own planner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
from torch.distributed import checkpoint as dcp

Restore = Callable[..., None]
Save = Callable[..., Path]


def plain(path: Path, tree: Any, cast: str | None = None) -> None:
    with cairn.Checkpointer(path, read_only=True) as checkpointer:
        checkpointer.restore(tree, cast=cast)


def by_path(path: Path, tree: Any, cast: str | None = None) -> None:
    cairn.dcp.load(tree, checkpoint_id=path / "step-1", cast=cast, no_dist=True)


def stock_planner(path: Path, tree: Any, cast: str | None = None) -> None:
    dcp.load(tree, storage_reader=cairn.dcp.StorageReader(path, cast=cast), no_dist=True)


@pytest.fixture(params=[plain, by_path, stock_planner])
def restore(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def saved(restore: Restore, root: Path) -> Save:
    """Saves a tree of step 1 as the reader expects it."""

    def save(tree: Any) -> Path:
        with cairn.Checkpointer(root) as checkpointer:
            if restore is plain:
                checkpointer.save(1, tree).result()
            else:
                dcp.save(tree, storage_writer=cairn.dcp.StorageWriter(checkpointer, 1), no_dist=True)
        return root

    return save
