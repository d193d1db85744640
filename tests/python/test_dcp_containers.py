"""cairn.dcp: the dicts and lists of a state dict come back as they were, with a module's versions, or the save refuses them."""

from __future__ import annotations

import random
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from itertools import product
from typing import Any

import cairn
import numpy
import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
from cairn._dcp import direct

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
Make = Callable[..., cairn.Checkpointer]
ONE = torch.ones(1)


class OwnDict(dict[Any, Any]):
    pass


class OwnList(list[Any]):
    pass


class Attributes(dict[Any, Any]):
    """A dict that has its items as attributes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.__dict__ = self


MAPPINGS: list[Any] = [
    dict, UserDict, ChainMap, OrderedDict, types.MappingProxyType, OwnDict, Attributes, lambda of: defaultdict(int, of),
]  # fmt: skip
SEQUENCES: list[Any] = [list, tuple, deque, OwnList, UserList]
LEAVES: list[Any] = [lambda: 1, lambda: None, lambda: "s", lambda: torch.ones(2), Counter, set]


def save(checkpointer: cairn.Checkpointer, step: int, state: Any, how: str = "save", **more: Any) -> None:
    writer = cairn.dcp.StorageWriter(checkpointer, step)
    response = getattr(cairn.dcp, how)(state, storage_writer=writer, **more)
    if how == "async_save":
        getattr(response, "upload_completion", response).result(60)


def load(checkpointer: cairn.Checkpointer, step: int, state: Any, **more: Any) -> Any:
    cairn.dcp.load(state, storage_reader=cairn.dcp.StorageReader(checkpointer, step), **more)
    return state


def some_tree(chance: random.Random, depth: int = 3) -> Any:
    if not depth or chance.random() < 0.3:
        return chance.choice(LEAVES + MAPPINGS[:4] + SEQUENCES[:3])()
    children = [some_tree(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if chance.random() < 0.5:
        return chance.choice(SEQUENCES)(children)
    keys = chance.sample(["a", "b", 0, True, None, "0", "a.b"], len(children))
    return chance.choice(MAPPINGS)(dict(zip(keys, children, strict=True)))


def other(tree: Any) -> Any:
    """The same tree with other contents."""
    if isinstance(tree, torch.Tensor):
        return torch.zeros_like(tree)
    if isinstance(tree, (dict, UserDict, ChainMap)):
        made = {key: other(child) for key, child in tree.items()}
        return defaultdict(int, made) if isinstance(tree, defaultdict) else type(tree)(made)  # type: ignore[call-overload]
    if isinstance(tree, (list, tuple, deque)):
        return type(tree)(map(other, tree))
    return {int: 0, str: ""}.get(type(tree), tree)


def equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (dict, UserDict, ChainMap)):
        return [*map(repr, a)] == [*map(repr, b)] and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def test_what_the_planner_accepts_comes_back_exactly(make: Make) -> None:
    chance, state = random.Random(44), {}
    for number in range(400):
        tree, planner = some_tree(chance), cairn.dcp.SavePlanner()
        try:
            planner.set_up_planner({"x": tree})
            planner.create_local_plan()
        except cairn.InvalidArgument:
            continue
        state[str(number)] = tree
    checkpointer = make()
    save(checkpointer, 1, state)

    got = load(checkpointer, 1, other(state))

    assert len(state) > 100
    assert [key for key in state if not equal(got[key], state[key])] == []


class Proxy:
    @property
    def __class__(self) -> Any:
        raise ReferenceError("it is gone")


def with_attribute() -> OwnDict:
    held = OwnDict(a=1)
    held.lr = 3  # type: ignore[attr-defined]
    return held


def with_metadata(version: Any) -> Any:
    held = OrderedDict(a=1)
    held._metadata = {"": {"version": version}}  # type: ignore[attr-defined]
    return held


ITSELF: dict[str, Any] = {}
ITSELF["me"] = ITSELF
REFUSED: dict[str, tuple[Any, str]] = {
    "fixed": (types.MappingProxyType({"a": 1}), "'x': a value of type mappingproxy cannot be loaded into"),
    "a list of a class": ([OwnList([ONE])], r"'x\.0': .*OwnList would come back as another type"),
    "attributes": ([{"y": with_attribute()}], r"'x\.0\.y': .*OwnDict has attributes that would be lost: lr"),
    "odd versions": (with_metadata({1}), "'x': .*OrderedDict has a _metadata that JSON cannot keep"),
    "one key as text": ({1: 1, "1": 2}, r"duplicated flatten key x\.1"),
    "a key that is no text": ({10**5000: 1}, "cannot flatten the state: Exceeds the limit"),
    "without a class": ([Proxy()], r"x\.0: .*Proxy cannot be kept: its __class__ raises ReferenceError"),
    "itself": (ITSELF, r"x\.me\.me\.me.* that holds itself"),
    "sparse": (torch.eye(2).to_sparse(), "x: a torch.sparse_coo tensor cannot be kept"),
    "nested": ([torch.nested.nested_tensor([ONE])], r"x\.0: a nested tensor cannot be kept"),
    "meta": (torch.empty(1, device="meta"), "x: a meta tensor cannot be kept.*to_empty"),
}


def test_what_would_not_come_back_is_refused_by_name(make: Make) -> None:
    checkpointer = make()
    for how in ("save", "async_save"):
        for value, message in REFUSED.values():
            with pytest.raises(cairn.InvalidArgument, match=message):
                save(checkpointer, 1, {"w": ONE, "x": value}, how)
    assert checkpointer.steps() == []


def test_what_cannot_be_loaded_into_is_refused_by_name_and_nothing_changes(make: Make) -> None:
    checkpointer = make()
    save(checkpointer, 1, {"m": {"a": 1, "w": ONE, "d": deque([1])}})
    for key, value, message in (
        ("m", types.MappingProxyType({"a": 0}), "'m': a value of type mappingproxy cannot be loaded into"),
        ("w", torch.nested.nested_tensor([ONE]), r"checkpoint's into: m\.w \(a nested tensor\)"),
        ("w", torch.empty(1, device="meta"), r"m\.w: a meta tensor cannot be kept.*to_empty"),
        ("w", 3, r"No tensor to load the checkpoint's into: m\.w \(int\)"),
        ("more", 3, r"Missing key in checkpoint state_dict: m\.more"),
    ):
        inner = {"a": 0, "w": torch.zeros(1), "d": deque([0])}
        state: dict[str, Any] = {"m": value} if key == "m" else {"m": {**inner, key: value}}
        with pytest.raises(cairn.InvalidArgument, match=message):
            load(checkpointer, 1, state)
        if key != "m":
            assert state["m"] == {**inner, key: state["m"][key]} and not inner["w"].any()  # type: ignore[attr-defined]


class Scaled(torch.nn.Linear):
    """Its weight was a tenth of what it is, until version 2."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, local_metadata: Any, *more: Any) -> None:
        if local_metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state, prefix, local_metadata, *more)


