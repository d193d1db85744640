"""An optimizer unlike the checkpoint's: refused before a byte is written, or matched by names; and the dtypes of state."""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import cairn
import pytest
import torch
from cairn._tree import plan_restore
from cairn._tree.optimizers import Known, fit_state, load_checked
from torch import nn
from trees import describe, empty, in_file, restore, same, save

Make = Callable[..., cairn.Checkpointer]
optim = torch.optim
ALL: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "AdamW amsgrad": lambda p: optim.AdamW(p, amsgrad=True),
    "Adamax": optim.Adamax,
    "ASGD": optim.ASGD,
    "LBFGS": optim.LBFGS,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": lambda p: optim.RMSprop(p),
    "RMSprop centered": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": optim.Rprop,
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SparseAdam": lambda p: optim.SparseAdam([*p]),
    **({"Muon": lambda p: optim.Muon([one for one in p if one.ndim == 2])} if hasattr(optim, "Muon") else {}),
}


class Master(optim.Optimizer):
    """bf16 parameters with moments and a copy in fp32, a quantised one, and what is flat."""

    def __init__(self, parameters: Any, flat: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.flat = flat

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if (grad := parameter.grad) is not None:
                state = self.state[parameter]
                if not state:
                    state |= {
                        "master": parameter.detach().float().clone(),
                        "m": torch.zeros_like(parameter, dtype=torch.float32),
                    }
                    state["q"] = torch.zeros(parameter.shape, dtype=torch.uint8)
                    state["history"] = [torch.ones(3), {"flat": grad.float().flatten()}]
                    if self.flat:
                        state["m"] = state["m"].flatten()
                state["m"] += grad.float().reshape(state["m"].shape) / 3
                state["q"] += 3
                parameter.copy_(state["master"].sub_(0.1 * state["m"].view_as(parameter)))


class Stateless(optim.AdamW):
    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)


def network(size: int = 3, layers: str = "ab", dtype: Any = None) -> nn.Module:
    torch.manual_seed(size)
    return nn.ModuleDict({name: nn.Linear(size, size, dtype=dtype) for name in layers})


def step(model: nn.Module, optimizer: optim.Optimizer, times: int = 1) -> None:
    def closure() -> torch.Tensor:
        total = torch.zeros(())
        for i, parameter in enumerate(model.parameters(), 1):
            if parameter.requires_grad:
                grad = torch.full_like(parameter, 0.1 * i)
                parameter.grad = grad.to_sparse() if isinstance(optimizer, optim.SparseAdam) else grad
                total = total + parameter.detach().float().sum()
        return total

    for _ in range(times):
        closure()
        optimizer.step(*[closure] * isinstance(optimizer, optim.LBFGS))


def trained(make: Callable[[Any], Any], size: int = 3, named: bool = False, layers: str = "ab") -> tuple[Any, Any]:
    model = network(size, layers)
    optimizer = make(model.named_parameters() if named else model.parameters())
    step(model, optimizer, 2)
    return model, optimizer


def older(saved: Any, *lacks: str) -> Any:
    """As an older Cairn, which did not keep these beside the tree, has saved it."""
    text = json.loads(saved[0])
    return json.dumps({key: value for key, value in text.items() if key not in lacks}), saved[1]


def nameless(saved: Any) -> Any:
    """Without the class too."""
    return older(saved, "optimizers", "parameters")


def refused(saved: Any, tree: Any, partial: bool = False) -> str:
    text, tensors = saved
    stored = {name: in_file(tensor) for name, tensor in tensors.items()}
    with pytest.raises(cairn.InvalidArgument) as caught:
        plan_restore(text, stored, tree, describe, empty, partial=partial)
    return str(caught.value)


def in_part(saved: Any, tree: Any) -> list[str]:
    """Restores with strict=False, and returns what is said of it."""
    text, tensors = saved
    stored = {name: in_file(tensor) for name, tensor in tensors.items()}
    plan = plan_restore(text, stored, tree, describe, empty, partial=True)
    with torch.no_grad():
        for name, target in plan.tensors.items():
            target.copy_(tensors[name])
    plan.finish()
    return plan.remarks


# What is right


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


# Names


def of_names(model: nn.Module, layers: str, **options: Any) -> optim.Optimizer:
    """A group for each word, of the layers that it names, in that order."""
    groups = [
        {"params": [pair for one in word for pair in model[one].named_parameters(prefix=one)], "lr": 0.1 * i, **options}
        for i, word in enumerate(layers.split(), 1)
    ]
    return optim.AdamW(groups)  # type: ignore[arg-type]


