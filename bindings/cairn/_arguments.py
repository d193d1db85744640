"""Arguments of calls, checked where the user gave them: the compiled module would name its own types."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._errors import InvalidArgument
from ._paths import local_path
from ._tree.paths import is_unicode, shown

_STEPS = 2**64
_SIZES = 2**64
_SMALL = 2**31
_LONGEST = 1e9  # Seconds.
_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {_letter + "B": 1000**_power, _letter + "iB": 1024**_power}


def whole(name: str, value: Any, below: int = _STEPS) -> int:
    """A whole number from 0 to a power of two; numpy's and torch's integers too. Else InvalidArgument."""
    try:
        number = operator.index(value)
    except Exception:  # noqa: BLE001 (of the value's own code)
        number = -1
    if isinstance(value, bool) or not 0 <= number < below:
        raise InvalidArgument(
            f"{name}: expected a whole number of 0 or more, below 2**{below.bit_length() - 1}, found {shown(value)}"
        )
    return number


def step_number(step: Any) -> int:
    return whole("step", step)


def optional_step(step: Any) -> int | None:
    """None is the newest."""
    return None if step is None else whole("step", step)


def seconds(name: str, value: Any, what: str = "seconds, 0 or more") -> float:
    """A number of 0 or more. Else InvalidArgument."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except Exception:  # noqa: BLE001 (of the value's own code)
        number = math.nan
    if not number >= 0:
        raise InvalidArgument(f"{name}: expected {what}, found {shown(value)}")
    return number


def timeout_of(timeout: Any) -> float | None:
    """None waits for ever; a negative time is 0."""
    if timeout is None:
        return None
    return max(0.0, float(timeout)) if type(timeout) in (int, float) else seconds("timeout", timeout)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        said = ", ".join(f'"{one}"' for one in allowed[:-1])
        raise InvalidArgument(f'{name}: expected {said} or "{allowed[-1]}", found {shown(value)}')
    return str(value)


def callback(name: str, call: Any) -> Any:
    if call is not None and not callable(call):
        raise InvalidArgument(f"{name}: expected a function, found {shown(call)}")
    return call


def flag(name: str, value: Any) -> bool:
    """A bool; also numpy's, and a comparison of torch's scalars. Else InvalidArgument."""
    if not isinstance(value, (bool, int)) and getattr(value, "ndim", None) != 0:
        raise InvalidArgument(f"{name}: expected True or False, found {shown(value)}")
    return bool(value)


def stream_of(name: str, stream: Any) -> tuple[int, int]:
    """The device and the handle of a torch.cuda.Stream. Else InvalidArgument."""
    try:
        return int(stream.device.index), int(stream.cuda_stream)
    except (AttributeError, TypeError):
        raise InvalidArgument(f"{name}: expected a torch.cuda.Stream, found {shown(stream)}") from None


def parse_size(size: int | str) -> int:
    """Bytes: a number, or text as "4GiB" (1024**3 each) and "4GB" (1000**3 each).

    Raises InvalidArgument for anything else, and for 2**64 bytes or more.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        found: float = size
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
        if match is None or match[2] not in _UNITS:
            raise InvalidArgument(f'expected a size such as 4294967296, "4GiB" or "4GB", found {shown(size)}')
        found = float(match[1]) * _UNITS[match[2]]
    if not found < _SIZES:
        raise InvalidArgument(f"expected a size below 2**64 bytes, found {shown(size)}")
    return int(found)


def size(name: str, value: Any) -> int:
    try:
        return parse_size(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def host_memory_size(name: str, value: Any) -> int:
    """The bytes of host_memory; 0 for "auto"."""
    if value == "auto":
        return 0
    try:
        found = parse_size(value)
    except InvalidArgument as error:
        raise InvalidArgument(f'{name}: "auto", or {error}') from None
    if found == 0:
        raise InvalidArgument(f'{name}: expected "auto" or a size above 0, found {shown(value)}')
    return found


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not is_unicode(value):
        raise InvalidArgument(f"{name}: expected Unicode text, found {shown(value)}")
    return value


def texts(name: str, values: Any) -> list[str]:
    """A str, or several."""
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        return [text(name, values)]
    return [text(name, one) for one in values]


def several(name: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name}: expected several, found {shown(values)}")
    return [*values]


def _numbers(name: str, value: Any) -> list[int]:
    try:
        return [whole(name, one, _SMALL) for one in value]
    except TypeError:
        raise InvalidArgument(f"{name}: expected a list of numbers, found {shown(value)}") from None


def _small(name: str, value: Any) -> int:
    return whole(name, value, _SMALL)


def _metrics_file(name: str, value: Any) -> str:
    """Empty for None."""
    return "" if value is None else local_path(value, name)


def _memory(name: str, value: Any) -> str:
    """Empty for None."""
    return "" if value is None else local_path(value, name)


def without_memory(options: Mapping[str, Any]) -> None:
    """For the options of an integration, whose checkpoints are looked for, and waited for, on the disk."""
    if options.get("memory") is not None:
        raise InvalidArgument(
            "memory: expected none with this integration, found a folder: Checkpointer, cairn.dcp, cairn.huggingface and "
            "cairn.torchtitan have it"
        )


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("disk_every", "keep_last", "keep_every", "trace_events"), whole),
    **dict.fromkeys(
        (
            *("max_in_flight", "queue_depth", "worker_threads", "copy_streams", "file_mode", "directory_mode"),
            "stop_after_failures",
        ),
        _small,
    ),
    **dict.fromkeys(("full_timeout", "open_timeout", "stall_timeout", "close_timeout", "group_timeout"), seconds),
    **dict.fromkeys(("when_full", "io_queue", "nonfinite", "unfenced_writes"), text),
    **dict.fromkeys(("read_only", "take_over", "checksums", "gpu_checksums", "recycle"), flag),
    **dict.fromkeys(("chunk", "staging"), size),
    "host_memory": host_memory_size,
    "cuda_devices": _numbers,
    "memory": _memory,
    "metrics_file": _metrics_file,
}


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a Checkpointer's options that its engine takes, of the types that the compiled module expects."""
    steering = steering_of(*(options[name] for name in ("interval", "slowdown", "mtbf", "restart_time")))
    return {name: check(name, options[name]) for name, check in _CHECKS.items()} | {"steering": steering}


def steering_of(
    interval: float | None, slowdown: float | None, mtbf: float | None, restart_time: float
) -> tuple[float, float, float] | None:
    """What the engine needs to choose when to save; None if it does not choose. InvalidArgument for options that do not
    fit together."""
    restart_time = seconds("restart_time", restart_time, "0 to 1e9 seconds")
    if (slowdown is None) != (mtbf is None):
        raise InvalidArgument(f"slowdown and mtbf: expected both or neither, found {shown(slowdown)} and {shown(mtbf)}")
    if interval is not None and (slowdown is not None or not 0 < seconds("interval", interval) <= _LONGEST):
        raise InvalidArgument(f"interval: expected seconds, up to 1e9, and no slowdown, found {shown(interval)}")
    if slowdown is None or mtbf is None:
        return None
    slowdown, mtbf = seconds("slowdown", slowdown, "a number of 0 or more"), seconds("mtbf", mtbf, "0 to 1e9 seconds")
    for name, span in (("mtbf", mtbf), ("restart_time", restart_time)):
        if not 0 <= span <= _LONGEST:
            raise InvalidArgument(f"{name}: expected 0 to 1e9 seconds, found {span}")
    return slowdown, mtbf, restart_time
