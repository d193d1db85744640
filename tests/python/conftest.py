"""What the tests share: a small checkpointer on a fresh root, and children that are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def make(root: Path) -> Iterator[Callable[..., cairn.Checkpointer]]:
    """Opens small checkpointers on the root; closes what a test leaves open."""
    opened: list[cairn.Checkpointer] = []

    def open_one(**options: Any) -> cairn.Checkpointer:
        for one in opened:
            one.close()
        opened.append(cairn.Checkpointer(root, **{"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, **options}))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