@pytest.mark.parametrize("how", ["save", "async_save"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_module_hears_of_which_version_its_state_is(make: Make, monkeypatch: Any, how: str, version: int) -> None:
    model = torch.nn.Sequential(Scaled(1, 1, bias=False), torch.nn.BatchNorm1d(1))
    torch.nn.init.ones_(model[0].weight)
    checkpointer = make()
    with monkeypatch.context() as patch:
        patch.setattr(Scaled, "_version", version)
        save(checkpointer, 1, {"model": model, "by": [{"dict": model.state_dict()}]}, how)
        save(checkpointer, 2, model.state_dict(), how)
    new = torch.nn.Sequential(Scaled(1, 1, bias=False), torch.nn.BatchNorm1d(1))

    weights = []
    load(checkpointer, 1, {"model": new})
    weights.append(new[0].weight.item())
    new.load_state_dict(load(checkpointer, 1, {"by": [{"dict": new.state_dict()}]})["by"][0]["dict"])
    weights.append(new[0].weight.item())
    new.load_state_dict(load(checkpointer, 2, new.state_dict()))
    weights.append(new[0].weight.item())

    made = direct.load_all(checkpointer, step=1)["by"][0]["dict"]  # As Lightning reads a sharded checkpoint whole.
    new.load_state_dict(made)
    weights.append(new[0].weight.item())
    new.load_state_dict(direct.load_all(checkpointer, step=2))
    weights.append(new[0].weight.item())

    assert weights == [10 if version == 1 else 1] * 5
    assert made._metadata["1"] == {"version": 2} and made._metadata[""] == {"version": 1}


@pytest.mark.parametrize("version", [1, 2])
def test_a_wrapper_changes_no_version(make: Make, monkeypatch: Any, version: int) -> None:
    """The names in _metadata are those of the modules, with what wraps them; the tensors' are not."""
    wrappers: dict[str, Any] = {"none": lambda of: of, "compiled": torch.compile, "checkpointed": checkpoint_wrapper}

    def state_of(model: Any, wrapper: str) -> Any:
        state = get_model_state_dict(model)
        if wrapper == "data parallel":
            names = {f"module.{name}".strip("."): of for name, of in state._metadata.items()}  # type: ignore[attr-defined]
            state._metadata = OrderedDict([("", {"version": 1}), *names.items()])  # type: ignore[attr-defined]
        return state

    checkpointer, weights = make(), {}
    for step, (saved, loaded) in enumerate(product([*wrappers, "data parallel"], repeat=2)):
        models = [
            wrappers.get(one, wrappers["none"])(torch.nn.Sequential(Scaled(1, 1), torch.nn.BatchNorm1d(1)))
            for one in (saved, loaded)
        ]
        torch.nn.init.ones_(next(models[0].parameters()))
        with monkeypatch.context() as patch:
            patch.setattr(Scaled, "_version", version)
            save(checkpointer, step, {"model": state_of(models[0], saved)})
        state = load(checkpointer, step, {"model": state_of(models[1], loaded)})["model"]
        if loaded == "data parallel":
            state._metadata = {name.removeprefix("module").strip("."): of for name, of in state._metadata.items()}
        set_model_state_dict(models[1], state)
        weights[saved, loaded] = next(models[1].parameters()).item()

    assert weights == dict.fromkeys(weights, 10 if version == 1 else 1)


def test_a_module_of_whose_state_the_version_is_not_known_is_named(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Sequential(Scaled(1, 1), torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
    checkpointer = make()
    for step, planner in ((1, None), (2, cairn.dcp.SavePlanner())):
        dcp.save({"model": model}, storage_writer=cairn.dcp.StorageWriter(checkpointer, step), planner=planner)
    response = dcp.async_save({"model": model}, storage_writer=cairn.dcp.StorageWriter(checkpointer, 3))
    getattr(response, "upload_completion", response).result(60)

    told = {}
    for step in (1, 2, 3):
        for load_with in (dcp.load, cairn.dcp.load):
            caplog.clear()
            load_with({"model": model}, storage_reader=cairn.dcp.StorageReader(checkpointer, step))
            told[step, load_with] = [one.message for one in caplog.records if "of which version" in one.message]

    assert [len(messages) for messages in told.values()] == [1, 1, 0, 0, 0, 0]
    assert all("for the present one: model.0, model.1. Save with" in messages[0] for messages in [*told.values()][:2])


def test_an_optimizers_state_that_is_no_tensor_comes_back(make: Make) -> None:
    """Of text torch makes a generator's name, of an array a TypeError; moments it casts to the parameter's dtype."""
    optimizers = []
    for text in ("cosine", "linear"):
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        optimizers.append(torch.optim.SGD([weight], momentum=0.9))
        momentum = torch.full((2,), 0.1 if text == "cosine" else 0.0)
        optimizers[-1].state[weight].update(momentum_buffer=momentum, text=text, array=numpy.array([len(text)]))
    checkpointer = make()
    save(checkpointer, 1, {"o": optimizers[0]})

    load(checkpointer, 1, {"o": optimizers[1]})

    saved, got = (next(iter(one.state.values())) for one in optimizers)
    assert torch.equal(got["momentum_buffer"], saved["momentum_buffer"])
    assert (got["text"], got["array"].tolist()) == ("cosine", [6])


class Wrapping(torch.Tensor):
    """A tensor without memory of its own, as quantised ones are."""

    inner: torch.Tensor

    @classmethod
    def of(cls, inner: torch.Tensor) -> Wrapping:
        made: Wrapping = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls.of(args[0].inner)
        assert func is torch.ops.aten.copy_.default
        args[0].inner.copy_(args[1])
        return args[0]


def test_a_target_that_wraps_another_tensor_is_filled_by_its_copy(make: Make) -> None:
    checkpointer = make()
    save(checkpointer, 1, {"w": torch.arange(4.0)})
    target = Wrapping.of(torch.zeros(4))

    load(checkpointer, 1, {"w": target})

    assert target.inner.tolist() == [0, 1, 2, 3]


def test_targets_that_are_not_dense_are_refused_by_name_and_negated_ones_keep_their_sign(make: Make) -> None:
    checkpointer = make()
    save(checkpointer, 1, {"w": torch.eye(2).half()})
    for odd in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.nested.nested_tensor([ONE])):
        with pytest.raises(cairn.InvalidArgument, match=r"No tensor to load the checkpoint's into: w \(a "):
            load(checkpointer, 1, {"w": odd})
    negated = torch._neg_view(torch.zeros(2, 2))

    load(checkpointer, 1, {"w": negated})

    assert negated.tolist() == [[1, 0], [0, 1]]
