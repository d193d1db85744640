"""Pauses of copies, from Python."""

from __future__ import annotations

from collections.abc import Callable

import cairn
import pytest
import torch

Make = Callable[..., cairn.Checkpointer]


def tree() -> dict[str, torch.Tensor]:
    return {"weight": torch.ones(1_000_000)}


def test_copies_begin_when_a_pause_ends(make: Make) -> None:
    checkpointer = make()

    with checkpointer.pause_copies(3600):
        save = checkpointer.save(1, tree())
        with pytest.raises(cairn.DeadlineExceeded):
            save.captured(timeout=0.05)

    save.wait()
    assert checkpointer.steps() == [1]


def test_a_fence_goes_before_a_pause(make: Make) -> None:
    checkpointer = make()

    with checkpointer.pause_copies(3600):
        save = checkpointer.save(1, tree())
        checkpointer.fence(timeout=60)
        save.captured(timeout=0)


def test_a_pause_that_is_left_over_loses_no_save_at_the_end(make: Make) -> None:
    checkpointer = make()

    left = checkpointer.pause_copies(3600)
    save = checkpointer.save(1, tree())
    checkpointer.close(timeout=60)

    save.wait()
    left.end()


def test_a_pause_ends_by_itself(make: Make) -> None:
    checkpointer = make()

    pause = checkpointer.pause_copies(0.05)
    checkpointer.save(1, tree()).wait()

    pause.end()
    pause.end()


def test_bad_pauses_are_refused(make: Make) -> None:
    checkpointer = make()
    with pytest.raises(cairn.InvalidArgument, match="at_most: expected seconds, 0 or more, found -1"):
        checkpointer.pause_copies(-1)

    checkpointer.close()
    with pytest.raises(cairn.FailedPrecondition, match="closed"):
        checkpointer.pause_copies()
