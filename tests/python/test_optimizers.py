"""An optimizer unlike the checkpoint's: refused before a byte is written; and the dtypes of state."""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import cairn
import numpy
import pytest
import torch
from cairn._tree import plan_restore
from optimizer_jobs import ALL, Master, Stateless, in_part, nameless, network, refused, step, trained
from torch import nn
from trees import describe, empty, in_file, restore, same, save

Make = Callable[..., cairn.Checkpointer]
optim = torch.optim


@pytest.mark.parametrize("name", ALL)
def test_each_class_of_torchs_restores_its_own(name: str) -> None:
    _, optimizer = trained(ALL[name])
    other = network(3, dtype=torch.float32)
    for stepped in (False, True):
        fresh = ALL[name](other.parameters())
        step(other, fresh, 3 * stepped)
        for saved in (save({"o": optimizer}), nameless(save({"o": optimizer}))):
            restore(saved, {"o": fresh})
            assert same(fresh.state_dict(), optimizer.state_dict())
    step(other, fresh)


def test_classes_that_are_not_torchs_restore_their_own() -> None:
    for make in (Master, lambda p: Master(p, flat=True), Stateless):
        _, optimizer = trained(make)
        fresh = make(network(4).parameters())  # Other shapes: who knows what they mean.
        if isinstance(fresh, Master):
            restore(save(optimizer), fresh)
            assert same(fresh.state_dict(), optimizer.state_dict())
        step(model := network(), fresh := make(model.parameters()))
        restore(save(optimizer), fresh)
        assert same(fresh.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("stepped", [False, True])
def test_the_saved_dtypes_are_kept(stepped: bool) -> None:
    model = network(8, dtype=torch.bfloat16)
    seen: list[str] = []
    for make in (Master, lambda p: Master(p, flat=True)):
        optimizer = make(model.parameters())
        step(model, optimizer, 3)
        saved = save({"o": optimizer})
        other = network(8, dtype=torch.bfloat16)
        target = make(other.parameters())
        target.register_load_state_dict_pre_hook(lambda *_: seen.append("before"))
        target.register_load_state_dict_post_hook(lambda o: seen.append(str(next(iter(o.state.values()))["m"].dtype)))
        if stepped:
            step(other, target)
            target.load_state_dict(target.state_dict())  # torch casts all of it.
        restore(saved, {"o": target})
        assert same(target.state_dict(), optimizer.state_dict())
        assert seen[-2:] == ["before", "torch.float32"]
        step(model, optimizer)
        step(other, target)
        assert same(target.state_dict(), optimizer.state_dict())


def test_torchs_classes_get_state_of_their_parameters_dtype(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Which they need to step: a cast as any other."""
    caplog.set_level(logging.INFO, "cairn")

    def job(name: str, dtype: torch.dtype, steps: int) -> tuple[Any, Any]:
        optimizer = ALL[name]((model := network(dtype=dtype)).parameters())
        step(model, optimizer, steps)
        return model, optimizer

    checkpointer = make(keep_last=0)
    names = ["AdamW amsgrad", "NAdam", "SGD momentum", "Rprop"]
    for i, name in enumerate(names):
        checkpointer.save(2 * i, {"o": job(name, torch.bfloat16, 2)[1]}).result()
        checkpointer.save(2 * i + 1, {"o": job(name, torch.float32, 2)[1]}).result()
        for steps in (0, 1):
            model, target = job(name, torch.float32, steps)
            checkpointer.restore({"o": target}, 2 * i)
            assert all(one.dtype == torch.float32 for of in target.state.values() for one in of.values())
            step(model, target)
            model, target = job(name, torch.bfloat16, steps)
            before = target.state_dict()
            with pytest.raises(cairn.InvalidArgument) as caught:
                checkpointer.restore({"o": target}, 2 * i + 1)
            said = str(caught.value)
            assert "o/state/0/" in said and "the optimizer keeps BF16, the checkpoint has F32 [3, 3]" in said, said
            assert 'cast="allow"' in said and "strict=False" not in said and same(target.state_dict(), before)
            checkpointer.restore({"o": target}, 2 * i + 1, cast="allow")
            step(model, target)
    for lost in ("none", "12"):
        assert f"AdamW: converted 12 tensors of its state to the parameters' dtype, {lost} w" in caplog.text


def test_what_a_hook_changes_is_what_is_loaded() -> None:
    _, optimizer = trained(optim.Adam)
    target = optim.Adam(network().parameters())
    target.register_load_state_dict_pre_hook(lambda _, state: {**state, "state": {}})
    restore(save(optimizer), target)
    assert target.state_dict()["state"] == {}


class Mode(NamedTuple):
    name: str
    of: Any


@pytest.mark.parametrize("stepped", [False, True])
def test_state_that_is_no_tensor_comes_back_as_it_was(make: Make, stepped: bool) -> None:
    """torch takes all it can iterate over for a list: of text it makes a generator's name, of an array a TypeError."""
    kept = {
        "text": "cosine", "bytes": b"x", "array": numpy.arange(3.0), "range": range(3), "set": {"a", 1},
        "deque": collections.deque([1, "b"], maxlen=3), "ordered": collections.OrderedDict(a="c"),
        "within": [{"d": ("e", 1)}], "size": torch.Size([2]),
    }  # fmt: skip
    model, optimizer = trained(optim.AdamW)
    optimizer.state[model["a"].weight].update(kept, mode=Mode("f", torch.ones(3, 3)))
    target = optim.AdamW((other := network()).parameters())
    step(other, target, stepped)
    checkpointer = make()

    checkpointer.save(1, {"o": optimizer}).wait()
    checkpointer.restore({"o": target})

    got = target.state[other["a"].weight]
    assert [key for key, value in kept.items() if not same(got[key], value)] == []
    assert got["mode"][0] == "f" and torch.equal(got["mode"][1], torch.ones(3, 3))


# What is refused


def groups_of(*layers: str) -> Callable[[nn.Module], optim.Optimizer]:
    return lambda model: optim.AdamW([{"params": [*model[one].parameters()]} for one in layers])


@pytest.mark.parametrize(("make", "message"), [
    (groups_of("a"), "o: only the checkpoint has the parameters m/b.weight, m/b.bias"),
    (groups_of("a", "b"), r"o: the tree has 4 parameters in 2 groups \(2, 2\), the checkpoint has 4 parameters in 1"),
    (lambda m: optim.SGD(m.parameters(), momentum=0.9), "o: the tree has SGD, the checkpoint has the state of AdamW"),
    (lambda m: Stateless(m.parameters()), None),
    (lambda m: optim.AdamW(m.parameters(), amsgrad=True), "o/param_groups/0/amsgrad: the tree has True, the checkpoint ha"),
], ids=["fewer", "groups", "class", "subclass", "amsgrad"])  # fmt: skip
def test_before_a_byte_is_written(make: Any, message: str | None) -> None:
    model, optimizer = trained(optim.AdamW)
    saved = save({"m": model, "o": optimizer})
    other = network(3)
    if message is None:
        restore(saved, {"m": other, "o": make(other)})
        return
    found = refused(saved, {"m": other, "o": make(other)})
    assert re.search(message, found)
    assert "leave o out of the tree, or restore(..., strict=False)" in found


ALIKE = [
    {"Adam", "RAdam", "SparseAdam"},
    {"AdamW", "RAdam", "SparseAdam"},
]  # In all that a checkpoint without the class's name says.


@pytest.mark.parametrize("name", ALL)
def test_another_class(name: str) -> None:
    _, optimizer = trained(ALL[name])
    saved = save({"o": optimizer})
    for theirs, make in ALL.items():
        if theirs.split()[0] == name.split()[0]:
            continue
        of = theirs.split()[0]
        assert f"the tree has {of}, the checkpoint has" in refused(saved, {"o": make(network().parameters())})
        if not any({of, name.split()[0]} <= alike for alike in ALIKE) and "Muon" not in (theirs, name):
            refused(nameless(saved), {"o": make(network().parameters())})


def test_a_state_dict_of_another_class() -> None:
    """Nobody knows the class. What is alike but for its options goes on as another class."""
    dicts = {kind: trained(kind)[1].state_dict() for kind in (optim.Adam, optim.AdamW, optim.RAdam)}
    for kind, saved in dicts.items():
        for other, into in dicts.items():
            if other is not kind:
                said = refused(save({"o": saved}), {"o": into})
                assert re.search("o/param_groups/0/(amsgrad|decoupled_weight_decay): the tree has ", said)
                assert "the state of another optimizer class" in said


def test_state_of_another_shape() -> None:
    for name, make in ALL.items():
        if name in ("Adafactor", "LBFGS", "SGD", "Muon"):
            continue
        _, optimizer = trained(make, size=8)
        fresh = make(network(4).parameters())
        found = refused(save({"o": optimizer}), {"o": fresh})
        assert re.search(
            r"o/state/0/\w+: the tree's parameter has the shape \[4, 4\], the checkpoint has \[8, 8\]", found
        )
        step(model := network(4), stepped := make(model.parameters()))
        assert found.splitlines()[1] == refused(save({"o": optimizer}), {"o": stepped}).splitlines()[1]
    _, optimizer = trained(Master, size=8)
    step(model := network(4), stepped := Master(model.parameters()))
    assert "o/state/0/m: the tree's parameter has the shape [4, 4]" in refused(save({"o": optimizer}), {"o": stepped})


def test_state_that_is_missing() -> None:
    make = ALL["SGD momentum"]
    _, optimizer = trained(make)
    some, part, none = optimizer.state_dict(), trained(optim.AdamW)[1].state_dict(), optimizer.state_dict()
    some["state"][1] = {}
    del part["state"][2]["exp_avg_sq"]
    none["state"][1] = {"momentum_buffer": None}
    model, stepped = trained(make)

    assert "o: the tree has state of parameters [1], the checkpoint has only that of others" in refused(
        save({"o": some}), {"o": stepped}
    )
    assert "o/state/2/exp_avg_sq: the checkpoint does not have it" in refused(
        save({"o": part}), {"o": optim.AdamW(model.parameters())}
    )
    assert "o/state/1/momentum_buffer: the checkpoint does" in refused(
        save({"o": none}), {"o": make(model.parameters())}
    )
    _, ours = trained(Master)
    master = ours.state_dict()
    del master["state"][0]["m"]
    assert "o/state/0/m: the checkpoint does not have it" in refused(save({"o": master}), {"o": trained(Master)[1]})
    assert "o: the tree has an optimizer, the checkpoint has no state of one" in refused(
        save({"o": {"a": 1}}), {"o": ours}
    )


def test_state_that_a_frozen_parameter_never_had(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def frozen(make: Any) -> tuple[nn.Module, Any]:
        model = network()
        model["a"].requires_grad_(False)
        step(model, optimizer := make(model.parameters()))
        return model, optimizer

    _, optimizer = frozen(optim.AdamW)
    saved = save({"o": optimizer})
    with caplog.at_level(logging.WARNING, "cairn"), make() as checkpointer:
        checkpointer.save(1, {"o": optimizer}).wait()
        for again in (frozen(optim.AdamW)[1], frozen(optim.AdamW)[1]):
            checkpointer.restore({"o": again})
        assert not caplog.records
        fresh = optim.AdamW(network().parameters())
        checkpointer.restore({"o": fresh})  # It may be that its user has just unfrozen them.
        (record,) = caplog.records
        assert "o: the checkpoint has no state of parameters [0, 1], as of what was frozen" in record.getMessage()
        assert same(fresh.state_dict(), optimizer.state_dict())
    assert "the tree has state of parameters [0, 1]" in refused(saved, {"o": trained(optim.AdamW)[1]})
    # Then it is said how to go on.
    _, stepped = trained(optim.AdamW)
    before = stepped.state_dict()["state"][0]["exp_avg"].clone()
    (remark,) = in_part(saved, {"o": stepped})
    assert "the tree has state of parameters [0, 1]" in remark and "stays as it is" in remark
    after = stepped.state_dict()["state"]
    assert torch.equal(after[0]["exp_avg"], before) and torch.equal(after[2]["exp_avg"], saved[1]["o/state/2/exp_avg"])
    # torch makes no state where there is no momentum, and LBFGS keeps all of it with the first parameter.
    mixed = optim.SGD([{"params": [one], "momentum": 0.9 * (i % 2)} for i, one in enumerate(network().parameters())])
    for one in (mixed, trained(optim.LBFGS)[1]):
        plan = plan_restore(*_planned(save({"o": one}), {"o": type(one)(one.param_groups)}))
        assert not plan.remarks


def _planned(saved: Any, tree: Any) -> Any:
    return saved[0], {name: in_file(one) for name, one in saved[1].items()}, tree, describe, empty
