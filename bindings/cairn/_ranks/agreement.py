"""A Checkpointer's rank in a group: what its ranks do together. Alone, everything is done here and now."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .. import _core, _errors
from .._errors import Corrupt, Error, NotFound
from .store_link import StoreLink, resolve

T = TypeVar("T")


class Ranks:
    """`group` as Checkpointer takes it; `timeout` in seconds is how long a rank waits for the others, each time."""

    def __init__(self, group: Any, root: str, timeout: float) -> None:
        self.rank, self.world = 0, 1
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
        """Returns what the call returns once it has succeeded on every rank; else raises its error, or another rank's."""
        result, errors = self.outcomes(what, call)
        for error in [errors[self.rank]] if self.rank in errors else errors.values():
            raise error
        return cast(T, result)

    def outcomes(self, what: str, call: Callable[[], T]) -> tuple[T | None, dict[int, Exception]]:
        """What the call returns here, and what it raises on each rank where it does: every rank has the same of these.
        Another rank's begins with its number. Raises where the ranks do not hear each other: its own error, if
        that is one which ends the call whatever the others say."""
        result: T | None = None
        errors: dict[int, Exception] = {}
        word = b"{}"
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 (every rank raises it)
            errors[self.rank] = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
            word = _word_of(error)
        if self._link is None:
            return result, errors
        try:
            words = self._link.gather(what, word)
        except Error as unheard:
            # Damage, or what is gone, may not be the end where others answer: it is why this rank stood there, no more.
            for own in errors.values():
                if isinstance(own, (Corrupt, NotFound)):
                    raise type(unheard)(f"{unheard} (on this rank: {own})") from own
                raise own from unheard
            raise
        for rank, said in enumerate(words):
            if rank != self.rank and (theirs := _error_in(f"rank {rank}: ", said)):
                errors[rank] = theirs
        return result, errors

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

    def agree(self, what: str, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What rank 0 chooses, as JSON keeps it, or its error: the others' `choose` is not called."""
        if self._link is None:
            return choose()
        word = b"{}"
        if self.rank == 0:
            try:
                word = json.dumps(choose()).encode()
            except Exception as error:
                self._tell(what, error)
                raise
        said = self._link.gather(what, word)[0]
        _raise_if_error("rank 0: ", said)
        return cast("dict[str, Any]", json.loads(said))

    def _tell(self, what: str, error: BaseException) -> None:
        """The caller's own error counts, whatever becomes of this."""
        assert self._link is not None
        with contextlib.suppress(Error):
            self._link.gather(what, _word_of(error))

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


def _word_of(error: BaseException) -> bytes:
    return json.dumps({"error": type(error).__name__, "message": str(error)}).encode()


def _error_in(who: str, word: bytes) -> Error | None:
    said = json.loads(word)
    if "error" not in said:
        return None
    kind: type[Error] = getattr(_errors, said["error"]) if said["error"] in _errors.CODES else Error
    return kind(who + said["message"])


def _raise_if_error(who: str, word: bytes) -> None:
    if error := _error_in(who, word):
        raise error
