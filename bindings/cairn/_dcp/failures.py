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
        _, (first, _) = min(error.failures.items(), key=lambda at: at[0])
        if isinstance(first, Error):
            raise first from None
        raise
