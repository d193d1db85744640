"""What a Group promises, of the group over c10d's stores: many ranks in this process, each with its own threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cairn
import pytest
import ranks  # noqa: F401  (its environment)
import torch.distributed as dist
from cairn import _group
from cairn._group import StoreLink, pack, reconnect, unpack

Links = Callable[[int], list[StoreLink]]


@pytest.fixture(params=["tcp", "prefix", "hash", "tcp, no clone", "prefix, no clone", "prefixed hash, no clone"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One of each kind; "no clone" as an older torch has them."""
    kind = request.param.removesuffix(", no clone")
    if kind != request.param:
        monkeypatch.setattr(_group, "own_connection", reconnect)
    if kind == "hash":
        return dist.HashStore()
    if kind == "prefixed hash":
        return dist.PrefixStore("job/7", dist.HashStore())
    tcp = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    return tcp if kind == "tcp" else dist.PrefixStore("job", dist.PrefixStore("7", tcp))


@pytest.fixture
def links(store: Any) -> Iterator[Links]:
    opened: list[StoreLink] = []

    def make(world: int, timeout: float = 20) -> list[StoreLink]:
        opened.extend(StoreLink(store, rank, world, "/a/root", timeout) for rank in range(world))
        return opened[-world:]

    yield make
    for link in opened:
        link.core.stop()
    for link in opened:
        link.close()


def gather(link: StoreLink, key: str, word: str, timeout: float = 20) -> Future[list[bytes]]:
    future: Future[list[bytes]] = Future()

    def call() -> None:
        try:
            future.set_result(link.core.all_gather(key, word.encode(), timeout))
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def test_an_entry_of_the_log_comes_back() -> None:
    words = [b"", b"\x00\xff:12:", b"x" * 1000]
    assert unpack(pack("k/é:1", words)) == ("k/é:1", words)


def test_ranks_count_from_zero_and_know_their_number(links: Links) -> None:
    assert [(link.core.rank, link.core.size) for link in links(3)] == [(0, 3), (1, 3), (2, 3)]


def test_every_rank_hears_what_every_rank_said(links: Links) -> None:
    heard = [gather(link, "key", f"word of {rank}") for rank, link in enumerate(links(3))]

    assert [one.result() for one in heard] == [[b"word of 0", b"word of 1", b"word of 2"]] * 3


def test_keys_may_be_given_in_different_orders(links: Links) -> None:
    heard = []
    for rank, link in enumerate(links(3)):
        keys = ["a", "b"] if rank % 2 == 0 else ["b", "a"]
        heard += [gather(link, key, key) for key in keys]

    for one in heard:
        assert len(set(one.result())) == 1


def test_the_ranks_that_were_not_heard_are_named(links: Links) -> None:
    group = links(3)
    for one in [gather(link, "all", "") for link in group]:
        one.result()

    begun = time.monotonic()
    with pytest.raises(cairn.DeadlineExceeded, match="nothing from rank 0, 2"):
        group[1].core.all_gather("key", b"here", 0.3)
    assert time.monotonic() - begun >= 0.3


def test_a_late_rank_disturbs_nothing(links: Links) -> None:
    group = links(2)
    with pytest.raises(cairn.DeadlineExceeded, match="rank 1"):
        gather(group[0], "one", "0", 0.2).result()

    assert gather(group[1], "one", "1").result() == [b"0", b"1"]
    assert [one.result() for one in [gather(link, "two", "") for link in group]] == [[b"", b""]] * 2


def test_many_threads_gather_at_once(links: Links) -> None:
    group = links(4)
    with ThreadPoolExecutor(16) as pool:
        words = [
            pool.submit(link.core.all_gather, str(i), str(rank).encode(), 20)
            for i in range(40)
            for rank, link in enumerate(group)
        ]
        assert all(one.result() == [b"0", b"1", b"2", b"3"] for one in words)


