"""Arguments of calls, checked where the user gave them: the compiled module would name its own types."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable
from typing import Any

from ._errors import InvalidArgument

_STEPS = 2**64
_SMALL = 2**31
_LONGEST = 1e9  # Seconds.


def whole(name: str, value: Any, below: int = _STEPS) -> int:
    """A whole number from 0 to a power of two; numpy's and torch's integers too. Else InvalidArgument."""
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):
        number = -1
    if isinstance(value, bool) or not 0 <= number < below:
        raise InvalidArgument(
            f"{name}: expected a whole number of 0 or more, below 2**{below.bit_length() - 1}, found {reprlib.repr(value)}"
        )
    return number


def step_number(step: Any) -> int:
    return whole("step", step)


def optional_step(step: Any) -> int | None:
    """None is the newest."""
    return None if step is None else whole("step", step)


def seconds(name: str, value: Any) -> float:
    """Seconds of 0 or more. Else InvalidArgument."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not number >= 0:
        raise InvalidArgument(f"{name}: expected seconds, 0 or more, found {reprlib.repr(value)}")
    return number


def timeout_of(timeout: Any) -> float | None:
    """None waits for ever; a negative time is 0."""
    if timeout is None:
        return None
    return max(0.0, float(timeout)) if type(timeout) in (int, float) else seconds("timeout", timeout)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        said = ", ".join(f'"{one}"' for one in allowed[:-1])
        raise InvalidArgument(f'{name}: expected {said} or "{allowed[-1]}", found {reprlib.repr(value)}')
    return str(value)


def callback(name: str, call: Any) -> Any:
    if call is not None and not callable(call):
        raise InvalidArgument(f"{name}: expected a function, found {reprlib.repr(call)}")
    return call


def flag(name: str, value: Any) -> bool:
    """A bool; also numpy's, and a comparison of torch's scalars. Else InvalidArgument."""
    if not isinstance(value, (bool, int)) and getattr(value, "ndim", None) != 0:
        raise InvalidArgument(f"{name}: expected True or False, found {reprlib.repr(value)}")
    return bool(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}: expected text, found {reprlib.repr(value)}")
    return value


def _numbers(name: str, value: Any) -> list[int]:
    try:
        return [whole(name, one, _SMALL) for one in value]
    except TypeError:
        raise InvalidArgument(f"{name}: expected a list of numbers, found {reprlib.repr(value)}") from None


def _small(name: str, value: Any) -> int:
    return whole(name, value, _SMALL)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("keep_last", "keep_every", "trace_events"), whole),
    **dict.fromkeys(
        ("max_in_flight", "queue_depth", "worker_threads", "copy_streams", "file_mode", "directory_mode"), _small
    ),
    **dict.fromkeys(("full_timeout", "open_timeout", "stall_timeout", "close_timeout", "group_timeout"), seconds),
    **dict.fromkeys(("when_full", "io_queue", "nonfinite", "unfenced_writes"), _text),
    **dict.fromkeys(("read_only", "take_over", "checksums", "gpu_checksums", "recycle"), flag),
    "cuda_devices": _numbers,
}


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """A Checkpointer's options, of the types that the compiled module takes."""
    return {name: _CHECKS[name](name, value) if name in _CHECKS else value for name, value in options.items()}


def steering_of(
    interval: float | None, slowdown: float | None, mtbf: float | None, restart_time: float
) -> tuple[float, float, float] | None:
    """What the engine needs to choose when to save; None if it does not choose. InvalidArgument for options that do not
    fit together."""
    if (slowdown is None) != (mtbf is None):
        raise InvalidArgument(f"slowdown and mtbf: expected both or neither, found {slowdown} and {mtbf}")
    if interval is not None and (slowdown is not None or not 0 < seconds("interval", interval) <= _LONGEST):
        raise InvalidArgument(f"interval: expected seconds, up to 1e9, and no slowdown, found {interval}")
    if slowdown is None or mtbf is None:
        return None
    for name, span in (("mtbf", mtbf), ("restart_time", restart_time)):
        if not 0 <= span <= _LONGEST:
            raise InvalidArgument(f"{name}: expected 0 to 1e9 seconds, found {span}")
    return slowdown, mtbf, restart_time
