"""Ranks that die by SIGKILL at each message with which they open a root, and those that come after them on the same store:
one rank alone, or the whole job; of as many ranks or of another number. And a store that is lost meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from jobs import SHARED, TREE
from ranks import Rank

RANKS = 3
# What a deadline decides, waits for it in all jobs at the same time.
DEADLINE = 4.0
# No deadline decides: an answer came by other means.
NEVER = 120.0
# Runs in a rank. `watch(before, tell)`: it dies before its first call of the store for a key of that name ("set hello"),
# and sets `tell` in the store once it has answered another rank. With `until` it waits there for that key instead. Its
# connections take `late` seconds.
WATCHED = """
import contextlib, os, signal
from datetime import timedelta
from cairn._ranks import stores
class Watched:
    def __init__(self, store, before, tell, until):
        self.store, self.before, self.tell, self.until = store, before.split(), tell, until
    def __getattr__(self, name):
        def call(*arguments):
            key = arguments[0] if isinstance(arguments[0], str) else arguments[0][0]
            if self.before and self.before[0] == name and self.before[1] in key.split("/"):
                if not self.until:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.store.wait([self.until])
            answer = getattr(self.store, name)(*arguments)
            if self.tell and name == "set" and "welcome" in key.split("/"):
                self.store.set(self.tell, "")
            return answer
        return call
def watch(before="", tell="", until="", late=0.0):
    own = stores.own_connection
    def connect(store):
        made = own(store)
        with contextlib.suppress(RuntimeError):
            late and made.wait(["never"], timedelta(seconds=late))
        return Watched(made, before, tell, until)
    stores.own_connection = connect
"""
# The messages of a rank that opens, in order; it has joined once it has taken its hello away.
OPENS = ["set opens", "set hello", "wait welcome", "compare_set welcome", "delete_key welcome", "delete_key hello"]
JOINED = ["delete_key opens", "add inbox", "compare_set inbox"]
# And those of rank 0; from the first welcome on a rank may be in its session.
LEADS = ["set opens", "compare_set hello", "set welcome"]
LED = ["delete_key opens", "compare_set log"]


class Starts:
    """Processes that start as ranks, each time on the same store."""

    def __init__(self, root: Path, hosted: bool = True) -> None:
        self.root = root
        self._made: list[Rank] = []
        self.server: Rank | None = None
        if hosted:
            self.host = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        else:
            self.server = Rank(0, 1, 0, False)
            self._made.append(self.server)
            port = self.server.run("serve()")
            self.host = torch.distributed.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)

    def rank(
        self, rank: int, world: int = RANKS, before: str = "", tell: str = "", until: str = "", late: float = 0.0
    ) -> Rank:
        one = Rank(rank, world, self.host.port, False)
        self._made.append(one)
        one.run(f"{TREE}\n{WATCHED}\nconnect({self.host.port}); watch({before!r}, {tell!r}, {until!r}, {late})")
        return one

    def open(self, *ranks: Rank, timeout: float = NEVER) -> None:
        """They begin to open the root, and to save a step."""
        for one in ranks:
            one.start(f"open({str(self.root)!r}, group_timeout={timeout}, {SHARED}); c.save(1, tree(1, rank)).result()")

    def hello(self, rank: int) -> str:
        return f"cairn/{self.root}/hello/{rank}"

    def end(self) -> None:
        for one in self._made:
            one.kill()


Job = Callable[[Starts], None]


@pytest.fixture
def starts(root: Path) -> Iterator[Starts]:
    made = Starts(root)
    yield made
    made.end()


@pytest.fixture
def lost(root: Path) -> Iterator[Starts]:
    """Their store is a process of its own."""
    made = Starts(root, hosted=False)
    yield made
    made.end()


def all_at_once(tmp_path: Path, points: list[Any], job: Callable[..., None]) -> None:
    """Runs job(starts, point) for each point, and says which failed."""

    def one(number: int, point: Any) -> None:
        starts = Starts(tmp_path / str(number))
        try:
            job(starts, point)
        finally:
            starts.end()

    with ThreadPoolExecutor(4) as pool:
        jobs = [(point, pool.submit(one, number, point)) for number, point in enumerate(points)]
    wrong = [f"before {point}: {job.exception()}" for point, job in jobs if job.exception() is not None]
    assert not wrong, "\n".join(wrong)


def values(*ranks: Rank) -> list[Any]:
    return [answer.get("value", answer) for answer in (rank.answer() for rank in ranks)]


def expect_late(rank: Rank, named: str) -> None:
    answer = rank.answer()
    assert answer.get("error") == "DeadlineExceeded" and named in answer["message"], answer


def start_with_one_that_dies(
    starts: Starts, victim: int, before: str, timeout: float = NEVER, others: float = NEVER
) -> list[Rank]:
    """The ranks of a job, once that one is dead, and answered if it had asked. `timeout` is rank 0's."""
    group = [starts.rank(rank, before=before if rank == victim else "", tell="told") for rank in range(RANKS)]
    starts.open(group[0], timeout=timeout)
    starts.open(*group[1:], timeout=others)
    assert group[victim].ended() == -signal.SIGKILL
    if victim != 0 and before not in OPENS[:2]:
        starts.host.wait(["told"])
    return group


