"""Each of Lightning's own tests runs with Cairn's Callback, which fences, and without: then each save waits."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Iterator

import pytest
import theirs
import torch


@pytest.fixture(params=["callback", "alone"])
def make(request: pytest.FixtureRequest) -> Iterator[theirs.Make]:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield functools.partial(theirs.trainer, fences=request.param == "callback")
