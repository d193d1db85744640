"""Cairn's errors, out of the one that DCP raises for all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributed.checkpoint.api import CheckpointException

from .._errors import Error


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raises Cairn's error itself where DCP raises CheckpointException with it: that is no Exception, and its text has the
    traceback of each rank. It is the first rank's, on all."""
    try:
        yield
    except CheckpointException as error:
        if isinstance(first := first_of(error), Error):
            raise first from None
        raise


def first_of(error: BaseException) -> BaseException:
    """The first rank's error, of those in DCP's CheckpointException; any other is itself."""
    if isinstance(error, CheckpointException):
        return min(error.failures.items(), key=lambda at: at[0])[1][0]
    return error
