"""How the ranks of a job meet in the store when they open a root: they agree on a session, whatever died before them.

  1. Each rank names the root that it opens in `cairn/opens/<r>`, for the others' messages. It stays after a failure.
  2. Rank r sets `hello/<r>` to a nonce and its number of ranks, and waits for `welcome/<nonce>`.
  3. Rank 0 answers there: a session, or `!` and why it refuses.
  4. Rank r removes the answer, and then its hello: it has joined, or it was refused.
  5. Rank 0 goes on once all hellos are gone. The hello of a rank that has died, or has given up, stays. Its successor
     overwrites it, and step 3 begins again.
Rank 0 removes no hello: so the successor of a rank 0 that has died finds them. The keys of steps 2 and 3 are under
`cairn/<digest of the root>/`. A session is a fresh id, so that nobody reads an earlier one's words.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from typing import Any

from .._errors import DeadlineExceeded, FailedPrecondition
from .stores import ABSENT, peek, wait

_PAUSE = 0.1  # Seconds, the longest between rank 0's looks at the hellos.
_OF = " of "  # In a hello, between the nonce and the number of ranks.
_REFUSED = "!"  # Begins an answer that is no session.


class Meeting:
    """One rank's part."""

    def __init__(self, rank: int, world: int, root: str, timeout: float) -> None:
        """`timeout`: seconds that a rank waits for the others."""
        self._rank, self._world, self._timeout = rank, world, timeout
        self._root = os.path.abspath(root)
        self._base = f"cairn/{hashlib.sha256(self._root.encode()).hexdigest()[:16]}"

    def agree(self, store: Any) -> str:
        """The session, as the first part of its keys. DeadlineExceeded names the ranks that are missing;
        FailedPrecondition if a rank was told another number of ranks."""
        store.set(opens := _opens(self._rank), f"{self._root} on host {socket.gethostname()}")
        end = time.monotonic() + self._timeout
        session = self._lead(store, end) if self._rank == 0 else self._join(store, end)
        store.delete_key(opens)
        return f"{self._base}/{session}"

    def _join(self, store: Any, end: float) -> str:
        nonce = uuid.uuid4().hex
        store.set(self._hello(self._rank), f"{nonce}{_OF}{self._world}")
        came = wait(store, self._welcome(nonce), end - time.monotonic())
        said = peek(store, self._welcome(nonce)) if came else ABSENT
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

    def _lead(self, store: Any, end: float) -> str:
        session = uuid.uuid4().hex
        hellos: dict[int, bytes] = {}  # Those that are answered and not gone.
        for rank in range(1, self._world):
            hello = ABSENT
            while hello == ABSENT:
                if not wait(store, self._hello(rank), end - time.monotonic()):
                    raise self._late(store, self._silent(store, rank, hellos))
                hello = peek(store, self._hello(rank))
            hellos[rank] = self._answer(store, rank, hello, session)
            if self._refusal(rank, hello):  # It ends the opening, unless that rank is dead.
                self._settle(store, hellos, session, end)
        self._settle(store, hellos, session, end)
        return session

    def _silent(self, store: Any, begin: int, hellos: dict[int, bytes]) -> list[int]:
        """The ranks from `begin` on that have no hello, and those before whose answered ones are still there."""
        late = [rank for rank, hello in hellos.items() if peek(store, self._hello(rank)) == hello]
        return late + [rank for rank in range(begin, self._world) if peek(store, self._hello(rank)) == ABSENT]

    def _settle(self, store: Any, hellos: dict[int, bytes], session: str, end: float) -> None:
        """Waits until these hellos, which are answered, are gone."""
        pause = 0.001
        while self._joining(store, hellos, session):
            if time.monotonic() > end:
                for hello in hellos.values():
                    store.delete_key(self._welcome(_nonce(hello)))
                raise self._late(store, [*hellos])
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)

    def _joining(self, store: Any, hellos: dict[int, bytes], session: str) -> bool:
        """Whether any of them is still there. Removes those that are gone; answers successors."""
        for rank, hello in [*hellos.items()]:
            now = peek(store, self._hello(rank))
            if now == ABSENT:
                del hellos[rank]
                if refusal := self._refusal(rank, hello):
                    raise FailedPrecondition(refusal)
            elif now != hello:
                store.delete_key(self._welcome(_nonce(hello)))
                hellos[rank] = self._answer(store, rank, now, session)
        return bool(hellos)

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

    def _hello(self, rank: int) -> str:
        return f"{self._base}/hello/{rank}"

    def _welcome(self, nonce: str) -> str:
        return f"{self._base}/welcome/{nonce}"


def _opens(rank: int) -> str:
    return f"cairn/opens/{rank}"


def _nonce(hello: bytes) -> str:
    return hello.decode().partition(_OF)[0]
