"""The ranks of a job stop after the same step, whichever of them got the signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch.distributed
from cairn._ranks import stopping
from cairn._ranks.stopping import Agreement
from jobs import expect_whole
from ranks import World

Worlds = Callable[..., World]


@pytest.fixture(params=["TCPStore", "FileStore"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "FileStore":
        return torch.distributed.FileStore(str(tmp_path / "store"))
    return torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


@pytest.fixture
def ranks(store: Any) -> Iterator[Callable[[int], list[Agreement]]]:
    made: list[Agreement] = []

    def make(world: int) -> list[Agreement]:
        made.extend(Agreement(store, rank, world, "stop") for rank in range(world))
        return made

    yield make
    for one in made:
        one.leave()


def steps(one: Agreement, wanted: str | None = None, until: Callable[[int], bool] = lambda step: False) -> int:
    """Steps until the rank stops, or has done all."""
    step = 1
    while not one.reached(wanted, 60) and not until(step):
        step += 1
    return step


def test_the_ranks_stop_at_the_same_call_however_far_apart_they_are(ranks: Callable[[int], list[Agreement]]) -> None:
    group = ranks(4)
    for rank, one in enumerate(group):
        assert [one.reached(None, 60) for _ in range(10 * rank)] == [False] * 10 * rank
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(steps, one, "SIGTERM" if rank == 2 else None) for rank, one in enumerate(group)]
        # Rank 3 is 30 steps ahead and runs freely; all stop where the furthest one was when it heard.
        totals = {10 * rank + one.result() for rank, one in enumerate(found)}
    assert len(totals) == 1 and totals.pop() > 30
    assert {one.reason for one in group} == {"rank 2: SIGTERM"}


def test_all_may_ask_at_once(ranks: Callable[[int], list[Agreement]]) -> None:
    group = ranks(8)
    with ThreadPoolExecutor(8) as pool:
        assert len({one.result() for one in [pool.submit(steps, one, "SIGTERM") for one in group]}) == 1


def test_a_rank_that_has_ended_is_not_waited_for(ranks: Callable[[int], list[Agreement]]) -> None:
    group = ranks(3)
    assert [group[0].reached(None, 60) for _ in range(5)] == [False] * 5
    group[0].leave()
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(steps, one, None if one is group[2] else "SIGTERM") for one in group[1:]]
        first, second = (one.result() for one in found)
    assert first == second > 5


def test_the_error_names_the_ranks_that_do_not_answer(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_TELLING", 60)
    one = Agreement(store, 1, 4, "stop")
    assert one._connected.wait(60)
    one._asked = True
    one._ask("SIGTERM", 60)
    store.wait([one._key("at", 1)])  # However slow the store is, this rank has said where it is.
    with pytest.raises(
        cairn.DeadlineExceeded, match="rank 0, rank 2, rank 3 did not say within 0.05 s.*must call stop_on"
    ):
        one.reached("SIGTERM", 0.05)
    one.leave()


def test_a_store_that_does_not_connect_in_time_is_in_the_error() -> None:
    connects = threading.Event()

    class Slow:
        def clone(self) -> Any:
            connects.wait()
            raise RuntimeError("too late")

    one = Agreement(Slow(), 0, 2, "stop")
    with pytest.raises(cairn.DeadlineExceeded, match="store did not tell which.* did not say within 0.05 s"):
        one.reached("SIGTERM", 0.05)
    connects.set()
    one.leave()


@pytest.mark.parametrize("store", ["TCPStore"], indirect=True)
def test_no_keys_are_left(store: Any, ranks: Callable[[int], list[Agreement]]) -> None:
    before = store.num_keys()
    group = ranks(3)
    group[1].leave()
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(steps, group[rank], "SIGTERM") for rank in (0, 2)]:
            one.result()
    for rank in (2, 0):
        group[rank].leave()
    assert store.num_keys() == before


def test_a_store_that_is_lost_is_an_error_and_costs_nothing_before() -> None:
    class Lost:
        def clone(self) -> Any:
            raise RuntimeError("connection reset by peer\nframe #0")

    one = Agreement(Lost(), 0, 2, "stop")
    assert not one.reached(None, 60)
    with pytest.raises(cairn.IoError, match="torch.distributed's store failed: connection reset by peer$"):
        one.reached("SIGTERM", 60)
    one.leave()


def test_one_rank_gets_the_signal_and_all_save_the_same_step(worlds: Worlds, root: Path) -> None:
    world = worlds(3)
    code = """
dist.init_process_group("gloo")
c.stop_on(["SIGTERM"], grace=60)
def train():
    for step in range(1, 10**6):
        dist.all_reduce(torch.ones(1))
        if step == 3: store.set(f"trains/{rank}", "")
        if c.stop_requested():
            c.save(step, tree(step, rank)).wait()
            return [step, c.stop_reason]
"""
    assert world.all(code) == [None] * 3
    for rank in world.ranks:
        rank.start("train()")
    world.host.wait([f"trains/{rank}" for rank in range(3)])
    world[1].signal(signal.SIGTERM)

    answers = [rank.value() for rank in world.ranks]

    step = answers[0][0]
    assert answers == [[step, "rank 1: SIGTERM"]] * 3 and step >= 3
    assert world.all("c.close()") == [None] * 3
    expect_whole(root, step)


def test_a_rank_that_dies_is_named_in_time(worlds: Worlds) -> None:
    world = worlds(2)
    code = """
from cairn._ranks import stopping
stopping._TELLING = 60
c.stop_on(grace=0.2)
c._engine.stop._agreement._connected.wait(60)
"""
    assert world.all(code) == [True] * 2
    world[1].kill()
    answer = world[0].start("import os, signal; os.kill(os.getpid(), signal.SIGTERM); c.stop_requested()").answer()
    assert answer["error"] == "DeadlineExceeded" and "rank 1 did not say within" in answer["message"]


def test_what_cannot_be_agreed_on_leaves_no_handlers(worlds: Worlds) -> None:
    world = worlds(2)
    code = """
import signal, threading
before = signal.getsignal(signal.SIGTERM)
def agree(): raise RuntimeError("no store")
c._engine.ranks.make_stopping = agree
try:
    c.stop_on()
except RuntimeError:
    pass
signal.getsignal(signal.SIGTERM) == before
"""
    assert world[0].run(code) is True


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_stands_still_holds_no_rank_up_beyond_the_grace(worlds: Worlds, when: str) -> None:
    world = worlds(2, hosted_by=2)
    code = """
import os, signal
from cairn._ranks import stopping, store_link
stopping._JOIN = stopping._TELLING = store_link._JOIN = 0.1
c.stop_on(grace=0.2)
agreement = c._engine.stop._agreement
"""
    world.all(code)
    assert world.all("agreement._connected.wait(60)") == [True] * 2
    world[1].signal(signal.SIGSTOP)  # It does not answer.
    if when == "after":
        world[0].run("agreement._asked = True\nagreement._ask('SIGTERM', 60)\nstore.wait([agreement._key('at', 0)])")
    assert world.store is not None
    world.store.signal(signal.SIGSTOP)
    late = threading.Timer(30, world.store.signal, [signal.SIGCONT])  # Otherwise a defect would hang the test.
    late.start()

    answer = world[0].start("os.kill(os.getpid(), signal.SIGTERM); c.stop_requested()").answer()
    closed = world[0].start("c.close()").answer()
    world[0].leave()

    assert answer.get("error") == "DeadlineExceeded" and "did not say within" in answer["message"], answer
    assert closed == {"value": None} and world[0].ended() == 0
    assert late.is_alive()
    late.cancel()