def without_names(model: nn.Module, layers: str, **options: Any) -> optim.Optimizer:
    groups = of_names(model, layers, **options).param_groups
    return optim.AdamW([{key: value for key, value in group.items() if key != "param_names"} for group in groups])


def moments(optimizer: Any, module: Any = None) -> dict[str, float]:
    """The first moment of each parameter that has one, by its name in the module, or in param_names."""
    named = [
        zip(group["param_names"], group["params"], strict=True) for group in optimizer.param_groups if module is None
    ]
    pairs = module.named_parameters() if module is not None else chain(*named)
    return {name: float(optimizer.state[one]["exp_avg"].flatten()[0]) for name, one in pairs if one in optimizer.state}


def rates(optimizer: Any) -> dict[str, float]:
    return {group["param_names"][0][0]: group["lr"] for group in optimizer.param_groups}


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize(("saved_as", "given_as"), [("ab", "ba"), ("a b", "b a"), ("ab c", "c ba"), ("a bc", "cb a")])
def test_state_and_options_follow_the_names(saved_as: str, given_as: str, stepped: bool) -> None:
    model, other = network(layers="abc"), network(layers="cab")
    optimizer, target = of_names(model, saved_as), of_names(other, given_as)
    step(model, optimizer)
    if stepped:
        step(other, target)
    names = [group["param_names"] for group in target.param_groups]

    restore(save({"o": optimizer}), {"o": target})

    assert moments(target) == moments(optimizer) and len(moments(target)) >= 4
    assert rates(target) == {word[0]: rate for word in given_as.split() for rate in [group_rate(optimizer, word[0])]}
    assert [group["param_names"] for group in target.param_groups] == names
    assert target.state_dict()["param_groups"][0]["params"][0] == 0


def group_rate(optimizer: Any, layer: str) -> float:
    return next(group["lr"] for group in optimizer.param_groups if any(n[0] == layer for n in group["param_names"]))


def test_a_compiled_modules_names_are_the_plain_ones() -> None:
    model, other = network(), network()
    optimizer = of_names(model, "ab")
    step(model, optimizer)
    target = optim.AdamW([(f"_orig_mod.{name}", one) for name, one in reversed([*other.named_parameters()])])
    restore(save(optimizer), target)
    assert moments(target) == {f"_orig_mod.{name}": value for name, value in moments(optimizer).items()}


@pytest.mark.parametrize(("saves", "takes"), [
    (without_names, without_names), (of_names, without_names), (without_names, of_names),
], ids=["neither", "saved", "given"])  # fmt: skip
def test_state_and_options_follow_the_names_of_the_module_in_the_tree(saves: Any, takes: Any) -> None:
    for saved_as, given_as in (("ab", "ba"), ("a b", "b a"), ("ab c", "c ba")):
        model, other = network(layers="abc"), network(layers="cab")
        optimizer, target = saves(model, saved_as), takes(other, given_as)
        step(model, optimizer)
        keys = [{*group} for group in target.param_groups]

        restore(save({"o": [optimizer], "m": nn.ModuleDict({"_orig_mod": model})}), {"o": [target], "m": other})

        assert moments(target, other) == moments(optimizer, model)
        rates_of = {one: group["lr"] for group in optimizer.param_groups for one in group["params"]}
        for group in target.param_groups:
            assert {rates_of[model.get_parameter(n)] for n in names_in(other, group)} == {group["lr"]}
        assert [{*group} for group in target.param_groups] == keys


def names_in(module: nn.Module, group: Any) -> list[str]:
    parameters = {*group["params"]}
    return [name for name, one in module.named_parameters() if one in parameters]


def test_of_several_modules_each_optimizer_has_its_own() -> None:
    def gan() -> dict[str, Any]:
        g, d = network(), network()
        tree = {"og": optim.AdamW(g.parameters()), "od": optim.AdamW(d.parameters()), "g": g, "d": d}
        step(g, tree["og"])
        return {**tree, "ema": copy.deepcopy(g)}

    saved, target = save(gan()), gan()
    restore(saved, target)
    assert moments(target["og"], target["g"]) and not moments(target["og"], target["ema"])
    found = refused(saved, {**target, "og": optim.AdamW(target["d"].parameters())})
    assert "og: only the checkpoint has the parameters g/a.weight" in found
    assert "og: only the tree has the parameters d/a.weight" in found


