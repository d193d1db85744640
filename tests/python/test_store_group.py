"""What a Group promises, of the group over c10d's stores: many ranks in this process, each with its own threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cairn
import pytest
import ranks  # noqa: F401  (its environment)
import torch.distributed as dist
from cairn._ranks import stores
from cairn._ranks.store_link import StoreLink, pack, unpack
from cairn._ranks.stores import Connection, reconnect

Links = Callable[[int], list[StoreLink]]


KINDS = ["tcp", "prefix", "hash", "file", "tcp, no clone", "prefix, no clone", "prefixed hash, no clone"]


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.cases) for kind in KINDS])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """One of each kind; "no clone" as an older torch has them."""
    kind = request.param.removesuffix(", no clone")
    if kind != request.param:
        monkeypatch.setattr(stores, "own_connection", reconnect)
    if kind == "hash":
        return dist.HashStore()
    if kind == "file":
        return dist.FileStore(str(tmp_path / "store"), 1)
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


def gather(link: StoreLink, key: str, message: str, timeout: float = 20) -> Future[list[bytes]]:
    return ran(lambda: link.gather_key(key, message.encode(), timeout))


def ran(work: Callable[[], list[bytes]]) -> Future[list[bytes]]:
    future: Future[list[bytes]] = Future()

    def call() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def test_an_answer_comes_back() -> None:
    messages = [b"", b"\x00\xff:12:", b"x" * 1000]
    assert unpack(pack("k/é:1", messages)) == ("k/é:1", messages)


def test_ranks_count_from_zero_and_know_their_number(links: Links) -> None:
    group = links(3)

    assert [(link.core.rank, link.core.size) for link in group] == [(0, 3), (1, 3), (2, 3)]
    for one in [gather(link, "all", "") for link in group]:  # Who has heard nobody waits for all when it closes.
        one.result()


def test_every_rank_hears_what_every_rank_said(links: Links) -> None:
    heard = [gather(link, "key", f"message of {rank}") for rank, link in enumerate(links(3))]

    assert [one.result() for one in heard] == [[b"message of 0", b"message of 1", b"message of 2"]] * 3


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
    heard = [gather(group[rank], "key", "here", 0.3) for rank in (0, 1)]

    for one in heard:
        with pytest.raises(cairn.DeadlineExceeded, match='"key" from 3 ranks: nothing from rank 2'):
            one.result()
    assert time.monotonic() - begun >= 0.3


def test_a_rank_that_alone_was_late_hears_what_all_said(links: Links) -> None:
    group = links(2)
    for one in [gather(link, "all", "") for link in group]:
        one.result()
    with pytest.raises(cairn.DeadlineExceeded, match="nothing from rank 1"):
        gather(group[0], "key", "first", 0.3).result()

    assert gather(group[1], "key", "late").result() == [b"first", b"late"]


def save_call(link: StoreLink, message: str, timeout: float = 20) -> Future[list[bytes]]:
    return ran(lambda: link.gather("saves", message.encode(), timeout, joins_late=False))


@pytest.mark.parametrize("alone", [[0], [1], [2], [1, 2], [0, 2]])
def test_calls_that_some_ranks_make_alone_shift_nothing(links: Links, alone: list[int]) -> None:
    group = links(3)
    for one in [save_call(link, "first") for link in group]:
        one.result()
    for _ in range(2):
        for one in [save_call(group[rank], "alone", 0.2) for rank in alone]:
            with pytest.raises(cairn.DeadlineExceeded, match="nothing from rank"):
                one.result()
    # A rank sends in order: after this, what it has withdrawn is in the store.
    for one in [gather(link, "sent", "") for link in group]:
        one.result()

    for message in ("all", "again"):
        said = [message.encode() + b"%d" % rank for rank in range(3)]
        heard = [save_call(link, f"{message}{rank}") for rank, link in enumerate(group)]
        assert [one.result() for one in heard] == [said] * 3


def test_who_waits_for_rank_zero_in_vain_hears_so(links: Links) -> None:
    group = links(3)
    for one in [gather(link, "all", "") for link in group]:
        one.result()

    with pytest.raises(cairn.DeadlineExceeded, match='"key/all": nothing from rank 0'):
        gather(group[1], "key", "here", 0.3).result()


def test_a_late_rank_hears_the_messages_and_disturbs_nothing(links: Links) -> None:
    group = links(3)
    early = [gather(link, "one", str(rank), 0.2) for rank, link in enumerate(group[:2])]
    for one in early:
        with pytest.raises(cairn.DeadlineExceeded, match="nothing from rank 2"):
            one.result()

    assert gather(group[2], "one", "2").result() == [b"0", b"1", b"2"]
    assert [one.result() for one in [gather(link, "two", "") for link in group]] == [[b"", b"", b""]] * 3


def test_many_threads_gather_at_once(links: Links) -> None:
    group = links(4)
    with ThreadPoolExecutor(16) as pool:
        messages = [
            pool.submit(link.gather_key, str(i), str(rank).encode(), 20)
            for i in range(40)
            for rank, link in enumerate(group)
        ]
        assert all(one.result() == [b"0", b"1", b"2", b"3"] for one in messages)


def test_who_waits_for_a_rank_that_has_closed_hears_so(links: Links) -> None:
    group = links(3)
    for one in [gather(link, "all", "") for link in group]:
        one.result()
    waiting = gather(group[0], "before", "")

    group[2].close()

    with pytest.raises(cairn.FailedPrecondition, match="rank 2 closed"):
        waiting.result()
    after = [gather(link, "after", "") for link in group[:2]]
    for one in after:
        with pytest.raises(cairn.FailedPrecondition, match="rank 2 closed"):
            one.result()


def test_who_waits_for_rank_zero_when_it_closes_hears_so(links: Links) -> None:
    group = links(3)
    for one in [gather(link, "all", "") for link in group]:
        one.result()
    waiting = gather(group[1], "before", "")

    group[0].close()

    for one in (waiting, gather(group[2], "after", "")):
        with pytest.raises(cairn.FailedPrecondition, match="rank 0 closed"):
            one.result()


@pytest.mark.parametrize("early", [-1, 0, 1], ids=["all at once", "rank 0 first", "rank 1 first"])
def test_no_keys_are_left(store: Any, links: Links, early: int) -> None:
    stores.own_connection(store)  # That one key stays is said where it is made.
    before = store.num_keys()
    group = links(3)
    for i in range(5):
        for one in [gather(link, str(i), "message") for link in group]:
            one.result()
    with pytest.raises(cairn.DeadlineExceeded):
        group[1].gather_key("alone", b"", 0.1)
    group[0].core.announce("unheard", b"message")
    group[2].core.send("unheard", b"message")
    if early >= 0:
        group[early].close()
        for link in group:
            link.core.send("after", b"message")
            link.core.announce("after", b"message")

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

    own.set("key", "message")

    assert own is not one and reconnect(dist.PrefixStore("one", tcp)).get("key") == b"message"
    assert not reconnect(other).check(["key"]) and not reconnect(tcp).check(["key"])


def test_a_session_does_not_meet_an_earlier_ones_messages(links: Links) -> None:
    for message in ("first", "second"):
        group = links(2)
        assert [one.result() for one in [gather(link, "key", message) for link in group]] == [
            [message.encode()] * 2
        ] * 2
        for link in group:
            link.core.stop()


def test_a_rank_that_never_opens_is_named(store: Any) -> None:
    link = StoreLink(store, 0, 3, "/another/root", 0.3)

    with pytest.raises(cairn.DeadlineExceeded, match="not opened by rank 1, 2 within 0.3 s"):
        link.gather_key("open", b"", 20)
    link.close()


def test_no_rank_zero(store: Any) -> None:
    link = StoreLink(store, 1, 2, "/another/root", 0.3)

    with pytest.raises(cairn.DeadlineExceeded, match="rank 0 did not open it within 0.3 s"):
        link.gather_key("open", b"", 20)
    link.close()


def test_ranks_that_open_different_roots_hear_of_each_other(store: Any) -> None:
    one = StoreLink(store, 1, 2, "/runs/b", 1.5)
    stores.own_connection(store).wait(["cairn/opens/1"])
    zero = StoreLink(store, 0, 2, "/runs/a", 0.3)
    said = [gather(link, "open", "") for link in (zero, one)]

    with pytest.raises(cairn.DeadlineExceeded, match="/runs/a: not opened by rank 1 .* rank 1 opened /runs/b on host "):
        said[0].result()
    with pytest.raises(
        cairn.DeadlineExceeded, match="/runs/b: rank 0 did not .* rank 0 opened /runs/a on host .*the same one"
    ):
        said[1].result()
    zero.close()
    one.close()


class Wrapped(dist.Store):
    """A store whose calls the test sees: `seen(name, arguments)` comes before each, and may raise."""

    CALLS = ("set", "add", "wait", "check", "delete_key", "compare_set")

    def __init__(self, inner: Any, seen: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self.inner, self.seen, self.bytes_read = inner, seen, 0

    def clone(self) -> Any:
        return self

    def __getattribute__(self, name: str) -> Any:
        if name not in Wrapped.CALLS:
            return super().__getattribute__(name)

        def call(*arguments: Any) -> Any:
            self.seen(name, arguments)
            answer = getattr(self.inner, name)(*arguments)
            if name == "compare_set" and answer != arguments[2]:
                self.bytes_read += len(answer)
            return answer

        return call


class Silent(dist.DistNetworkError):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [dist.DistNetworkError("the host is gone"), Silent()], ids=["said", "silent"])
def test_a_store_that_is_lost_ends_every_gather_at_once(error: Exception) -> None:
    lost = threading.Event()

    def seen(_name: str, _arguments: tuple[Any, ...]) -> None:
        if lost.is_set():
            raise error

    store = Wrapped(dist.HashStore(), seen)
    link, other = (StoreLink(store, rank, 2, "/root", 20) for rank in range(2))
    for one in [gather(end, "all", "") for end in (link, other)]:
        one.result()
    lost.set()

    for key in ("a", "b"):
        with pytest.raises(cairn.IoError, match="store failed: (the host is gone|Silent)"):
            gather(link, key, "").result()
    link.close()
    other.close()


def listeners_that_wait(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released before each wait in a store."""
    waiting, wait = threading.Semaphore(0), Connection.wait

    def tell(self: Connection, key: str, seconds: float) -> bool:
        waiting.release()
        return wait(self, key, seconds)

    monkeypatch.setattr(Connection, "wait", tell)
    return waiting


