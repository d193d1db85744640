"""Names that a rank sees late, and listings that are old (NFS): looked for until group_timeout. The ranks are processes whose
libc hides names (late_names.c)."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import TREE, until
from ranks import World

LOGGED = """
import logging
logged = []
class Kept(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())
logging.getLogger("cairn").addHandler(Kept())
"""
Late = Callable[..., None]


def wait_for_looks(file: Path, count: int) -> None:
    until(lambda: file.exists() and file.stat().st_size >= count)


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Late:
    """Gives a rank's lines for late_names.c; none: it sees everything."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for what is preloaded")
    library = tmp_path / "late_names.so"
    source = Path(__file__).with_name("late_names.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", source, "-o", library, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("LATE_NAMES", str(tmp_path / "late"))

    def set_lines(rank: int, *lines: str) -> None:
        (tmp_path / "late.looked").unlink(missing_ok=True)
        control = tmp_path / f"late.{rank}"
        control.write_text("".join(f"{line}\n" for line in lines)) if lines else control.unlink()

    return set_lines


@pytest.fixture
def world(late: Late, root: Path) -> Iterator[World]:
    world = World(2, root, fresh=True)
    world.all(TREE)
    world.all(LOGGED)
    yield world
    world.end()


def test_what_another_rank_made_is_looked_for(late: Late, world: World, root: Path, tmp_path: Path) -> None:
    opening = f"open({str(root)!r}, group_timeout=60, io_queue='threads')"
    restored = "same(c.restore(blank(rank)), tree(2, rank))"
    for rank, name, call, value in (
        (1, ".writer", opening, None),
        (1, ".attempt-", "c.save(1, tree(1, rank)).result()", 1),
        (0, "shard-00001", "c.save(2, tree(2, rank)).result()", 2),
        (1, "step-", restored, True),
    ):
        late(rank, "-" + name)
        for one in world.ranks:
            one.start(call)
        wait_for_looks(tmp_path / "late.looked", 8)
        late(rank)
        assert [one.value() for one in world.ranks] == [value] * 2, name

        world.all("c.check()")
        logged = [line for line in world[rank].run("logged") if "is not visible yet" in line]
        assert len(logged) == 1, logged
        assert name in logged[0]
        assert f"is not visible yet on rank {rank} ({socket.gethostname()}); looking for it" in logged[0]
        world.all("logged.clear()")

    world.all("c.close()")
    world.open("io_queue='threads'", timeout=1)
    late(1, "-step-")
    for answer in world.answers("c.restore(blank(rank))"):
        assert answer.get("error") == "FailedPrecondition", answer
        assert f"which rank 0 has chosen, is not visible on rank 1 ({socket.gethostname()}) after" in answer["message"]
        assert "is a mount missing" in answer["message"]
    late(1)
    assert world.all(restored) == [True] * 2


def test_an_old_listing_ends_no_read_of_a_process_alone(late: Late, root: Path) -> None:
    world = World(1, root, fresh=True)
    world[0].run(TREE)
    world[0].run(f"import cairn; c = cairn.Checkpointer({str(root)!r})")
    assert world[0].run("[c.save(step, tree(step, 0)).result() for step in (1, 2)]") == [1, 2]

    late(0, f"+step-{9:020}")  # It names a step that is gone.
    newest = world[0].run("same(c.restore(blank(0)), tree(2, 0)) and c.load()['step']")
    late(0, f"-step-{2:020}x", f"+step-{9:020}")
    named = world[0].run("same(c.restore(blank(0), step=2), tree(2, 0)) and c.latest(fall_back=True)")
    world.end()

    assert (newest, named) == (2, 2)
