"""Checkpointer(memory=...) in a group: all ranks keep a save, or none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import SHARED, expect_whole
from ranks import World

Worlds = Callable[..., World]


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_all_go_on_with_the_last_step_that_they_have_kept(worlds: Worlds, root: Path, memory: Path) -> None:
    """However far the disk has come."""
    options = f"{SHARED}, memory={str(memory)!r}"
    world = worlds(3, options)
    for step in range(1, 6):
        assert world.all(f"c.save({step}, tree({step}, rank)).kept()") == [None] * 3
    assert world.all("c.stats['saves_kept']") == [5] * 3
    world.end()

    world = worlds(3, options)
    assert world.all("same(c.load(), tree(5, rank))") == [True] * 3
    assert world.all("c.save(6, tree(6, rank)).result()") == [6] * 3
    assert world.all("c.close()") == [None] * 3
    assert list(memory.iterdir()) == []
    expect_whole(root, *sorted({5, 6} | {int(one.name[5:]) for one in root.glob("step-*")}))


def test_contents_are_compared_once_also_if_the_disk_does_not_get_that_save(
    worlds: Worlds, root: Path, memory: Path
) -> None:
    """Each rank hears at another moment that the disk does not get it."""
    world = worlds(2, f"memory={str(memory)!r}, disk_every=100, replicated=['*']")
    world.all("saves = {step: c.save(step, {'w': torch.ones(10 + (step > 1))}) for step in (1, 2, 3)}")
    assert world.all("saves[3].kept()") == [None] * 2
    for rank in (0, 1):
        world[rank].start("saves[2].wait()")
        assert "left out of the disk" in world[rank].answer()["message"]

    # Another rank would take the later ones for the first of their sizes.
    assert world.all("c.save(4, {'w': torch.full((11,), float(rank))}).kept()") == [None] * 2


def test_a_rank_that_dies_fails_the_saves_by_name_and_loses_nothing_kept(
    worlds: Worlds, root: Path, memory: Path
) -> None:
    options = f"{SHARED}, memory={str(memory)!r}"
    world = worlds(3, options, timeout=2)
    assert world.all("c.save(1, tree(1, rank)).kept()") == [None] * 3
    world[1].kill()
    for rank in (0, 2):
        world[rank].start("c.save(2, tree(2, rank)).kept()")
    for rank in (0, 2):
        assert "nothing from rank 1" in world[rank].answer()["message"]
    world.end()

    world = worlds(3, options)
    assert world.all("same(c.load(), tree(1, rank))") == [True] * 3
    assert world.all("c.save(2, tree(2, rank)).result()") == [2] * 3


def test_a_process_group_of_torch_keeps_too(worlds: Worlds, root: Path, memory: Path) -> None:
    world = worlds(2, fresh=True)
    code = f"""
dist.init_process_group("gloo")
d = cairn.Checkpointer({str(root / "ddp")!r}, group=dist.group.WORLD, group_timeout=20, memory={str(memory)!r},
                       host_memory="8MiB", chunk="1MiB", queue_depth=2)
d.save(1, tree(1, rank)).kept()
d.drain()
"""
    assert world.all(code) == [None] * 2
    assert world.all("d.stats['saves_kept'], d.stats['saves_durable']") == [[1, 1]] * 2
    assert world.all("same(d.load(), tree(1, rank))") == [True] * 2


def test_a_rank_without_it_is_named_by_all(root: Path, memory: Path) -> None:
    world = World(2, root)
    try:
        answers = world.answers(f"open({str(root)!r}, group_timeout=20, memory={str(memory)!r} if rank == 0 else None)")
    finally:
        world.end()
    for answer in answers:
        assert answer["error"] == "InvalidArgument"
        assert "memory_root: expected one, as on rank 0, found none on rank 1" in answer["message"]
    assert list(memory.iterdir()) == []