def test_a_rank_that_dies_while_it_opens_is_replaced_by_its_successor(tmp_path: Path) -> None:
    def job(starts: Starts, before: str) -> None:
        group = start_with_one_that_dies(starts, 1, before)
        group[1] = starts.rank(1)

        starts.open(group[1])

        assert values(*group) == [1] * RANKS

    all_at_once(tmp_path, OPENS, job)


def test_a_rank_that_dies_once_it_has_joined_is_named_in_time(tmp_path: Path) -> None:
    def job(starts: Starts, before: str) -> None:
        group = start_with_one_that_dies(starts, 1, before, DEADLINE)
        successor = starts.rank(1)

        starts.open(successor, timeout=DEADLINE)

        expect_late(group[0], "nothing from rank 1")
        expect_late(group[2], "nothing from rank 1")
        expect_late(successor, "rank 0 did not open it")

    all_at_once(tmp_path, JOINED, job)


def test_a_rank_that_is_slow_to_reach_the_store_names_who_is_missing_in_time(starts: Starts) -> None:
    slow = [starts.rank(rank, 2, late=1.5) for rank in range(2)]

    starts.open(slow[1], timeout=DEADLINE)
    expect_late(slow[1], "rank 0 did not open it within 4 s")
    starts.open(slow[0], timeout=DEADLINE)
    expect_late(slow[0], "not opened by rank 1 within 4 s")


def test_rank_zero_that_dies_before_it_answers_is_replaced_by_its_successor(tmp_path: Path) -> None:
    def job(starts: Starts, before: str) -> None:
        group = start_with_one_that_dies(starts, 0, before)
        group[0] = starts.rank(0)

        starts.open(group[0])

        assert values(*group) == [1] * RANKS

    all_at_once(tmp_path, LEADS, job)


def test_rank_zero_that_dies_once_it_has_answered_is_named_in_time(tmp_path: Path) -> None:
    def job(starts: Starts, before: str) -> None:
        group = start_with_one_that_dies(starts, 0, before, others=DEADLINE)
        successor = starts.rank(0)

        starts.open(successor, timeout=DEADLINE)

        expect_late(group[1], "nothing from rank 0")
        expect_late(group[2], "nothing from rank 0")
        expect_late(successor, "not opened by rank 1, 2")

    all_at_once(tmp_path, LED, job)


def test_a_job_that_starts_again_on_its_store_opens_wherever_one_rank_died(tmp_path: Path) -> None:
    def job(starts: Starts, point: tuple[int, str]) -> None:
        for one in start_with_one_that_dies(starts, *point):
            one.kill()
        group = [starts.rank(rank, tell="answered") for rank in range(RANKS)]

        asked = starts.host.check([starts.hello(1)])
        starts.open(group[0])
        if asked:
            starts.host.wait(["answered"])
        starts.open(*group[1:])

        assert values(*group) == [1] * RANKS

    all_at_once(tmp_path, [(1, at) for at in OPENS + JOINED] + [(0, at) for at in LEADS + LED], job)


