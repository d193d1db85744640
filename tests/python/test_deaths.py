"""Ranks that end by SIGKILL at each point of the commit protocol, with the store alive and with it dead too; and ranks
that stand still longer than the others wait."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jobs import SHARED, TREE, alone
from ranks import World

Worlds = Callable[..., World]
RANKS = 3
# What a deadline decides, waits for it in all jobs at the same time.
DEADLINE = 5.0
# No deadline decides: an answer within this one came by other means.
NEVER = 60.0
# Who dies, and at which message (see ranks.py).
POINTS = [
    (0, "attempt", "said"),
    (0, "attempt", "given"),
    (1, "attempt", "heard"),
    (2, "attempt", "heard"),
    (1, "prepared", "said"),
    (2, "prepared", "said"),
    (1, "prepared", "given"),
    (2, "prepared", "given"),
    (0, "prepared", "heard"),
    (0, "outcome", "said"),
    (0, "outcome", "given"),
]


def die_in_the_second_save(world: World, victim: int, kind: str, when: str) -> None:
    assert world.all("c.save(1, tree(1, rank)).result()") == [1] * RANKS
    world[victim].run(f"die('{kind}/1', {when!r})")
    world.all("s = c.save(2, tree(2, rank)); None")
    assert world[victim].ended() == -signal.SIGKILL


def kill_store(world: World) -> None:
    assert world.store is not None
    world.store.kill()


def results(world: World, ranks: list[int]) -> list[dict[str, Any]]:
    for rank in ranks:
        world[rank].start("s.result()")
    return [world[rank].answer() for rank in ranks]


def job_that_loses(root: Path, victim: int, kind: str, when: str, store_too: bool) -> list[dict[str, Any]]:
    """What the survivors answer, after all that must hold has been looked at."""
    world = World(RANKS, root, hosted_by=RANKS)
    try:
        world.all(TREE)
        world.open(SHARED, DEADLINE)
        die_in_the_second_save(world, victim, kind, when)
        if store_too:
            kill_store(world)
        answers = results(world, [rank for rank in range(RANKS) if rank != victim])
    finally:
        world.end()
    expect_honest(root, answers)
    return answers


def expect_honest(root: Path, answers: list[dict[str, Any]]) -> None:
    """What is called durable is there, what is called failed is not, and a later job goes on. Of the second save."""
    durable = [answer for answer in answers if answer.get("value") == 2]
    unknown = [answer for answer in answers if answer.get("error") == "UnknownOutcome"]
    with alone(root) as reader:
        steps = reader.steps()
        for step in steps:
            reader.verify(step)
    assert steps in ([1], [1, 2]), steps
    assert not durable or steps == [1, 2], answers
    assert steps == [1] or len(durable) + len(unknown) == len(answers), f"told as failed, and is there: {answers}"
    newest = steps[-1]
    world = World(RANKS, root)
    try:
        world.all(TREE)
        world.open(SHARED)
        assert world.all(f"same(c.restore(blank(rank)), tree({newest}, rank))") == [True] * RANKS
        assert world.all(f"c.save({newest + 1}, tree({newest + 1}, rank)).result()") == [newest + 1] * RANKS
        assert world.all(f"same(c.restore(blank(rank)), tree({newest + 1}, rank))") == [True] * RANKS
    finally:
        world.end()


def knows(answers: list[dict[str, Any]], point: tuple[int, str, str], store_too: bool) -> bool:
    """Whether the survivors have said durable wherever they can know: where the coordinator has committed, and where it
    lives and has every message."""
    victim, kind, when = point
    committed = kind == "outcome" or (victim != 0 and (kind, when) == ("prepared", "given") and not store_too)
    return not committed or answers == [{"value": 2}] * 2


@pytest.mark.parametrize("store_too", [False, True], ids=["store alive", "store dead"])
def test_nobody_is_told_durable_what_is_not_and_a_later_job_goes_on(tmp_path: Path, store_too: bool) -> None:
    roots = [tmp_path / f"{kind}-{when}-{victim}" for victim, kind, when in POINTS]

    with ThreadPoolExecutor(len(POINTS)) as pool:
        jobs = [pool.submit(job_that_loses, root, *at, store_too) for root, at in zip(roots, POINTS, strict=True)]

    wrong = []
    for point, job in zip(POINTS, jobs, strict=True):
        if job.exception() is None and knows(job.result(), point, store_too):
            print(point, [answer.get("value", answer.get("error")) for answer in job.result()])
        else:
            wrong.append(f"{point}: {job.exception() or job.result()}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_stands_still_longer_than_the_others_wait(worlds: Worlds, root: Path, victim: int) -> None:
    world = worlds(RANKS, timeout=DEADLINE / 2)
    last = victim or 2  # Whose message is missing when the victim stops.
    assert world.all("c.save(1, tree(1, rank)).result()") == [1] * RANKS
    world[last].run("hold('prepared')")
    world.all("s = c.save(2, tree(2, rank)); None")
    assert world[last].run("reached()")
    world[victim].signal(signal.SIGSTOP)

    if victim == 0:
        world[last].run("release('prepared')")
    others = results(world, [rank for rank in range(RANKS) if rank != victim])
    world[victim].signal(signal.SIGCONT)
    if victim != 0:
        world[last].run("release('prepared')")
    late = results(world, [victim])

    print([answer.get("value", answer.get("error")) for answer in (*others, *late)])
    assert all(answer.get("error") in ("DeadlineExceeded", "UnknownOutcome") for answer in others), others
    assert world.all("c.save(3, tree(3, rank)).result()") == [3] * RANKS
    assert world.all("same(c.restore(blank(rank)), tree(3, rank))") == [True] * RANKS
    with alone(root) as reader:
        there = 2 in reader.steps()
        for step in reader.steps():
            reader.verify(step)
    assert there or not any("value" in answer for answer in late), late
    assert not there or all(answer.get("error", "UnknownOutcome") == "UnknownOutcome" for answer in others + late)


def test_others_know_of_the_commit_though_a_rank_died_that_was_prepared(worlds: Worlds) -> None:
    world = worlds(RANKS, timeout=NEVER)
    world[2].run("hold('prepared')")
    world[1].run("die('prepared/0', 'given')")
    world.all("s = c.save(2, tree(2, rank)); None")
    assert world[1].ended() == -signal.SIGKILL
    assert world[2].run("reached()")

    begun = time.monotonic()
    world[2].run("release('prepared')")
    answers = results(world, [0, 2])
    seconds = time.monotonic() - begun

    print(f"rank 1 dead once prepared: the others know of the commit {seconds:.3f} s after the last message")
    assert answers == [{"value": 2}] * 2
    assert seconds < NEVER / 2


def test_others_know_of_the_commit_though_the_coordinator_and_the_store_died(worlds: Worlds) -> None:
    world = worlds(RANKS, timeout=NEVER, hosted_by=RANKS)
    die_in_the_second_save(world, 0, "outcome", "said")

    begun = time.monotonic()
    kill_store(world)
    answers = results(world, [1, 2])
    seconds = time.monotonic() - begun

    print(f"coordinator dead after its rename, and the store: the others know of the commit {seconds:.3f} s later")
    assert answers == [{"value": 2}] * 2
    assert seconds < NEVER / 2
