"""cairn.dcp: what damaged or hostile DCP items in a file bring about. Always Corrupt, and soon."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
from cairn._dcp import direct, found, reader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
STATE: dict[str, Any] = {"w": torch.ones(3), "x": torch.ones(2), "c": 5}
Read = Callable[..., None]


@pytest.fixture(params=["load", "planned", "load_all"])
def read(request: Any, make: Any, root: Path, monkeypatch: Any) -> Iterator[Read]:
    """Reads a checkpoint whose items have these members; raises what rank 0 raises."""
    checkpointer = make()
    dcp.save(dict(STATE), storage_writer=cairn.dcp.StorageWriter(checkpointer, 1), planner=cairn.dcp.SavePlanner())
    real = reader.read_items

    def call(**members: Any) -> None:
        def hostile(details: Any, *place: int) -> Any:
            items = {**json.loads(details["values"][0]["dcp"]), **members}
            return real({**details, "values": [{"dcp": json.dumps(items)}]}, *place)

        for module in (reader, found):
            monkeypatch.setattr(module, "read_items", hostile)
        try:
            if request.param == "load_all":
                direct.load_all(checkpointer, str(next(root.glob("step-*1"))))
                return
            state = {"w": torch.zeros(3), "x": torch.zeros(2), "c": 0}
            storage_reader = cairn.dcp.StorageReader(checkpointer, 1)
            if request.param == "load":
                cairn.dcp.load(state, storage_reader=storage_reader)
                return
            dcp.load(state, storage_reader=storage_reader, planner=cairn.dcp.LoadPlanner())
        except CheckpointException as error:
            raise error.failures[0][0] from None

    yield call


def nested(depth: int) -> Any:
    node: Any = 1
    for _ in range(depth):
        node = ["list", node]
    return node


PATHS = {"w": ["w"], "x": ["x"], "c": ["c"]}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"paths": {**PATHS, "z": ["z"]}}, '"z": the checkpoint names it, but no shard holds it'),
        ({"paths": {**PATHS, "w": []}}, "expected a path"),
        ({"paths": {**PATHS, "w": [["w"]]}}, "expected a path"),
        ({"version": 2, "dtypes": {"w": "foo"}}, "expected a dtype that is kept as bytes, found 'foo'"),
        ({"version": 2, "dtypes": {"w": []}}, "expected a dtype that is kept as bytes"),
        ({"optimizers": {"o": "AdamW"}}, "expected names of optimizers' classes, found 'AdamW'"),
        ({"optimizers": [1]}, "its DCP items"),
        ({"parameters": {"o": ["w"]}}, r"expected names of optimizers' parameters, found \['w'\]"),
        ({"parameters": {"o": [[1]]}}, "expected names of optimizers' parameters"),
        ({"parameters": {"o": "w"}}, "expected names of optimizers' parameters, found 'w'"),
        ({"parameters": [1]}, "its DCP items"),
        ({"rest": 3}, "expected the places of what other shards hold, found 3"),
        ({"rest": {"tensors": {}, "values": {"a": {}}, "tied": []}}, "its DCP items"),
        ({"rest": {"tensors": {"w": "w"}, "values": {}, "tied": []}}, "expected a path"),
        ({"metadata": {"": 3}}, "expected the _metadata of state dicts, found 3"),
        ({"metadata": {"": {"0": []}}}, "expected the _metadata of state dicts"),
        ({"version": 3, "own": "w"}, "expected names of items that each rank has its own of, found 'w'"),
        ({"version": 3, "own": [["w"]]}, "expected names of items that each rank has its own of"),
        ({"version": 3, "own": ["z"]}, "expected names of items that each rank has its own of"),
        ({"version": 3, "own": ["w"]}, '"w": the checkpoint names it, but no shard holds it'),
        (
            {"version": 3, "own": ["c"], "values": {"c": ["t"]}},
            '"c": its value names the tensor "c/~v~0", but no shard',
        ),
        ({"values": {"c": ["t"]}}, '"c": its value names the tensor "c/~v", but no shard holds it'),
        ({"values": {"c": ["deque", 10**30]}}, "."),
        ({"values": {"c": ["namedtuple", "a:b", "a,b", 1]}}, "."),
        ({"values": {"c": nested(300)}}, "its DCP items: nested too deep"),
        ({"tied": [["z", [0], ["w"]]]}, "expected a tied chunk"),
        ({"tied": [[["z"], [0], "w"]]}, "expected a tied chunk"),
        ({"tied": [["z", [0], "w", 1]]}, "its DCP items"),
        ({"tied": [["w", [0], "w"]] * 200_000}, r'"w": the checkpoint holds its chunk at \(0,\)'),
        ({"tied": [["z", [0], "w"]] * 200_000}, r'"z": the checkpoint holds its chunk at \(0,\)'),
        ({"tied": [["z", [1], "w"]]}, r'"z": tied to "w" at \(1,\), but no shard holds that'),
    ],
)
def test_items_of_the_wrong_form_are_corrupt(read: Read, members: Any, message: str) -> None:
    with pytest.raises(cairn.Corrupt, match=message):
        read(**members)


def test_items_of_the_right_form_are_read(read: Read) -> None:
    read()
    read(tied=[[f"z{i}", [0], "w"] for i in range(1000)])
