"""A Checkpointer's rank in a group: what its ranks do together. Alone, everything is done here and now."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

from . import _core, _errors, _group
from ._errors import Error, FailedPrecondition

T = TypeVar("T")


class Ranks:
    """`group` as Checkpointer takes it; `timeout` in seconds is how long a rank waits for the others, each time."""

    def __init__(self, group: Any, root: str, timeout: float) -> None:
        self.rank, self.world = 0, 1
        self._link: _group.StoreLink | None = None
        if group is None:
            return
        store, self.rank, self.world = _group.resolve(group)
        if self.world > 1:
            self._link = _group.StoreLink(store, self.rank, self.world, root, timeout)

    @property
    def core(self) -> _core.StoreGroup | None:
        return self._link.core if self._link else None

    def together(self, what: str, call: Callable[[], T]) -> T:
        """Returns what the call returns once it has succeeded on every rank; else raises its error, or another rank's."""
        if self._link is None:
            return call()
        try:
            result = call()
        except Exception as error:
            self._tell(what, error)
            raise
        for rank, word in enumerate(self._link.gather(what, b"{}")):
            _raise_if_error(f"rank {rank}: ", word)
        return result

    def exchange(self, what: str, word: bytes) -> list[bytes]:
        """What every rank gives, by rank. Where one gives up instead (see `give_up`), its error."""
        if self._link is None:
            return [word]
        words = self._link.gather(what, b"=" + word)
        for rank, said in enumerate(words):
            if not said.startswith(b"="):
                _raise_if_error(f"rank {rank}: ", said)
        return [said[1:] for said in words]

    def give_up(self, what: str, error: BaseException) -> None:
        """In place of an exchange that the others wait for."""
        if self._link is not None:
            self._tell(what, error)

    def agree(self, what: str, choose: Callable[[], dict[str, Any]], follow: Callable[[int], dict[str, Any]]) -> Any:
        """Rank 0 chooses a checkpoint; the others look at the one of that step. All have the same attempt, or raise."""
        if self._link is None:
            return choose()
        details: dict[str, Any] = {}
        word = b"{}"
        if self.rank == 0:
            try:
                details = choose()
            except Exception as error:
                self._tell(what, error)
                raise
            word = json.dumps({"step": details["step"], "attempt": details["attempt"]}).encode()
        chosen_word = self._link.gather(what, word)[0]
        _raise_if_error("rank 0: ", chosen_word)
        # A rank that finds another one, or none, says so: the others wait for it.
        chosen = json.loads(chosen_word)
        return self.together(f"{what} found", lambda: details if self.rank == 0 else self._same(chosen, follow))

    def _same(self, chosen: dict[str, Any], follow: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        details = follow(chosen["step"])
        if details["attempt"] != chosen["attempt"]:
            raise FailedPrecondition(
                f"step {chosen['step']}: rank 0 found attempt {chosen['attempt']}, rank {self.rank} found "
                f"{details['attempt']} in {details['path']}"
            )
        return details

    def _tell(self, what: str, error: BaseException) -> None:
        """The caller's own error counts, whatever becomes of this."""
        assert self._link is not None
        with contextlib.suppress(Error):
            self._link.gather(what, json.dumps({"error": type(error).__name__, "message": str(error)}).encode())

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


def _raise_if_error(who: str, word: bytes) -> None:
    said = json.loads(word)
    if "error" in said:
        kind = getattr(_errors, said["error"]) if said["error"] in _errors.CODES else Error
        raise kind(who + said["message"])
