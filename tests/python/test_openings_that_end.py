"""Why an opening ended reaches every rank that takes part in it at once, whatever the moment in which it does."""

from __future__ import annotations

import signal

from ranks import Rank
from test_openings import DEADLINE, Starts, starts

__all__ = ["starts"]  # A fixture.


def expect_refused(rank: Rank, named: str) -> None:
    answer = rank.answer()
    assert answer.get("error") == "FailedPrecondition" and named in answer["message"], answer


def test_a_refusal_is_heard_where_a_rank_has_joined_and_left_again(starts: Starts) -> None:
    zero, left, two, wrong = (starts.rank(rank, 5 if rank == 3 else 4) for rank in range(4))
    starts.open(zero, two)
    starts.open(left, timeout=DEADLINE / 4)
    assert left.answer().get("error") == "DeadlineExceeded"

    starts.open(wrong)

    for rank in (zero, two, wrong):
        expect_refused(rank, "rank 0 opened it with 4 ranks, rank 3 with 5")


def test_a_rank_that_has_joined_hears_who_is_missing(starts: Starts) -> None:
    zero, one = starts.rank(0, 3), starts.rank(1, 3)

    starts.open(zero, timeout=DEADLINE / 4)
    starts.open(one)

    for rank in (zero, one):
        answer = rank.answer()
        assert answer.get("error") == "DeadlineExceeded" and "not opened by rank 2 within" in answer["message"], answer


def test_nobody_waits_until_a_dead_rank_has_heard_of_a_refusal(starts: Starts) -> None:
    dead = starts.rank(2, 4, before="wait welcome")
    starts.open(dead)
    assert dead.ended() == -signal.SIGKILL
    group = [starts.rank(0, 4), starts.rank(1, 4), starts.rank(3, 5)]

    starts.open(*group, timeout=DEADLINE)

    for rank in group:
        expect_refused(rank, "rank 0 opened it with 4 ranks, rank 3 with 5")


def test_a_rank_beyond_those_of_rank_zero_is_refused(starts: Starts) -> None:
    group = [starts.rank(0, 2), starts.rank(1, 2)]
    beyond = starts.rank(2, 3)
    starts.open(beyond)
    starts.host.wait([starts.hello(2)])

    starts.open(*group)

    assert [rank.answer().get("value") for rank in group] == [1, 1]
    expect_refused(beyond, "rank 0 opened it with 2 ranks, rank 2 with 3")