def test_every_wait_ends_within_a_second_when_the_stores_server_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)"
    code += "; print(s.port, flush=True); input()"
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    stores = [dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False) for _ in range(3)]
    group = [StoreLink(store, rank, 3, "/a/root", 60) for rank, store in enumerate(stores)]
    for one in [gather(link, "all", "") for link in group]:
        one.result()
    waiting = listeners_that_wait(monkeypatch)
    waits = [gather(link, key, "", 60) for link in group[:2] for key in ("one", "two")]
    for _ in group[:2]:
        waiting.acquire()

    server.kill()
    begun = time.monotonic()
    for wait in waits:
        with pytest.raises(cairn.IoError, match="torch.distributed's store failed"):
            wait.result()

    assert time.monotonic() - begun < 1
    server.wait()
    for link in group:
        link.close()


def test_closing_ends_a_listener_that_waits_in_the_store(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    group = links(3)
    for one in [gather(link, "all", "") for link in group]:
        one.result()
    waiting = listeners_that_wait(monkeypatch)
    waits = [gather(group[rank], str(rank), "") for rank in (0, 1)]
    for _ in waits:
        waiting.acquire()

    for rank in (1, 0):
        group[rank].close()

    for rank, wait in enumerate(waits):
        assert not any(thread.is_alive() for thread in group[rank]._threads)
        with pytest.raises(cairn.Error):
            wait.result()
    # The others go on reading where it was woken.
    with pytest.raises(cairn.FailedPrecondition, match="rank 0 closed"):
        group[2].core.await_message("after", 20)


def test_what_is_no_message_ends_every_gather(store: Any, links: Links) -> None:
    connection = Connection(store)
    for rank, (name, entry) in enumerate([("inbox", b"9:x"), ("log", pack("message", [b"x", b"key", b"message"]))]):
        group = links(2)
        for one in [gather(link, "all", "") for link in group]:
            one.result()
        key = group[0].core.key(name)
        number = connection.add(key, 1) if name == "inbox" else 2  # One gather has announced one message.

        connection.set(f"{key}/{number}", entry)

        with pytest.raises(
            cairn.IoError, match=f"expected a message of Cairn under .*/{name}/{number}, found other bytes"
        ):
            gather(group[rank], "key", "").result()


@pytest.mark.parametrize("world", [2, 16])
def test_what_a_save_costs_a_rank_does_not_grow_with_the_world(world: int) -> None:
    saves = 5
    inner = dist.HashStore()
    calls: list[Counter[str]] = [Counter() for _ in range(world)]

    def count(rank: int) -> Callable[[str, tuple[Any, ...]], None]:
        return lambda name, _: calls[rank].update([name] * (name != "delete_key"))  # Whoever reads last removes.

    stores = [Wrapped(inner, count(rank)) for rank in range(world)]
    group = [StoreLink(store, rank, world, "/a/root", 60) for rank, store in enumerate(stores)]
    for one in [gather(link, "all", "") for link in group]:
        one.result()
    for rank in range(1, world):
        while calls[rank]["add"] != 2:  # Its message, and that it has read the gather's answer.
            pass
        calls[rank].clear()
        stores[rank].bytes_read = 0

    def save(rank: int) -> None:
        core = group[rank].core
        for number in range(saves):
            if rank == 0:
                core.announce(f"attempt/{number}", b"a" * 100)
                assert core.collect(f"prepared/{number}", 60) == ([b"p" * 200] * (world - 1), None)
                core.announce(f"outcome/{number}", b"o" * 100)
            else:
                core.await_message(f"attempt/{number}", 60)
                core.send(f"prepared/{number}", b"p" * 200)
                core.await_message(f"outcome/{number}", 60)

    with ThreadPoolExecutor(world) as pool:
        list(pool.map(save, range(world)))

    for rank in range(1, world):
        while calls[rank]["add"] < 3 * saves:
            pass
        assert calls[rank] == {"wait": 2 * saves, "add": 3 * saves, "compare_set": 3 * saves}
        assert stores[rank].bytes_read <= 2 * saves * 150
    for link in group:
        link.core.stop()
    for link in group:
        link.close()


def test_deadlines_are_kept_though_the_store_hangs() -> None:
    class Hanging:
        def clone(self) -> Any:
            threading.Event().wait()

    for rank, who in ((0, "1"), (1, "0")):
        link = StoreLink(Hanging(), rank, 2, "/root", 20)

        with pytest.raises(cairn.DeadlineExceeded, match=f"nothing from rank {who}"):
            link.gather_key("key", b"", 0.2)
        began = time.monotonic()
        link.close(began)  # A second, and not five, and no more the second time.
        link.close()
        assert time.monotonic() - began < 4


@pytest.mark.parametrize("group", [7, (1, 2), ("store", 0, 1), (dist.HashStore(), 2, 2), (dist.HashStore(), -1, 2)])
def test_what_is_no_group_is_refused(tmp_path: Any, group: Any) -> None:
    with pytest.raises(cairn.InvalidArgument, match="expected None, a torch.distributed ProcessGroup"):
        cairn.Checkpointer(tmp_path, group=group)
