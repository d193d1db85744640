"""A job of many ranks, each a process of its own, and ranks that see another directory under the root's path."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import SHARED, TREE, expect_whole
from ranks import World

Worlds = Callable[..., World]
MANY = 64


def test_many_processes_save_and_restore_together(worlds: Worlds, root: Path) -> None:
    begun = time.monotonic()
    world = worlds(MANY, timeout=120)
    opened = time.monotonic()

    for step in (1, 2):
        assert world.all(f"c.save({step}, tree({step}, rank)).result()") == [step] * MANY
    saved = time.monotonic()

    assert world.all("same(c.restore(blank(rank)), tree(2, rank))") == [True] * MANY
    print(f"{MANY} processes: opened in {opened - begun:.1f} s, two saves {saved - opened:.1f} s,")
    print(f"restored in {time.monotonic() - saved:.1f} s")
    assert len(list(root.glob("step-*2/shard-*"))) == MANY
    expect_whole(root, 1, 2)


# In a rank: a mount namespace of its own (for the thread that asks for it, and those that it starts later), and another
# directory at the root's path in it. What the kernel answers comes back where it does not allow that.
MOUNTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, BIND, REC, PRIVATE = 0x20000, 4096, 16384, 1 << 18
def refused(result):
    return os.strerror(ctypes.get_errno()) if result else None
def own_mounts():
    return refused(libc.unshare(NEWNS)) or refused(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
def mount(other, root):
    os.makedirs(other, exist_ok=True), os.makedirs(root, exist_ok=True)
    return refused(libc.mount(other.encode(), root.encode(), None, BIND, None))
"""


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    """Three ranks, not open yet, of which rank 1 has mounts of its own."""
    world = World(3, root)
    world.all(TREE)
    world[1].run(MOUNTS)
    if why := world[1].run("own_mounts()"):
        world.end()
        pytest.skip(f"a test may not unshare its mounts here: {why}")
    yield world
    world.end()


def other_directory(world: World) -> Path:
    """What rank 1 sees under the root's path from now on."""
    other = world.root.with_name("other")
    assert world[1].run(f"mount({str(other)!r}, {str(world.root)!r})") is None
    assert world[1].run(f"os.path.samefile({str(other)!r}, {str(world.root)!r})")
    return other


def test_opening_fails_on_the_rank_that_sees_another_directory(world: World, root: Path) -> None:
    other = other_directory(world)

    answers = world.answers(f"open({str(root)!r}, group_timeout=3)")

    assert [answer.get("error") for answer in answers] == ["FailedPrecondition"] * 3, answers
    for answer in answers:
        unseen = f"{root}/.writer, which rank 0 has written, is not visible on rank 1 ({socket.gethostname()}) after"
        assert unseen in answer["message"]
        assert "is a mount missing, or the path wrong?" in answer["message"]
    assert all("rank 1: " in answers[rank]["message"] for rank in (0, 2)), answers
    assert list(other.iterdir()) == []


def test_saves_go_on_in_the_directory_that_was_opened(worlds: Worlds, world: World, root: Path) -> None:
    world.open(SHARED)
    for step in (1, 2):
        assert world.all(f"c.save({step}, tree({step}, rank)).result()") == [step] * 3
    other = other_directory(world)

    assert world.all("c.save(3, tree(3, rank)).result()") == [3] * 3
    restoring = world.answers("c.restore(blank(rank))")
    world.end()

    # What is found by the path is another directory's there: nothing is restored then, on any rank.
    for answer in restoring:
        assert answer.get("error") == "FailedPrecondition", answer
        assert f"{root} is another directory now" in answer["message"]
    assert list(other.iterdir()) == []
    assert len(list(root.glob("step-*3/shard-*"))) == 3
    expect_whole(root, 1, 2, 3)
    assert worlds(3).all("same(c.restore(blank(rank)), tree(3, rank))") == [True] * 3
