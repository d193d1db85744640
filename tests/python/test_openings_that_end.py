"""Why an opening ended reaches every rank that takes part in it at once, whatever the moment in which it does."""

from __future__ import annotations

import signal

from ranks import Rank
from test_openings import DEADLINE, Starts, starts

__all__ = ["starts"]  # A fixture.


def expect_refused(rank: Rank, named: str) -> None:
    answer = rank.answer()
    assert answer.get("error") == "FailedPrecondition" and named in answer["message"], answer


def test_a_rank_that_joins_while_rank_zero_closes_hears_so(starts: Starts) -> None:
    zero, one = starts.rank(0, 3), starts.rank(1, 3, "delete_key hello", until="closing")
    zero.run("""
from cairn._ranks import meeting
joining = meeting.Meeting._joining
def then_close(self, store, hellos, session):
    joining(self, store, hellos, session)
    if hellos:
        store.set("closing", "")
        while meeting.peek(store, self._hello(1)) != meeting.ABSENT:
            pass
        self.close()
meeting.Meeting._joining = then_close
""")

    starts.open(zero, one)

    expect_refused(zero, "closed before all ranks had opened it")
    expect_refused(one, "closed before all ranks had opened it")


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


def test_no_answer_to_a_dead_rank_stays_where_its_successor_is_refused(starts: Starts) -> None:
    dead = starts.rank(1, 3, before="wait welcome")
    starts.open(dead)
    assert dead.ended() == -signal.SIGKILL
    nonce = starts.host.get(starts.hello(1)).decode().partition(" of ")[0]
    zero, one, two = starts.rank(0, 3), starts.rank(1, 3), starts.rank(2, 4)
    zero.run("""
from cairn._ranks import meeting
refuse_all = meeting.Meeting._refuse_all
def later(self, store, *arguments):
    store.set("refusing", "")
    store.wait(["asked again"])
    return refuse_all(self, store, *arguments)
meeting.Meeting._refuse_all = later
""")
    starts.open(zero, two)
    starts.host.wait(["refusing"])
    starts.open(one)
    while starts.host.get(starts.hello(1)).decode().startswith(nonce):
        pass

    starts.host.set("asked again", "")

    for rank in (zero, one, two):
        expect_refused(rank, "rank 0 opened it with 3 ranks, rank 2 with 4")
    assert not starts.host.check([starts.hello(1).replace("hello/1", f"welcome/{nonce}")])


def test_a_rank_beyond_those_of_rank_zero_is_refused(starts: Starts) -> None:
    group = [starts.rank(0, 2), starts.rank(1, 2)]
    beyond = starts.rank(2, 3)
    starts.open(beyond)
    starts.host.wait([starts.hello(2)])

    starts.open(*group)

    assert [rank.answer().get("value") for rank in group] == [1, 1]
    expect_refused(beyond, "rank 0 opened it with 2 ranks, rank 2 with 3")
