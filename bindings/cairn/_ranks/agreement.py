"""How the ranks of a group agree: they exchange results and errors. A process alone waits for nobody."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .. import _core
from .._errors import DeadlineExceeded, Error, error_named, text_of
from .stopping import Agreement
from .store_link import StoreLink
from .stores import resolve

T = TypeVar("T")
_CALLS = {  # Which call of the Checkpointer exchanges these messages.
    "open": "opens the Checkpointer",
    "dcp": "saves", "dcp items": "saves", "dcp values": "saves", "dcp contents": "saves",
    "dcp names": "saves", "dcp load": "loads",
}  # fmt: skip


class Ranks:
    """`group` is Checkpointer's; a rank waits for the others up to `timeout` seconds, each time."""

    def __init__(self, group: Any, root: str, timeout: float) -> None:
        self.rank, self.world = 0, 1
        self.timeout = timeout
        self._link: StoreLink | None = None
        if group is None:
            return
        store, self.rank, self.world = resolve(group)
        if self.world > 1:
            self._link = StoreLink(store, self.rank, self.world, root, timeout)

    @property
    def core(self) -> _core.StoreGroup | None:
        return self._link.core if self._link else None

    def together(self, what: str, call: Callable[[], T]) -> T:
        """Returns the call's result once it has succeeded on every rank; else raises its error, or another rank's,
        which begins with that one's number."""
        try:
            result = call()
        except Exception as error:
            self.give_up(what, error)
            raise
        self.exchange(what, b"")
        return result

    def exchange(self, what: str, message: bytes) -> list[bytes]:
        """Every rank's message, by rank. If a rank calls `give_up` instead, raises its error. A rank that comes after
        rank 0's deadline does not hear the others' messages: it waits for their next call."""
        if self._link is None:
            return [message]
        messages = self._gather(what, b"=" + message)
        for rank, said in enumerate(messages):
            if not said.startswith(b"="):
                _raise_if_error(f"rank {rank}: ", said)
        return [said[1:] for said in messages]

    def give_up(self, what: str, error: BaseException) -> None:
        """Called instead of `exchange` by a rank that has failed: the others wait for its message."""
        if self._link is not None:
            self._send_error(what, error)

    def agree(self, what: str, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Rank 0's choice, converted to JSON and back, or its error. The other ranks' `choose` is not called."""
        if self._link is None:
            return choose()
        message = b"{}"
        if self.rank == 0:
            try:
                message = json.dumps(choose()).encode()
            except Exception as error:
                self._send_error(what, error)
                raise
        said = self._gather(what, message)[0]
        _raise_if_error("rank 0: ", said)
        return cast("dict[str, Any]", json.loads(said))

    def _gather(self, what: str, message: bytes) -> list[bytes]:
        assert self._link is not None
        try:
            # What is called again and again must not go on shifted after a call that rank 0 made alone.
            return self._link.gather(what, message, joins_late=what == "open")
        except DeadlineExceeded as error:
            if what not in _CALLS:
                raise
            raise error.with_text(f"{error}: every rank {_CALLS[what]}, within group_timeout") from error

    def announce(self, key: str, message: bytes) -> None:
        """Tells the other ranks, on rank 0, without waiting; each of them hears it once."""
        if self.core is not None:
            self.core.announce(key, message)

    def hear(self, key: str) -> bytes:
        """What rank 0 has announced under this key, or will announce before the timeout: DeadlineExceeded then."""
        assert self.core is not None
        return self.core.await_message(key, self.timeout)

    def _send_error(self, what: str, error: BaseException) -> None:
        """Never raises Error: the caller raises its own error."""
        assert self._link is not None
        with contextlib.suppress(Error):
            self._link.gather(what, _encode_error(error))

    def make_stopping(self) -> Agreement | None:
        """How this rank agrees with the others on when to stop; after the open. None for a process alone."""
        if self._link is None:
            return None
        store, prefix = self._link.shared("stop")
        return Agreement(store, self.rank, self.world, prefix)

    def close(self, end: float = math.inf) -> None:
        if self._link is not None:
            self._link.close(end)


def _encode_error(error: BaseException) -> bytes:
    detail = getattr(error, "detail", 0)
    return json.dumps({"error": type(error).__name__, "message": text_of(error), "detail": detail}).encode()


def _raise_if_error(who: str, message: bytes) -> None:
    said = json.loads(message)
    if "error" in said:
        raise error_named(said["error"], who + said["message"], said["detail"])