@pytest.mark.parametrize("before", [2, 3, 4])
def test_a_job_of_any_size_opens_where_one_was_killed_that_waited_for_rank_zero(starts: Starts, before: int) -> None:
    for rank in range(1, before):
        dead = starts.rank(rank, before, before="wait welcome")
        starts.open(dead)
        assert dead.ended() == -signal.SIGKILL
    group = [starts.rank(rank, tell="answered") for rank in range(RANKS)]

    starts.open(group[0])
    starts.host.wait(["answered"])
    starts.open(*group[1:])

    assert values(*group) == [1] * RANKS


@pytest.mark.parametrize(("zero", "one"), [(2, 3), (3, 2)])
def test_ranks_that_were_told_different_sizes_hear_so_at_once(starts: Starts, zero: int, one: int) -> None:
    group = [starts.rank(0, zero), starts.rank(1, one)]

    starts.open(*group)

    for rank in group:
        answer = rank.answer()
        assert answer.get("error") == "FailedPrecondition", answer
        assert f"rank 0 opened it with {zero} ranks, rank 1 with {one}" in answer["message"]


@pytest.mark.parametrize(("worlds", "wrong"), [((2, 3, 3), 1), ((3, 2, 3), 1), ((3, 3, 4), 2)])
def test_all_ranks_that_have_asked_hear_of_a_wrong_size(starts: Starts, worlds: tuple[int, ...], wrong: int) -> None:
    group = [starts.rank(rank, world) for rank, world in enumerate(worlds)]
    starts.open(*group[1:])
    starts.host.wait([starts.hello(1), starts.hello(2)])

    starts.open(group[0])

    for rank in group:
        answer = rank.answer()
        assert answer.get("error") == "FailedPrecondition", answer
        assert f"rank 0 opened it with {worlds[0]} ranks, rank {wrong} with {worlds[wrong]}" in answer["message"]


@pytest.mark.parametrize("before", ["delete_key welcome", "delete_key hello"])
def test_a_rank_that_has_taken_its_answer_hears_of_a_wrong_size_too(starts: Starts, before: str) -> None:
    group = [starts.rank(0, 3), starts.rank(1, 3, before, until="go"), starts.rank(2, 4)]
    group[0].run("from cairn._ranks import store_link\nstore_link._JOIN = 0.2")

    starts.open(*group)

    # Both hear before rank 1, which has read that it may join.
    assert [group[rank].answer().get("error") for rank in (0, 2)] == ["FailedPrecondition"] * 2
    starts.host.set("go", "")
    answer = group[1].answer()
    assert answer.get("error") == "FailedPrecondition", answer
    assert "rank 0 opened it with 3 ranks, rank 2 with 4" in answer["message"]


def test_an_opening_that_failed_leaves_no_answer_to_a_dead_rank(starts: Starts) -> None:
    dead = starts.rank(1, before="wait welcome")
    starts.open(dead)
    assert dead.ended() == -signal.SIGKILL
    nonce = starts.host.get(starts.hello(1)).decode().partition(" of ")[0]
    zero = starts.rank(0, tell="told")

    starts.open(zero, timeout=DEADLINE / 4)

    starts.host.wait(["told"])
    expect_late(zero, "not opened by rank 1, 2")
    zero.leave()
    assert zero.ended() == 0
    assert not starts.host.check([starts.hello(1).replace("hello/1", f"welcome/{nonce}")])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_dies_while_a_rank_waits_in_it_is_an_error_at_once(lost: Starts, rank: int) -> None:
    one = lost.rank(rank)
    lost.open(one)
    lost.host.wait([f"cairn/opens/{rank}"])

    assert lost.server is not None
    lost.server.kill()

    answer = one.answer()
    assert answer.get("error") == "IoError" and "torch.distributed's store failed" in answer["message"], answer


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_stands_still_while_a_rank_waits_in_it_holds_it_up_no_longer_than_its_deadline(
    lost: Starts, rank: int
) -> None:
    one = lost.rank(rank)
    one.run("from cairn._ranks import store_link\nstore_link._JOIN = 0.1")
    lost.open(one, timeout=DEADLINE / 2)
    lost.host.wait([f"cairn/opens/{rank}"])

    assert lost.server is not None
    lost.server.signal(signal.SIGSTOP)

    expect_late(one, "nothing from ranks 1, 2" if rank == 0 else "nothing from rank 0")
    one.leave()
    assert one.ended() == 0
