"""Which leaves of a tree are replicated."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from typing import Any

import cairn
import numpy as np
import pytest
import torch
from cairn import _tree
from cairn._ranks import digests, replicas
from cairn._ranks.compared import Comparison
from cairn._ranks.digests import digest
from cairn._ranks.replicas import TENSOR, Rules, leaves, tree_of
from cairn._tree.tensors import TensorCollector
from flat import flatten

Pair = namedtuple("Pair", "left right")
TREE: dict[Any, Any] = {
    "model": OrderedDict(weight=torch.ones(2), bias=torch.zeros(1)),
    "a/b": {1: torch.ones(1), "1": torch.zeros(1), None: 2},
    "pair": Pair(torch.ones(1), [1, 2.5]),
    "list": [torch.ones(1), {"x": np.ones(3)}, ("y", torch.ones(1))],
    "values": {"lr": 0.1, "inf": float("inf"), "none": None, "text": '["t"]', "many": [1, 2, 3]},
    "count": Counter(a=1),
    "state": torch.nn.Linear(2, 2),
}


def arguments(tree: Any, rules: Rules, **more: Any) -> Any:
    tensors = TensorCollector()
    return Comparison("never").arguments(1, tree, _tree.flatten(tree, tensors), rules, tensors, **more)


def text_of(tree: Any) -> str:
    return flatten(tree).text


def test_leaves_have_the_trees_names() -> None:
    text = text_of(TREE)

    for found in (leaves(tree_of(text)), replicas.leaves_of(text)):
        assert [name for name, node in found if node is TENSOR] == _tree.names(text)
        values = {name: node for name, node in found if node is not TENSOR}
        assert values["values/lr"] == 0.1 and values["values/text"] == '["t"]' and values["values/none"] is None
        assert values["values/many"] == ["list", 1, 2, 3] and values["pair/1"] == ["list", 1, 2.5]
        assert values["a~1b/None"] == 2 and values["count/a"] == 1 and values["list/2/0"] == "y"


def test_a_tree_that_is_one_tensor_has_one_leaf() -> None:
    assert leaves(tree_of(text_of(torch.ones(1)))) == [("~t", TENSOR)]


@pytest.mark.parametrize(
    ("rules", "covered"),
    [
        (Rules.of("model/*"), {"model/weight", "model/bias"}),
        (Rules.of(["step", "m?del/b*"]), {"step", "model/bias"}),
        (Rules.of("m[o]del*"), {"m[o]del"}),  # Names have brackets.
        (Rules.of("*"), {"step", "model/weight", "model/bias", "models", "m[o]del"}),
        (Rules((), ("model",)), {"model/weight", "model/bias"}),
        (Rules((), ("model",), ("model/bias",)), {"model/weight"}),
        (Rules((), ("",), ("model",)), {"step", "models", "m[o]del"}),
        (Rules(("model/*", "step"), ("",), (), ("*bias",)), {"step", "model/weight", "models", "m[o]del"}),
        (Rules(), set()),
    ],
)
def test_rules(rules: Rules, covered: set[str]) -> None:
    names = ["step", "model/weight", "model/bias", "models", "m[o]del"]
    assert {name for name in names if rules.covers(name)} == covered
    assert Rules.parse(rules.text()) == rules
    assert bool(rules) == bool(covered)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version":3,"patterns":[],"under":[],"but":[]}',
        '{"version":1,"patterns":[1]}',
        '{"version":2,"patterns":[],"under":[],"but":[],"per_rank":"x"}',
        '{"version":2,"patterns":[],"under":[],"but":[],"per_rank":[1]}',
    ],
)
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(cairn.Corrupt, match="what is replicated"):
        Rules.parse(text)


def test_arguments_say_what_is_alike() -> None:
    tree = {"model": {"w": torch.ones(2), "long": "x" * 100}, "lr": 0.5, "mine": torch.ones(1)}

    values, (names, rank0_tensors, identical_values) = arguments(tree, Rules.of(["model/*", "lr"]))

    assert Rules.parse(dict(values)["replicas"]) == Rules.of(["model/*", "lr"])
    assert names == ["model/w"] and rank0_tensors == []
    assert dict(identical_values)["lr"] == "0.5" and dict(identical_values)["model/long"].startswith(
        "102 characters with CRC "
    )
    assert arguments(tree, Rules()) == ([], replicas.NOTHING)
    assert arguments(tree, Rules.of("*"), buffers=["mine"])[1][:2] == (["model/w"], ["mine"])


def test_contents_are_of_the_elements_whatever_the_layout() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    same = digest(tensor)
    assert digest(tensor.t().contiguous().t()) == same == digest(tensor.numpy())
    assert digest(tensor.t()) != same
    assert digest(torch.tensor(True)) != digest(torch.tensor(False))


def test_contents_are_copied_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(3 * 5 * 7, dtype=torch.float64).reshape(3, 5, 7)
    shapes = [tensor, tensor.transpose(0, 2), tensor[:, ::2], tensor[0, :, :1].expand(5, 9), tensor.sum()]
    whole = [digest(one) for one in shapes]
    monkeypatch.setattr(digests, "_AT_ONCE", 48)

    assert [digest(one) for one in shapes] == whole
    assert max(part.nbytes for one in shapes for part in digests._parts(one)) == 48


def test_a_pattern_that_matches_nothing_is_told_once(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = make(replicated=["step", "stepp", "model/*"])
    for step in (1, 2):
        checkpointer.save(step, {"model": {"w": torch.ones(1)}, "step": step}).wait()

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and 'replicated: "stepp" matches nothing that this process saves' in warnings[0]
