"""Exceptions, one class for each status code of the C++ library. Where Python has a class for the same thing, it is a
base: `except FileNotFoundError` catches NotFound. No error has a filename; the message names the file."""

import errno as _errno
from collections.abc import Callable


class Error(Exception):
    """Anything that Cairn refuses or fails at."""

    detail = 0  # Which of the class's failures it is: StatusDetail in include/cairn/status.h.

    def with_text(self, text: str) -> "Error":
        """The same failure, in other words."""
        error = type(self)(text)
        error.detail = self.detail
        return error


class InvalidArgument(Error, ValueError):
    """The caller's input is wrong: a shape, a name, an option."""


class NotFound(Error, LookupError, FileNotFoundError):
    """No such checkpoint, tensor or file."""


class AlreadyExists(Error, FileExistsError):
    """The step is committed already; nothing was written."""


class FailedPrecondition(Error):
    """The call is not possible now: root locked, forked child, step below the newest."""


class ResourceExhausted(Error):
    """Memory, descriptors or the pool: a limit of the caller or the system is reached."""


class NoSpace(Error, OSError):
    """The filesystem (or RLIMIT_FSIZE, or a quota) has no room for the checkpoint. Its errno is ENOSPC."""

    errno = _errno.ENOSPC


class Corrupt(Error):
    """Bytes on disk are not what was committed."""


class IoError(Error, OSError):
    """The kernel refused or failed an I/O operation."""


class DeviceError(Error):
    """The GPU (or its driver) failed; the context may be lost."""


class DeadlineExceeded(Error, TimeoutError):
    """The deadline passed first. The operation itself goes on unless said otherwise."""


class Cancelled(Error):
    """Cancelled, skipped by policy, or replaced by a younger save."""


class UnknownOutcome(Error):
    """It may or may not have become durable, and it could not be found out in time."""


class Unsupported(Error):
    """This build, kernel, driver or filesystem cannot do it."""


class Internal(Error):
    """A bug in Cairn."""


def counted(number: int, noun: str) -> str:
    """For messages: "1 rank", "2 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# Of StatusDetail in include/cairn/status.h.
OPEN_IN_THIS_PROCESS = 3
OPEN_ELSEWHERE = 4
DISK_HANGS = 5


def unless_disk_hangs(check: Callable[[], object]) -> None:
    """Calls it. That a save was lost because the disk hangs is not raised: it is logged, and training goes on."""
    try:
        check()
    except Error as error:
        if error.detail != DISK_HANGS:
            raise


# The numbers of StatusCode in include/cairn/status.h, which has them in the order of the classes above.
CODES = {kind.__name__: number for number, kind in enumerate(Error.__subclasses__(), start=1)}


def error_named(name: str, text: str, detail: int = 0) -> Error:
    """Another rank's error: of the class with this name, or an Error if it was none of these classes."""
    kind: type[Error] = globals()[name] if name in CODES else Error
    error = kind(text)
    error.detail = detail
    return error


def text_of(error: BaseException) -> str:
    """What it says; its class's name if it says nothing, or its own code fails."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001
        return type(error).__name__


def status_of(error: BaseException) -> tuple[int, str, int]:
    """What other ranks hear of it: the number of a StatusCode, the text, and `detail`."""
    if isinstance(error, Error) and type(error).__name__ in CODES:
        return CODES[type(error).__name__], str(error), error.detail
    kind = FailedPrecondition if isinstance(error, Exception) else Cancelled
    return CODES[kind.__name__], f"{type(error).__name__}: {text_of(error)}", 0
