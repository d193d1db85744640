"""What a reader does about a checkpoint that was chosen and is not found: it is gone, or this rank sees it late."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

from .._errors import Error, FailedPrecondition, NotFound

_log = logging.getLogger("cairn")
_PAUSES = (0.05, 1.0)  # Seconds: the first pause, which is doubled, and the longest.


class Again:
    """Chooses again because the choice was gone: at once, and then after growing pauses, for `patience` seconds."""

    def __init__(self, patience: float) -> None:
        self._begun = time.monotonic()
        self._patience, self._pause, self._times = patience, 0.0, 0

    def wait(self, gone: Exception) -> None:
        """Raises FailedPrecondition if that has gone on for too long."""
        self._times += 1
        waited = time.monotonic() - self._begun
        if waited >= self._patience:
            raise FailedPrecondition(
                f"chose a checkpoint {self._times} times in {waited:.3g} s, but it was gone each time: {gone}"
            ) from gone
        time.sleep(self._pause)
        self._pause = min(max(2 * self._pause, _PAUSES[0]), _PAUSES[1])


class LateChoice:
    """Rank 0's choice, as long as this rank does not see it: a network filesystem may show names late, by up to a minute.
    See LateName in src/store/late_name.h."""

    def __init__(self, rank: int, timeout: float) -> None:
        self._where = f"on rank {rank} ({socket.gethostname()})"
        self._patience = timeout - min(timeout / 20, 1.0)
        self._attempt, self._since, self._looks = "", 0.0, 0

    def missed(self, chosen: dict[str, Any], found: Exception) -> Error:
        """What to raise: NotFound, for a further round; after the timeout FailedPrecondition, which ends the restore."""
        now = time.monotonic()
        if chosen["attempt"] != self._attempt:
            self._attempt, self._since, self._looks = chosen["attempt"], now, 0
        self._looks += 1
        what = f"{chosen['path']}, which rank 0 has chosen, is not visible"
        if now - self._since >= self._patience:
            return FailedPrecondition(
                f"{what} {self._where} after {now - self._since:.3g} s ({found}): either the filesystem shows new names "
                "late there, or it is another directory there: is a mount missing, or the path wrong?"
            )
        if self._looks == 2:
            _log.warning("%s yet %s; looking for it", what, self._where)
        return NotFound(f"{what} yet {self._where}: {found}")