def test_the_names_are_those_of_the_moment() -> None:
    def names(tree: Any) -> Any:
        return json.loads(save(tree)[0]).get("parameters")

    model = network()
    optimizer = optim.AdamW([model["a"].weight, model["b"].bias])
    tree = {"o": optimizer, "within": model["b"], "m": model}
    assert names(tree) == names(tree) == {"o": ["m/a.weight", "m/b.bias"]}
    model["a"], model["b"] = model["b"], model["a"]
    assert names(tree) == {"o": ["m/b.weight", "m/a.bias"]}
    model["c"] = nn.ModuleDict({"a/~": model["a"]})  # Tied, and with a name that the tree has otherwise.
    del model["a"]
    assert names(tree) == {"o": ["m/b.weight", "m/c.a~1~0.bias"]}
    model["b"].weight = nn.Parameter(model["b"].weight.detach().clone())
    assert names(tree) is None
    optimizer.param_groups[0]["params"][0] = model["b"].weight
    assert names(tree) == {"o": ["m/b.weight", "m/c.a~1~0.bias"]}
    assert names({"o": optimizer}) is None


class Sheathed(nn.Module):
    """Its state dict does not show that there is a module between."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.sheath = module

    def state_dict(self, *_: Any, **__: Any) -> Any:
        return self.sheath.state_dict()

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> Any:
        return self.sheath.load_state_dict(state)


def test_state_goes_by_number_where_names_cannot_be_compared() -> None:
    model, optimizer = trained(optim.AdamW)
    saved = save({"m": model, "o": optimizer})
    other = network()
    for of, tree in (
        (saved, {"m": Sheathed(other)}),
        (save({"m": Sheathed(model), "o": optimizer}), {"m": other}),
        (older(saved, "parameters"), {"m": other}),
        (save({"m": model.state_dict(), "o": optimizer}), {"m": other}),
        (saved, {"m": other.state_dict()}),
    ):
        restore(of, {**tree, "o": (target := optim.AdamW(other.parameters()))})
        assert moments(target, other) == moments(optimizer, model)
    in_part(saved, {"net": other, "o": (target := optim.AdamW(other.parameters()))})
    assert moments(target, other) == moments(optimizer, model)


@pytest.mark.parametrize("names", ['["m"]', '{"o":"m"}', '{"o":[1]}'])
def test_damaged_names_are_corrupt(names: str) -> None:
    text = f'{{"version":1,"tree":{{}},"parameters":{names}}}'
    with pytest.raises(cairn.Corrupt, match="expected the names of each optimizer's parameters"):
        plan_restore(text, {}, {}, describe, empty)


@pytest.mark.parametrize(("of", "at"), [(of_names, ""), (without_names, "m/")])
def test_other_names_are_refused_and_matched_in_part(
    make: Make, caplog: pytest.LogCaptureFixture, of: Any, at: str
) -> None:
    model, other = network(layers="ab"), network(layers="bc")
    optimizer, target = of(model, "ab"), of(other, "cb")
    step(model, optimizer)
    with make() as checkpointer, caplog.at_level(logging.WARNING, "cairn"):
        checkpointer.save(1, {"m": model, "o": optimizer}).wait()
        before = other["b"].weight.detach().clone()
        with pytest.raises(cairn.InvalidArgument) as caught:
            checkpointer.restore({"m": other, "o": target})
        assert torch.equal(other["b"].weight, before) and not target.state
        assert f"o: only the checkpoint has the parameters {at}a.weight, {at}a.bias, o: only" in str(caught.value)
        assert f"o: only the tree has the parameters {at}c.weight" in str(caught.value)
        checkpointer.restore({"m": other, "o": target}, strict=False)
    assert moments(target, other) == {n: value for n, value in moments(optimizer, model).items() if n[0] == "b"}
    assert torch.equal(other["b"].weight, model["b"].weight)
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert f"o: only the tree has the parameters {at}c.weight, {at}c.bias, whose state is new" in said
    step(other, target)


def test_other_groups_are_refused_and_matched_in_part() -> None:
    model, other = network(layers="abc"), network(layers="abc")
    optimizer, split, joined = of_names(model, "ab c"), of_names(other, "a b c"), of_names(other, "abc")
    step(model, optimizer)
    saved = save({"o": optimizer})
    for target in (split, joined):
        assert "the checkpoint has 6 parameters in 2 groups (4, 2), grouped otherwise" in refused(saved, {"o": target})
        assert "grouped otherwise" in " ".join(in_part(saved, {"o": target}))
        assert moments(target) == moments(optimizer)
    assert rates(split) == {"a": 0.1, "b": 0.1, "c": 0.2} and rates(joined) == {"a": 0.1}
    split.param_groups[0]["lr"] = 5
    assert split.param_groups[1]["lr"] == 0.1


def test_without_names_a_changed_optimizer_is_refused_in_part_too() -> None:
    model, optimizer = trained(optim.AdamW)
    saved = save({"o": optimizer})
    for target in (optim.AdamW(network(layers="a").parameters()), of_names(network(layers="a"), "a")):
        found = refused(saved, {"o": target}, partial=True)
        assert "strict=False goes by the names of parameters" in found and found.endswith("leave it out")
    twice = optim.AdamW([("a", one) for one in network().parameters()])
    step(model, twice)
    other = optim.AdamW([("b", one) for one in network().parameters()])
    assert "other names of parameters than the checkpoint's, of which some are the same" in refused(save(twice), other)
    # As many of the same shapes go by number, as torch has it.
    assert in_part(saved, {"o": optim.AdamW(network().parameters())}) == []


@pytest.mark.parametrize("partial", [False, True])
def test_numbers_of_a_state_dict_that_mean_other_parameters(partial: bool) -> None:
    model = network()
    step(model, optimizer := of_names(model, "ab"))
    saved = save({"o": optimizer.state_dict()})
    for layers, said in {
        "ba": "o/param_groups: parameter 0 is b.weight in the tree and a.weight in the checkpoint: give the optimizer it",
        "a c": "o/param_groups: the tree has 4 parameters in 2 groups (2, 2), the checkpoint has 4 parameters in 1 group",
        "a": "o/param_groups: the tree has 2 parameters in 1 group, the checkpoint has 4 parameters in 1 group",
    }.items():
        other = of_names(network(layers=layers.replace(" ", "")), layers)
        assert said in refused(saved, {"o": other.state_dict()}, partial)
    in_part(saved, {"o": of_names(network(), "ab").state_dict()})


def load(target: Any, state: Any, own: Known | None = None, saved: Known | None = None) -> None:
    """As plugs do."""
    fit = fit_state(target, state, "states/0", own or Known(), saved or Known(), False, "last.ckpt", "begin anew")
    load_checked(target, state, fit)


def test_a_state_dict_that_a_plugin_loads(caplog: pytest.LogCaptureFixture) -> None:
    step(model := network(dtype=torch.bfloat16), optimizer := Master(model.parameters()))
    target = Master(network(dtype=torch.bfloat16).parameters())
    load(target, optimizer.state_dict())
    assert same(target.state_dict(), optimizer.state_dict())
    step(model := network(), optimizer := of_names(model, "ab"))
    target = of_names(network(), "ba")
    load(target, optimizer.state_dict())
    assert moments(target) == moments(optimizer)
    state = trained(optim.AdamW, size=8)[1].state_dict()
    with pytest.raises(
        cairn.InvalidArgument,
        match=r"last.ckpt: .*states/0/state/0/exp_avg: the tree's parameter has the shape \[3, 3\].*; or begin anew",
    ):
        load(target, state)
    with pytest.raises(cairn.InvalidArgument, match="the tree has AdamW, the checkpoint has the state of Own"):
        load(optim.AdamW(network(8).parameters()), state, saved=Known("Own"))
    del state["state"][1]
    load(optim.AdamW(network(8).parameters()), state)
    assert "states/0: the checkpoint has no state of parameters [1]" in caplog.text


def test_a_plugins_state_follows_the_names_in_the_module_if_these_are_the_same() -> None:
    step(model := network(), optimizer := optim.AdamW(model.parameters()))
    known = Known.of(optimizer, model)
    assert known.kind == "AdamW" and known.names == [[name for name, _ in model.named_parameters()]]
    turned = network(layers="ba")
    load(target := optim.AdamW(turned.parameters()), optimizer.state_dict(), Known.of(target, turned), known)
    for name, parameter in turned.named_parameters():
        assert same(target.state[parameter], optimizer.state[model.get_parameter(name)])
    # A module whose names have changed: as torch does.
    other = nn.ModuleDict({"c": model["a"], "b": model["b"]})
    load(target := optim.AdamW(other.parameters()), optimizer.state_dict(), Known.of(target, other), known)
    assert same(target.state_dict(), optimizer.state_dict())
