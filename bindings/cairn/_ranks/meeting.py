"""How the ranks of a job meet in the store when they open a root: they agree on a session, whatever died before them.

  1. Each rank names the root that it opens in `cairn/opens/<r>`, for the others' messages. It stays after a failure.
  2. Rank r sets `hello/<r>` to a nonce and its number of ranks, and waits for `welcome/<nonce>`.
  3. Rank 0 answers there: a session, or `!` and why it refuses.
  4. Rank r marks the answer as taken, removes it, and then its hello: it has joined, or it was refused.
  5. Rank 0 goes on once all hellos are gone. The hello of a rank that has died, or has given up, stays. Its successor
     overwrites it, and step 3 begins again.
Rank 0 removes no hello: so the successor of a rank 0 that has died finds them. If it gives up, it takes back its answers
that nobody has read; if a rank was told another number of ranks, it first tells all that have asked by then: it replaces
a session that is not taken by the refusal. Who has taken one has joined, and hears by the log why the opening ended. The
keys of steps 2 and 3 are under `cairn/<digest of the root>/`. A session is a fresh id, so that nobody reads an earlier
one's messages.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from .._errors import DeadlineExceeded, Error, FailedPrecondition
from .stores import ABSENT, peek, wait

_PAUSE = 0.1  # Seconds, the longest between rank 0's looks at the hellos.
_HEARING = 5.0  # Seconds that rank 0 waits for the others to hear why it refuses them.
_OF = " of "  # In a hello, between the nonce and the number of ranks.
_REFUSED = "!"  # Begins an answer that is no session.
_TAKEN = b"="  # An answer that its rank has read: rank 0 no longer changes it.


class _Refused(Exception):
    """A rank was told another number of ranks, and has heard so."""

    def __init__(self, refusal: str, hello: bytes) -> None:
        super().__init__(refusal)
        world = hello.decode().partition(_OF)[2]
        self.world = int(world) if world.isdigit() else 0


class Meeting:
    """One rank's part."""

    def __init__(self, rank: int, world: int, root: str, timeout: float) -> None:
        """`timeout`: seconds from now that a rank waits for the others, however long it takes to reach the store."""
        self._rank, self._world, self._timeout = rank, world, timeout
        self._end = time.monotonic() + timeout
        self._root = os.path.abspath(root)
        self._closed = threading.Event()
        self.session = ""  # Rank 0's, as the first part of its keys.
        self.joined = 0  # How many ranks have joined it.
        self._base = f"cairn/{hashlib.sha256(self._root.encode()).hexdigest()[:16]}"

    def agree(self, store: Any, tell: Callable[[Error], None]) -> str:
        """The session, as the first part of its keys. DeadlineExceeded names the ranks that are missing;
        FailedPrecondition if a rank was told another number of ranks. Rank 0 first calls `tell`, for the log: who has
        `joined` by then does not hear otherwise."""
        store.set(opens := _opens(self._rank), f"{self._root} on host {socket.gethostname()}")
        session = self._lead(store, tell) if self._rank == 0 else self._join(store)
        store.delete_key(opens)
        return self._under(session)

    def _join(self, store: Any) -> str:
        nonce = uuid.uuid4().hex
        store.set(self._hello(self._rank), f"{nonce}{_OF}{self._world}")
        came = wait(store, self._welcome(nonce), self._end - time.monotonic())
        said = _take(store, self._welcome(nonce)) if came else ABSENT
        if said == ABSENT:  # Also where rank 0 has given up, and taken its answer back.
            raise DeadlineExceeded(
                f"{self._root}: rank 0 did not open it within {self._timeout:g} s{self._elsewhere(store, [0])}"
            )
        store.delete_key(self._welcome(nonce))
        store.delete_key(self._hello(self._rank))
        answer = said.decode()
        if answer.startswith(_REFUSED):
            raise FailedPrecondition(answer.removeprefix(_REFUSED))
        return answer

    def close(self) -> None:
        """Rank 0 soon answers nobody any more. From any thread."""
        self._closed.set()

    def _lead(self, store: Any, tell: Callable[[Error], None]) -> str:
        session = uuid.uuid4().hex
        self.session = self._under(session)
        hellos: dict[int, bytes] = {}  # Those that are answered and not gone.
        try:
            self._gather(store, hellos, session)
            self._refuse_larger(store)
        except _Refused as refused:
            self._refuse_all(store, hellos, session, refused)
            tell(error := FailedPrecondition(str(refused)))
            self._wait_until_heard(store, hellos)
            raise error from None
        except Error as error:
            self._take_back(store, hellos, session)
            tell(error)
            raise
        finally:
            for hello in hellos.values():
                store.delete_key(self._welcome(_nonce(hello)))
        return session

    def _gather(self, store: Any, hellos: dict[int, bytes], session: str) -> None:
        """Answers all hellos, in the order of the ranks, and waits until they are gone."""
        rank, pause = 1, 0.001
        while hellos or rank < self._world:
            before = hellos.get(rank - 1)
            # After one that is refused nobody joins, unless a successor comes.
            asks = rank < self._world and not (before and self._refusal(rank - 1, before))
            hello = peek(store, self._hello(rank)) if asks else ABSENT
            if hello != ABSENT:
                hellos[rank] = self._answer(store, rank, hello, session)
                rank, pause = rank + 1, 0.001
                continue
            self._joining(store, hellos, session)
            if time.monotonic() > self._end:
                silent = [late for late in range(rank, self._world) if peek(store, self._hello(late)) == ABSENT]
                raise self._late(store, [*hellos, *silent])
            if self._closed.wait(pause):
                raise FailedPrecondition(f"{self._root}: closed before all ranks had opened it")
            pause = min(2 * pause, _PAUSE)

    def _refuse_all(self, store: Any, hellos: dict[int, bytes], session: str, refused: _Refused) -> None:
        """Tells the ranks that have asked, of this number of ranks or of the other."""
        answer = f"{_REFUSED}{refused}"
        for rank in range(1, max(self._world, refused.world)):
            answered = hellos.get(rank)
            if (hello := peek(store, self._hello(rank))) == ABSENT:
                if answered and not self._refusal(rank, answered):
                    self.joined += 1  # Since rank 0 last looked.
                hellos.pop(rank, None)
                continue
            key = self._welcome(_nonce(hello))
            if answered and answered != hello:
                store.delete_key(self._welcome(_nonce(answered)))
            if answered != hello or self._refusal(rank, hello):
                store.set(key, answer)
            elif store.compare_set(key, session, answer) != answer.encode():
                self.joined += 1
            hellos[rank] = hello

    def _take_back(self, store: Any, hellos: dict[int, bytes], session: str) -> None:
        """From here on nobody takes the session who has not joined."""
        for rank, hello in hellos.items():
            now = peek(store, self._hello(rank))
            if self._refusal(rank, hello) or now not in (ABSENT, hello):
                continue
            if now == ABSENT or store.compare_set(self._welcome(_nonce(hello)), session, ABSENT) != ABSENT:
                self.joined += 1

    def _refuse_larger(self, store: Any) -> None:
        """Ranks of a larger number that have asked; all of rank 0's have joined."""
        rank = self._world
        while (hello := peek(store, self._hello(rank))) != ABSENT:
            self._answer(store, rank, hello, "")
            rank += 1

    def _wait_until_heard(self, store: Any, hellos: dict[int, bytes]) -> None:
        end, pause = time.monotonic() + _HEARING, 0.001
        while any(peek(store, self._hello(rank)) == hello for rank, hello in hellos.items()) and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)

    def _joining(self, store: Any, hellos: dict[int, bytes], session: str) -> None:
        """Removes those that are gone; answers successors."""
        for rank, hello in [*hellos.items()]:
            now = peek(store, self._hello(rank))
            if now == ABSENT:
                del hellos[rank]
                if refusal := self._refusal(rank, hello):
                    raise _Refused(refusal, hello)
                self.joined += 1
            elif now != hello:
                store.delete_key(self._welcome(_nonce(hello)))
                hellos[rank] = self._answer(store, rank, now, session)

    def _answer(self, store: Any, rank: int, hello: bytes, session: str) -> bytes:
        """Returns the hello that it has answered."""
        refusal = self._refusal(rank, hello)
        store.set(self._welcome(_nonce(hello)), f"{_REFUSED}{refusal}" if refusal else session)
        return hello

    def _refusal(self, rank: int, hello: bytes) -> str:
        """Why a rank with this hello cannot join; empty if it can."""
        world = hello.decode().partition(_OF)[2]
        if world == str(self._world):
            return ""
        return (
            f"{self._root}: rank 0 opened it with {self._world} ranks, rank {rank} with {world or 'an unknown number'}"
        )

    def _late(self, store: Any, late: list[int]) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self._root}: not opened by rank {', '.join(map(str, late))} within {self._timeout:g} s"
            f"{self._elsewhere(store, late)}"
        )

    def _elsewhere(self, store: Any, late: list[int]) -> str:
        """For a message: which root one of these ranks has opened instead."""
        for rank in late:
            root = peek(store, _opens(rank))
            if root != ABSENT and root.decode().rpartition(" on host ")[0] != self._root:
                return f", but rank {rank} opened {root.decode()}; all ranks give the same path"
        return ""

    def _under(self, session: str) -> str:
        return f"{self._base}/{session}"

    def _hello(self, rank: int) -> str:
        return f"{self._base}/hello/{rank}"

    def _welcome(self, nonce: str) -> str:
        return f"{self._base}/welcome/{nonce}"


def _opens(rank: int) -> str:
    return f"cairn/opens/{rank}"


def _take(store: Any, key: str) -> bytes:
    """The answer there, which rank 0 changes no more; ABSENT if it has taken it back."""
    said = peek(store, key)
    while said != ABSENT:
        now = bytes(store.compare_set(key, said, _TAKEN))
        if now == _TAKEN:
            break
        said = now if now != said else ABSENT  # An absent key is said to be what was expected.
    return said


def _nonce(hello: bytes) -> str:
    return hello.decode().partition(_OF)[0]
