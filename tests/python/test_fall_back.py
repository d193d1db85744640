"""Ranks that fall back together from a damaged checkpoint, and ranks that look at no more than they read."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
import safetensors
import torch
from jobs import SHARED, alone
from ranks import World

Worlds = Callable[..., World]
RANKS = 3

# In a rank: what it logs from now on.
LISTEN = """
import logging
told = []
class Listener(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("passed over"):
            told.append(record.getMessage())
logging.getLogger("cairn").addHandler(Listener())
"""
# How its restores went, and whether it is bit by bit the tree of the step that it says.
RESTORE = """
def restore(**how):
    found = c.restore(blank(rank), **how)
    return [found["step"], same(found, tree(found["step"], rank))]
"""


def shard_of(root: Path, step: int, rank: int) -> Path:
    return root / f"step-{step:020d}" / f"shard-{rank:05d}.safetensors"


def flip(file: Path, from_end: int = 5) -> None:
    """One bit of a shard's data."""
    data = bytearray(file.read_bytes())
    data[-from_end] ^= 1
    file.write_bytes(data)


def saved(worlds: Worlds, *steps: int, options: str = "", timeout: float = 20) -> World:
    """Each rank reads its own shard and no other, unless by these options something is replicated."""
    world = worlds(RANKS, options, timeout)
    world.all(LISTEN)
    world.all(RESTORE)
    for step in steps:
        assert world.all(f"c.save({step}, tree({step}, rank)).result()") == [step] * RANKS
    return world


def test_all_ranks_fall_back_from_what_is_damaged_on_one(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, 1, 2)
    flip(shard_of(root, 2, 1))

    assert world.all("restore(fall_back=True)") == [[1, True]] * RANKS

    for told in world.all("told"):
        (reason,) = told
        assert f"{shard_of(root, 2, 1).parent}: rank 1: " in reason and shard_of(root, 2, 1).name in reason
        assert "CRC32C" in reason
    # The line goes on from there.
    assert world.all("c.save(2, tree(2, rank), replace=True).result()") == [2] * RANKS
    assert world.all("restore()") == [[2, True]] * RANKS


def test_damage_in_what_is_replicated_is_found_by_whoever_reads_it(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, 1, 2, options=SHARED)
    flip(shard_of(root, 2, 1))

    assert world.all("restore(fall_back=True)") == [[1, True]] * RANKS

    assert all(len(told) == 1 and str(shard_of(root, 2, 1)) in told[0] for told in world.all("told"))


def test_damage_in_several_checkpoints_is_passed_over_one_by_one(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, 1, 2, 3)
    flip(shard_of(root, 3, 2))
    shard_of(root, 2, 0).unlink()

    assert world.all("restore(fall_back=True)") == [[1, True]] * RANKS

    for newest, older in world.all("told"):
        assert "rank 2: " in newest and str(shard_of(root, 3, 2)) in newest
        assert "rank 0: " in older and str(shard_of(root, 2, 0)) in older


def test_a_damaged_manifest_is_passed_over_by_all(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, 1, 2, 3)
    flip(shard_of(root, 3, 1))
    (shard_of(root, 2, 0).parent / "manifest.json").write_text("{}")

    assert world.all("restore(fall_back=True)") == [[1, True]] * RANKS

    for first, second in world.all("told"):
        assert "rank 0: " in first and "manifest.json" in first
        assert "rank 1: " in second and str(shard_of(root, 3, 1)) in second


def test_from_a_given_step_only_older_ones_are_fallen_back_to(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, 1, 2, 3)
    flip(shard_of(root, 2, 1))

    assert world.all("restore(step=2, fall_back=True)") == [[1, True]] * RANKS


@pytest.mark.parametrize("fall_back", [False, True])
def test_damage_of_all_that_there_is_is_said_by_all(worlds: Worlds, root: Path, fall_back: bool) -> None:
    world = saved(worlds, 1)
    flip(shard_of(root, 1, 1))

    answers = world.answers(f"restore(fall_back={fall_back})")

    assert [answer.get("error") for answer in answers] == ["Corrupt"] * RANKS, answers
    assert all(str(shard_of(root, 1, 1)) in answer["message"] for answer in answers)
    assert all(answers[rank]["message"].startswith("rank 1: ") for rank in (0, 2))


def test_the_first_damage_is_said_where_nothing_is_left(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, 1, 2)
    flip(shard_of(root, 2, 2))
    flip(shard_of(root, 1, 0))

    answers = world.answers("restore(fall_back=True)")

    assert [answer.get("error") for answer in answers] == ["Corrupt"] * RANKS, answers
    assert all(str(shard_of(root, 2, 2)) in answer["message"] for answer in answers)
    assert world.all("len(told)") == [2] * RANKS


@pytest.mark.parametrize("found", ["by its header", "in its data"])
def test_nobody_passes_over_what_is_not_damage(worlds: Worlds, root: Path, found: str) -> None:
    world = saved(worlds, 1, 2)
    damaged = shard_of(root, 2, 1)
    flip(damaged, 5 if found == "in its data" else damaged.stat().st_size - 10)

    code = """
target = blank(rank)
if rank == 2:
    target["mine"] = torch.zeros(7)
c.restore(target, fall_back=True)
"""
    answers = world.answers(code)

    assert [answer.get("error") for answer in answers] == ["InvalidArgument"] * RANKS, answers
    assert all("mine" in answer["message"] for answer in answers)
    # Found before anybody read a byte.
    assert world.all("told") == [[]] * RANKS
    assert world.all("same(target, blank(rank) | {'mine': target['mine']})") == [True] * RANKS
    assert world.all("float(target['mine'].abs().sum())") == [0] * RANKS


def test_no_part_of_a_damaged_checkpoint_stays_beside_an_older_one(worlds: Worlds, root: Path) -> None:
    """With strict=False what the older one lacks stays as it is in the tree: it must not be the damaged one's."""
    world = worlds(2, "")
    world.all("tensor = lambda value: torch.full((100_000,), float(value))")
    assert world.all("c.save(1, {'w': tensor(1)}).result()") == [1] * 2
    assert world.all("c.save(2, {'new': tensor(2), 'w': tensor(2)}).result()") == [2] * 2
    flip(shard_of(root, 2, 1))  # Of w, when all before it was read.

    for answer in world.answers("c.restore({'new': tensor(0), 'w': tensor(0)}, fall_back=True, strict=False)"):
        assert answer.get("error") == "InvalidArgument", answer
        assert f"step-{1:020} lacks new, into which a part of another checkpoint was read" in answer["message"]
        assert f"step-{2:020}. The tree would have values of both" in answer["message"]
    # What the older one has too, and what no checkpoint has, is as ever.
    world.all("found = c.restore({'w': tensor(0), 'more': tensor(3)}, fall_back=True, strict=False)")
    assert world.all("[found[key].unique().tolist() for key in ('w', 'more')]") == [[[1.0], [3.0]]] * 2


def test_a_rank_that_dies_in_mid_read_is_missed_within_the_deadline(worlds: Worlds, root: Path) -> None:
    timeout = 4.0
    world = saved(worlds, 1, 2, timeout=timeout)
    flip(shard_of(root, 2, 2))
    # Its progress is told from within the read.
    world[1].run("import os, signal\ndef die_here(done, total): os.kill(os.getpid(), signal.SIGKILL)")

    begun = time.monotonic()
    world.all("how = {'progress': die_here} if rank == 1 else {}")
    for rank in world.ranks:
        rank.start("restore(fall_back=True, **how)")
    answers = [rank.answer() for rank in world.ranks]
    seconds = time.monotonic() - begun

    assert world[1].ended() == -signal.SIGKILL
    for rank in (0, 2):
        assert answers[rank].get("error") == "DeadlineExceeded", answers
    assert "on this rank: " in answers[2]["message"] and str(shard_of(root, 2, 2)) in answers[2]["message"]
    assert "rank 1" in answers[0]["message"]
    assert timeout / 2 < seconds < 4 * timeout, seconds


# In a rank: what is done before it looks at what was chosen, or reads it, for the first `times` times.
MEANWHILE = """
import os
def before(what, times, then):
    done, left = getattr(c._engine.reading, what), [times]
    def changed(*given):
        if left[0]:
            left[0] -= 1
            then()
        return done(*given)
    setattr(c._engine.reading, what, changed)
"""


def test_what_is_gone_in_mid_read_is_chosen_anew(worlds: Worlds, root: Path, tmp_path: Path) -> None:
    """As where a filesystem knows no locks."""
    world = saved(worlds, 1, 2)
    world.all(MEANWHILE)
    gone = shard_of(root, 2, 0).parent
    world[1].run(f"before('_own_view', 1, lambda: os.rename({str(gone)!r}, {str(tmp_path / 'gone')!r}))")

    assert world.all("restore(fall_back=True)") == [[1, True]] * RANKS

    assert world.all("told") == [[]] * RANKS  # It was not damaged.
    assert [answer.get("error") for answer in world.answers("restore(step=2)")] == ["NotFound"] * RANKS


def test_what_is_replaced_in_mid_read_is_chosen_anew(worlds: Worlds, root: Path, tmp_path: Path) -> None:
    world = saved(worlds, 1)
    world.all(MEANWHILE)
    step, other, gone = shard_of(root, 1, 0).parent, tmp_path / "other", tmp_path / "gone"
    shutil.copytree(step, other)
    assert world.all("c.save(1, tree(5, rank), replace=True).result()") == [1] * RANKS
    swap = f"os.rename({str(step)!r}, {str(gone)!r}); os.rename({str(other)!r}, {str(step)!r})"
    world[1].run(f"def swap(): {swap}\nbefore('_begin', 1, swap)")

    assert world.all("restore()") == [[1, True]] * RANKS


def test_a_choice_that_is_always_gone_is_given_up(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, 1, timeout=3)
    world.all(MEANWHILE)
    world[1].run("def lost():\n    global times\n    times += 1\n    raise cairn.NotFound('gone again')")
    world[1].run("times = 0; before('_own_view', 1000, lost)")

    answers = world.answers("restore()")

    assert [answer.get("error") for answer in answers] == ["FailedPrecondition"] * RANKS, answers
    assert answers[0]["message"].startswith("rank 1: ") and "(gone again)" in answers[0]["message"]
    assert 1 < world[1].run("times") < 100


def damaged_alone(make: Callable[..., cairn.Checkpointer], root: Path) -> cairn.Checkpointer:
    checkpointer = make()
    for step in (1, 2, 3):
        checkpointer.save(step, {"t": torch.full((1000,), float(step)), "step": step}).wait()
    flip(shard_of(root, 3, 0))
    return checkpointer


def test_alone_nothing_is_read_before_to_find_out(make: Callable[..., cairn.Checkpointer], root: Path) -> None:
    checkpointer = damaged_alone(make, root)
    read: list[tuple[int, int]] = []

    found = checkpointer.restore(
        {"t": torch.zeros(1000), "step": 0}, fall_back=True, progress=lambda *of: read.append(of)
    )

    assert found["step"] == 2 and torch.equal(found["t"], torch.full((1000,), 2.0))
    assert read == [(4000, 4000)], "only what was good is told as read, once"


def test_alone_fall_back_is_as_in_a_group(
    make: Callable[..., cairn.Checkpointer], root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = damaged_alone(make, root)
    tree: dict[str, Any] = {"t": torch.zeros(1000), "step": 0}
    flip(shard_of(root, 1, 0))

    assert checkpointer.restore(tree, fall_back=True)["step"] == 2
    assert checkpointer.latest(fall_back=True) == 2
    # A restore knows whose bytes they are.
    said = {record.getMessage() for record in caplog.records if "passed over" in record.getMessage()}
    (reason,) = {one.removesuffix(', of tensor "t"') for one in said}
    assert reason.startswith(f"passed over: {shard_of(root, 3, 0).parent}: ") and "rank" not in reason
    flip(shard_of(root, 2, 0))
    for call in (lambda: checkpointer.restore(tree, fall_back=True), lambda: checkpointer.latest(fall_back=True)):
        with pytest.raises(cairn.Corrupt, match=shard_of(root, 3, 0).parent.name):
            call()


# In a rank: one tensor is replicated, so that one shard holds it.
ONE_SHARED = """
def one_shared(fill):
    return {"mine": torch.full((4,), fill * (1.0 + rank)), "shared": {"w": torch.full((8,), fill * 7.0)}, "step": 1}
"""


def held_by(root: Path) -> int:
    """The rank whose shard holds what is replicated."""
    (holder,) = (
        rank
        for rank in range(RANKS)
        if "shared/w" in safetensors.safe_open(shard_of(root, 1, rank), "pt").keys()  # noqa: SIM118
    )
    return holder


def test_a_rank_looks_at_its_own_shard_and_at_those_that_hold_what_is_replicated(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, options=SHARED)
    world.all(ONE_SHARED)
    world.all("c.save(1, one_shared(1)).wait()")
    other = (held_by(root) + 1) % RANKS
    restoring = "same(c.restore(one_shared(0)), one_shared(1))"
    assert world.all(restoring) == [True] * RANKS
    shard_of(root, 1, other).write_bytes(b"no header")

    answers = world.answers(restoring)

    # Who had looked at it would have an error of its own.
    assert [answer.get("error") for answer in answers] == ["Corrupt"] * RANKS, answers
    assert all(answers[rank]["message"].startswith(f"rank {other}: ") for rank in range(RANKS) if rank != other)


def test_what_is_replicated_is_restored_from_the_shards_that_hold_it(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, options=SHARED)
    world.all(ONE_SHARED)
    world.all("c.save(1, one_shared(1)).wait(); c.close()")
    unneeded = {1, 2} - {held_by(root)}  # The tree's text is in rank 0's.
    for rank in unneeded:
        shard_of(root, 1, rank).unlink()
    tree = {"shared": {"w": torch.zeros(8)}, "step": 0}

    with alone(root) as reader:
        assert reader.restore(tree)["step"] == 1
        assert torch.equal(tree["shared"]["w"], torch.full((8,), 7.0))
        with pytest.raises(cairn.Corrupt):
            reader.load(names="shared/*")  # It looks at all.


def test_a_copy_of_another_checkpoint_is_no_reason_to_start_anew(worlds: Worlds, root: Path, tmp_path: Path) -> None:
    """Which NotFound would be, to who catches it."""
    world = saved(worlds, 1, 2)
    for rank in range(RANKS):
        shutil.copytree(shard_of(root, 1 if rank == 2 else 2, 0).parent, tmp_path / f"copy{rank}")

    answers = world.answers(f"restore(folder={str(tmp_path)!r} + f'/copy{{rank}}')")

    assert [answer.get("error") for answer in answers] == ["FailedPrecondition"] * RANKS, answers
    assert "rank 2: " in answers[0]["message"] and str(tmp_path / "copy2") in answers[0]["message"]


@pytest.mark.parametrize("other", ["step=1", "fall_back=True"])
def test_ranks_that_ask_for_different_things_are_told(worlds: Worlds, root: Path, other: str) -> None:
    world = saved(worlds, 1, 2)
    world.all(f"how = dict({other}) if rank == 1 else dict()")

    answers = world.answers("restore(**how)")

    assert [answer.get("error") for answer in answers] == ["InvalidArgument"] * RANKS, answers
    assert "expected the newest, as on rank 0; found" in answers[0]["message"]


def test_at_another_number_of_ranks_a_shard_that_nobody_wants_costs_nothing(worlds: Worlds, root: Path) -> None:
    world = saved(worlds, options=SHARED)
    world.all(ONE_SHARED)
    for step in (1, 2):
        world.all(f"c.save({step}, one_shared({step})).wait()")
    world.all("c.close()")
    for rank in {1, 2} - {held_by(root)}:
        shard_of(root, 2, rank).unlink()

    four = worlds(4, SHARED, 20)
    four.all(LISTEN)
    found = four.all("c.restore({'shared': {'w': torch.zeros(8)}, 'step': 0}, fall_back=True)['shared']['w'].tolist()")

    assert found == [[14.0] * 8] * 4
    assert four.all("told") == [[]] * 4
