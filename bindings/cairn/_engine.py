"""What every part of a Checkpointer uses: the engine, its events, and the tensors that it still reads."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import Checkpointer, Events, Save

_log = logging.getLogger("cairn")


def log_events(events: Events) -> None:
    """Logs what has happened since the last call: the engine's threads never call into Python. What a handler of the
    program raises is reported, and ends nothing: this also runs on the thread that lets saves commit."""
    for _, severity, step, message in events.take():
        if message:
            about = "" if step is None else f"step {step}: "
            text = message if message.startswith(about) else about + message
            try:
                _log.log((logging.INFO, logging.WARNING, logging.ERROR)[severity], "%s", text)
            except Exception:  # noqa: BLE001 (the program's)
                traceback.print_exc()


class Engine:
    """The engine of one open root."""

    _core: Checkpointer
    # A save's tensors must live until it is captured, even if the caller drops them. With the CUDA devices they are on.
    _held: deque[tuple[Save, list[Any], set[int]]]

    def _release_captured(self, fencing: bool = False) -> None:
        """Forgets the tensors of saves that are captured and checked. A fence checks them here, before the caller writes."""
        for held in list(self._held):  # Other threads may append and remove.
            if not (held[0].captured if fencing else held[0].settled):
                return
            with contextlib.suppress(ValueError):
                self._held.remove(held)

    def _log_events(self) -> None:
        self._release_captured()
        log_events(self._core.events)
