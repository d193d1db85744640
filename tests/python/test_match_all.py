"""A dict of tensors is matched with the checkpoint in one call of C++: with the same result as one by one in Python."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import cairn
import numpy
import pytest
import torch
from cairn._tree import plan_restore
from cairn._tree import tensors as tree_tensors
from trees import same

Make = Callable[..., cairn.Checkpointer]


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_tensors.TargetCollector, "match_all", lambda *_: None)


def tensor(choice: random.Random) -> Any:
    shape = [choice.randrange(3) for _ in range(choice.randrange(3))]
    kind = choice.choice(["f32", "f32", "i64", "parameter", "transposed", "numpy", "None", "plain"])
    match kind:
        case "f32":
            return torch.rand(shape)
        case "i64":
            return torch.randint(9, shape)
        case "parameter":
            return torch.nn.Parameter(torch.rand(shape))
        case "transposed":
            return torch.rand(2, 3).t()
        case "numpy":
            return numpy.ones(shape, numpy.float32)
        case "None":
            return None
    return choice.random()


def tree(choice: random.Random, names: list[str]) -> dict[Any, Any]:
    made = OrderedDict() if choice.random() < 0.3 else {}
    made.update((name, tensor(choice)) for name in choice.sample(names, len(names)))
    return made


def changed(given: dict[Any, Any], choice: random.Random) -> dict[Any, Any]:
    """The same tree with other contents and, at times, other tensors, names, kinds or order."""
    items = [
        (key, value.detach().clone().zero_() if isinstance(value, torch.Tensor) else value)
        for key, value in given.items()
    ]
    for _ in range(choice.randrange(2)):
        at = choice.randrange(len(items))
        items[at] = (choice.choice([items[at][0], "other"]), tensor(choice))
    if choice.random() < 0.5:
        choice.shuffle(items)
    return type(given)(items)


def outcome(checkpointer: cairn.Checkpointer, target: dict[Any, Any]) -> Any:
    try:
        return checkpointer.restore({"model": target})
    except cairn.Error as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("seed", range(40))
def test_it_restores_what_the_walk_in_python_restores(seed: int, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random.Random(seed)
    torch.manual_seed(seed)
    given = tree(choice, ["a", "b.weight", "c", "with/slash", "7", "f"][: choice.randrange(1, 7)])
    checkpointer = make()
    checkpointer.save(1, {"model": given}).wait()
    state = choice.getstate()
    fast = outcome(checkpointer, changed(given, choice))

    choice.setstate(state)
    one_by_one(monkeypatch)
    slow = outcome(checkpointer, changed(given, choice))

    assert fast == slow if isinstance(slow, str) else same(fast, slow)


@pytest.mark.parametrize("in_one_call", [True, False])
def test_a_key_that_a_text_has_twice_is_corrupt(make: Make, in_one_call: bool) -> None:
    tree: dict[str, Any] = {"a": torch.zeros(1), "b": torch.zeros(1)}
    checkpointer = make()
    checkpointer.save(1, tree).wait()
    saved = tree_tensors.StoredTensors(checkpointer._engine.reading.inspect_all(1)["tensors"])
    match_all = tree_tensors.TargetCollector(saved).match_all if in_one_call else None
    text = '{"version":1,"tree":["dict","a",["t"],"a",["t"]]}'

    with pytest.raises(cairn.Corrupt, match="expected one value for each key"):
        plan_restore(text, saved, tree, tree_tensors.stored, tree_tensors.empty, match_all=match_all)


def test_one_call_takes_all_tensors_of_a_dict(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"model": {f"layer.{i}": torch.full((3,), float(i)) for i in range(100)}}
    checkpointer = make()
    checkpointer.save(1, given).wait()
    target = {"model": {name: torch.zeros(3) for name in given["model"]}}
    monkeypatch.setattr(tree_tensors, "target_view", lambda name, _: pytest.fail(f"{name} went through Python"))

    checkpointer.restore(target)

    assert same(given, target)


def test_a_tensor_whose_storage_has_shrunk_is_refused(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"a": torch.ones(1000)}).wait()
    target = torch.zeros(1000)
    target.untyped_storage().resize_(400)

    with pytest.raises(cairn.InvalidArgument, match="4000 bytes.*400"):
        checkpointer.restore({"a": target})
