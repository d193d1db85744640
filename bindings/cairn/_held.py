"""The tensors that saves still read, and the engine's events."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import Events, Save

_log = logging.getLogger("cairn")


def log_events(events: Events) -> None:
    """Logs what has happened since the last call: the engine's threads never call into Python. What a handler of the
    program raises is reported, and ends nothing: this also runs on the thread that lets saves commit."""
    for severity, message, fields in events.take():
        level = (logging.INFO, logging.WARNING, logging.ERROR)[severity] if message else logging.DEBUG
        if not _log.isEnabledFor(level):
            continue
        step = fields["cairn_step"]
        text = message or str(fields["cairn_event"])
        says = fields["cairn_phase"] == "restore" or text.startswith((f"step {step}:", f"step {step} "))
        if step is not None and not says:
            text = f"step {step}: {text}"
        try:
            _log.log(level, "%s", text, extra=fields)
        except Exception:  # noqa: BLE001 (the program's)
            traceback.print_exc()


class Held:
    """What a save reads, which must live until it is captured, even if the caller drops it; and the CUDA devices that
    it is on."""

    save: Save | None = None  # Until it has begun.

    def __init__(self, tensors: list[Any], cuda: set[int]) -> None:
        self.tensors = tensors
        self.cuda = cuda


def release_captured(held: deque[Held], fencing: bool = False) -> None:
    """Forgets the tensors of saves that are captured and checked. A fence checks them here, before the caller writes."""
    for one in list(held):  # Other threads may append and remove.
        if one.save is None or not (one.save.captured if fencing else one.save.settled):
            return
        with contextlib.suppress(ValueError):
            held.remove(one)
