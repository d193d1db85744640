"""An optimizer's state follows its parameters' names; and what plugs load."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

import cairn
import pytest
import torch
from cairn._tree import plan_restore
from cairn._tree.optimizer_loads import Known, fit_state, load_checked
from optimizer_jobs import Master, in_part, network, older, refused, step, trained
from torch import nn
from trees import describe, empty, restore, same, save

Make = Callable[..., cairn.Checkpointer]
optim = torch.optim


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


def test_two_models_with_the_same_names_are_not_mixed_up() -> None:
    def job() -> dict[str, Any]:
        both = {"generator": network(), "critic": network()}
        made = {f"of {key}": optim.AdamW(model.named_parameters()) for key, model in both.items()}
        for model, optimizer in zip(both.values(), made.values(), strict=True):
            step(model, optimizer)
        return both | made

    saved, target = save(job()), job()
    restore(saved, target)
    swapped = target | {"of generator": target["of critic"], "of critic": target["of generator"]}
    said = refused(saved, swapped)
    assert "of generator: only the checkpoint has the parameters generator/a.weight" in said
    assert "of critic: only the tree has the parameters generator/a.weight" in said


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
    assert names(tree) == {"o": ["", "m/c.a~1~0.bias"]}  # The optimizer has the one of before.
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
    in_part(saved, {"o": (target := optim.AdamW(other.parameters()))})
    assert moments(target, other) == moments(optimizer, model)


@pytest.mark.parametrize("names", ['["m"]', '{"o":"m"}', '{"o":[1]}'])
def test_damaged_names_are_corrupt(names: str) -> None:
    text = f'{{"version":1,"tree":{{}},"parameters":{names}}}'
    with pytest.raises(cairn.Corrupt, match="expected the names of each optimizer's parameters"):
        plan_restore(text, {}, {}, describe, empty)
    with pytest.raises(cairn.Corrupt, match="expected the name of each object's class"):
        plan_restore(text.replace("parameters", "objects").replace('"m"', "1"), {}, {}, describe, empty)


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
        assert "o: only the checkpoint has the parameters m/a.weight, m/a.bias, o: only" in str(caught.value)
        assert "o: only the tree has the parameters m/c.weight" in str(caught.value)
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


def test_a_plugins_state_follows_the_names_in_the_module_if_these_are_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step(model := network(), optimizer := optim.AdamW(model.parameters()))
    known = Known.of(optimizer, model)
    assert known.kind == "AdamW" and known.names == [[name for name, _ in model.named_parameters()]]
    turned = network(layers="ba")
    load(target := optim.AdamW(turned.parameters()), optimizer.state_dict(), Known.of(target, turned), known)
    for name, parameter in turned.named_parameters():
        assert same(target.state[parameter], optimizer.state[model.get_parameter(name)])
    assert not caplog.text
    # A module whose names have changed: as torch does.
    other = nn.ModuleDict({"c": model["a"], "b": model["b"]})
    load(target := optim.AdamW(other.parameters()), optimizer.state_dict(), Known.of(target, other), known)
    assert same(target.state_dict(), optimizer.state_dict())
    assert (
        "states/0: parameters have other names now, as c.weight for a.weight: their state goes by number" in caplog.text
    )
    # An optimizer of other parameters.
    other = nn.ModuleDict({"b": model["b"], "c": model["a"]})
    with pytest.raises(cairn.InvalidArgument, match="only the tree has the parameters c.weight, c.bias"):
        load(target := optim.AdamW(other.parameters()), optimizer.state_dict(), Known.of(target, other), known)


class Beside:
    """A model, and a parameter beside it that no module has, as a loss may: all of one shape."""

    def __init__(self, order: str) -> None:
        self.model = nn.ParameterDict({name: nn.Parameter(torch.ones(3)) for name in "abc"})
        self.outside = nn.Parameter(torch.ones(3))
        named = {**self.model, "-": self.outside}
        self.optimizer = optim.AdamW([named[name] for name in order])
        for i, name in enumerate("abc-", 1):
            named[name].grad = torch.full((3,), float(i))

    def first_moments(self) -> list[float]:
        return [float(self.optimizer.state[one]["exp_avg"][0]) for one in (*self.model.values(), self.outside)]


@pytest.mark.parametrize("order", ["abc-", "cba-", "-cab"])
def test_names_count_also_beside_parameters_of_no_module(order: str) -> None:
    (job := Beside("ab-c")).optimizer.step()
    target = Beside(order)
    restore(save({"m": job.model, "o": job.optimizer}), {"m": target.model, "o": target.optimizer})
    assert target.first_moments() == job.first_moments()

    plugs = Beside(order)
    known, own = Known.of(job.optimizer, job.model), Known.of(plugs.optimizer, plugs.model)
    load(plugs.optimizer, job.optimizer.state_dict(), own, known)
    assert plugs.first_moments() == job.first_moments()
    assert own.regrouped(known) is None


RATES = optim.lr_scheduler
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: RATES.LambdaLR(o, lambda epoch: 0.5**epoch),
    "CosineAnnealingLR": lambda o: RATES.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: RATES.CosineAnnealingWarmRestarts(o, 5),
    "CyclicLR": lambda o: RATES.CyclicLR(o, [0.01, 0.02], [0.1, 0.2], cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: RATES.ReduceLROnPlateau(o, min_lr=[0.1, 0.7]),
    "SequentialLR": lambda o: RATES.SequentialLR(o, [RATES.ConstantLR(o), RATES.CosineAnnealingLR(o, 5)], [2]),
    "ChainedScheduler": lambda o: RATES.ChainedScheduler([RATES.ConstantLR(o), RATES.CosineAnnealingLR(o, 5)]),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_schedulers_state_of_groups_in_another_order_is_refused(kind: str) -> None:
    """Its lists of rates know no names: each group would go on with another one's."""

    def job(layers: str) -> dict[str, Any]:
        optimizer = of_names(network(), layers)
        return {"o": optimizer, "s": SCHEDULERS[kind](optimizer)}

    first = job("a b")
    saved = save(first)
    restore(saved, job("a b"))
    for partial in (False, True):
        said = refused(saved, job("b a"), partial=partial)
        assert "s: its " in said and "are of the optimizer's groups in the order of the checkpoint" in said
        assert "make the optimizer's groups as they were at the save, or leave the scheduler out" in said
    target = job("b a")["o"]
    restore(saved, {"o": target, "s": None})
    assert rates(target) == rates(first["o"])


