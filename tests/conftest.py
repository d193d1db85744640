"""Which cases a run tries."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each test that is marked `cases`, a run tries one case in $CAIRN_ONE_IN, and at least one; all if that is not
    set. $CAIRN_FIRST says which, to all processes of the run. A failure names its case. Tests take different cases: what
    several of them are run with, such as the kinds of a store, is then not all of one kind."""
    one_in, first = (int(os.environ.get(name) or unset) for name, unset in (("CAIRN_ONE_IN", 1), ("CAIRN_FIRST", 0)))
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cases"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left = set()
    for test, of_one in enumerate(cases.values()):
        stride = max(1, min(one_in, len(of_one)))
        left.update(item for number, item in enumerate(of_one) if number % stride != (first + test) % stride)
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