def test_who_waits_for_a_rank_that_has_closed_hears_so(links: Links) -> None:
    group = links(3)
    for one in [gather(link, "all", "") for link in group]:
        one.result()
    waiting = gather(group[0], "before", "")

    group[2].close()

    with pytest.raises(cairn.FailedPrecondition, match="rank 2 has closed"):
        waiting.result()
    with pytest.raises(cairn.FailedPrecondition, match="rank 2 has closed"):
        gather(group[1], "after", "").result()


def test_no_keys_are_left(store: Any, links: Links) -> None:
    _group.own_connection(store)  # That one key stays is said where it is made.
    before = store.num_keys()
    group = links(3)
    for i in range(5):
        for one in [gather(link, str(i), "word") for link in group]:
            one.result()
    with pytest.raises(cairn.DeadlineExceeded):
        group[1].core.all_gather("alone", b"", 0.1)

    closing = [threading.Thread(target=link.close) for link in group]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()

    assert store.num_keys() == before


def test_a_store_that_cannot_be_cloned_keeps_to_its_prefix() -> None:
    tcp = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    one, other = (dist.PrefixStore(prefix, tcp) for prefix in ("one", "other"))
    own = reconnect(one)

    own.set("key", "word")

    assert own is not one and reconnect(dist.PrefixStore("one", tcp)).get("key") == b"word"
    assert not reconnect(other).check(["key"]) and not reconnect(tcp).check(["key"])


def test_a_session_does_not_meet_an_earlier_ones_words(links: Links) -> None:
    for word in ("first", "second"):
        group = links(2)
        assert [one.result() for one in [gather(link, "key", word) for link in group]] == [[word.encode()] * 2] * 2
        for link in group:
            link.core.stop()


def test_a_rank_that_never_opens_is_named(store: Any) -> None:
    link = StoreLink(store, 0, 3, "/another/root", 0.3)

    with pytest.raises(cairn.DeadlineExceeded, match="not opened by rank 1, 2 within 0.3 s"):
        link.core.all_gather("open", b"", 20)
    link.close()


def test_no_rank_zero(store: Any) -> None:
    link = StoreLink(store, 1, 2, "/another/root", 0.3)

    with pytest.raises(cairn.DeadlineExceeded, match="rank 0 did not open it within 0.3 s"):
        link.core.all_gather("open", b"", 20)
    link.close()


def test_a_store_that_is_lost_ends_every_gather_at_once() -> None:
    class Lost(dist.Store):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dist.HashStore()
            self.lost = False

        def clone(self) -> Any:
            return self

        def __getattribute__(self, name: str) -> Any:
            if name in ("set", "get", "add", "wait", "check", "delete_key", "multi_get"):
                if self.lost:
                    raise dist.DistNetworkError("the host is gone")
                return getattr(self.inner, name)
            return super().__getattribute__(name)

    store = Lost()
    link, other = (StoreLink(store, rank, 2, "/root", 20) for rank in range(2))
    for one in [gather(end, "all", "") for end in (link, other)]:
        one.result()
    store.lost = True

    for key in ("a", "b"):
        with pytest.raises(cairn.IoError, match="the host is gone"):
            gather(link, key, "").result()
    link.close()
    other.close()


def test_deadlines_are_kept_though_the_store_hangs() -> None:
    class Hanging:
        def clone(self) -> Any:
            threading.Event().wait()

    link = StoreLink(Hanging(), 0, 2, "/root", 20)

    with pytest.raises(cairn.DeadlineExceeded, match="the store said nothing in time"):
        link.core.all_gather("key", b"", 0.2)
    link.core.stop()


@pytest.mark.parametrize("group", [7, (1, 2), ("store", 0, 1), (dist.HashStore(), 2, 2), (dist.HashStore(), -1, 2)])
def test_what_is_no_group_is_refused(tmp_path: Any, group: Any) -> None:
    with pytest.raises(cairn.InvalidArgument, match="expected None, a torch.distributed ProcessGroup"):
        cairn.Checkpointer(tmp_path, group=group)