def test_a_schedulers_state_of_another_number_of_groups_is_refused_also_in_part() -> None:
    def job(layers: str) -> dict[str, Any]:
        optimizer = of_names(network(layers="abc"), layers)
        return {"o": optimizer, "s": SCHEDULERS["LambdaLR"](optimizer)}

    for saved_as, given_as in (("a b", "c a b"), ("a b", "a b c"), ("a", "a b"), ("a b c", "a b")):
        said = refused(save(job(saved_as)), job(given_as), partial=True)
        assert f"the optimizer has {len(given_as.split())}: make the optimizer's groups" in said


def test_groups_of_one_rate_may_come_in_another_order() -> None:
    def job(layers: str) -> dict[str, Any]:
        optimizer = of_names(network(), layers, weight_decay=0.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        scheduler = RATES.SequentialLR(optimizer, [SCHEDULERS["LambdaLR"](optimizer) for _ in range(3)], [2, 5])
        return {"o": optimizer, "s": scheduler}

    restore(save(job("a b")), job("b a"))


def test_a_state_of_one_vector_in_another_order_is_refused() -> None:
    """LBFGS has its history in one vector of all parameters: nobody can tell the names' order in it."""

    def job(layers: str, stepped: bool = True) -> optim.Optimizer:
        model = network()
        made = optim.LBFGS([(f"{one}.{n}", p) for one in layers for n, p in model[one].named_parameters()])
        if stepped:
            step(model, made)
        return made

    saved = save({"o": job("ab")})
    restore(saved, {"o": job("ab")})
    for partial in (False, True):
        for target in (job("ba"), job("ba", stepped=False), job("a")):
            said = refused(saved, {"o": target}, partial=partial)
            assert "o: its state is one vector of all parameters, in the checkpoint's order of these" in said
    restore(save({"o": job("ab", stepped=False)}), {"o": job("ba")})
