"""Trees of torch's objects: training goes on bit-exactly from what comes back."""

import itertools
from typing import Any

import numpy
import pytest
import torch
from cairn._errors import InvalidArgument
from cairn._tree import build
from cairn._tree.schedulers import warn_of_unlike
from flat import flatten
from optimizer_jobs import in_part, older, refused
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from trees import Loader, Mode, restore, same, save


def train(model, optimizer, scheduler=None):
    for seed in range(3):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        if scheduler:
            scheduler.step()


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "groups": lambda p: torch.optim.AdamW([{"params": [q], "lr": 0.01 * i} for i, q in enumerate(p, 1)]),
}


class Scaled(torch.nn.Module):
    """Like TransformerEngine's modules: an extra state that is empty before the first use."""

    def __init__(self):
        super().__init__()
        self.amax = []
        self.weight = torch.nn.Parameter(torch.ones(2))

    def get_extra_state(self):
        return torch.tensor(self.amax)

    def set_extra_state(self, state):
        self.amax = state.tolist()


class Recorded(Scaled):
    """Its extra state is a tree."""

    def get_extra_state(self):
        return {
            "steps": len(self.amax),
            "seen": [torch.tensor(self.amax)],
            "by name": {"amax": torch.tensor(self.amax)},
        }

    def set_extra_state(self, state):
        assert torch.equal(state["seen"][0], state["by name"]["amax"]) and len(state["seen"][0]) == state["steps"]
        self.amax = state["seen"][0].tolist()


class Growing(torch.nn.Module):
    """Like torch.ao's observers: it loads a buffer of any length."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))

    def _load_from_state_dict(self, state, prefix, *more):
        self.seen = torch.zeros_like(state[prefix + "seen"])
        super()._load_from_state_dict(state, prefix, *more)


def used_scaled():
    module = Scaled()
    module.amax = [1.0, 2.0]
    return module


def used_recorded():
    module = Recorded()
    module.amax = [1.0, 2.0]
    return module


def used_growing():
    module = Growing()
    module.seen = torch.arange(3.0)
    return module


def used_lazy():
    module = torch.nn.LazyLinear(2)
    module(torch.ones(1, 3))
    return module


class Tenfold(torch.nn.Linear):
    """Its weight was a tenth of what it is, until version 2."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *more):
        if (metadata.get("version") or 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state, prefix, metadata, *more)


def wrapped_within(module):
    module[0] = checkpoint_wrapper(module[0])
    return module


WRAPPERS = {
    "not wrapped": lambda module: module,
    "compiled": torch.compile,
    "checkpointed": checkpoint_wrapper,
    "checkpointed within": wrapped_within,
    "both": lambda module: torch.compile(wrapped_within(module)),
}


class TestWrappers:
    @pytest.mark.parametrize("given", WRAPPERS)
    @pytest.mark.parametrize("saved", WRAPPERS)
    def test_a_module_keeps_its_states_version_however_it_is_wrapped(self, saved, given):
        """torch's names in _metadata are those with the wrappers, and load_state_dict migrates what has no version."""
        one, other, third = (
            WRAPPERS[how](torch.nn.Sequential(Tenfold(2, 2), torch.nn.BatchNorm1d(2))) for how in (saved, given, given)
        )
        torch.nn.init.ones_(next(one.parameters()))
        restore(save({"x": one}), {"x": other})
        third.load_state_dict(restore(save({"x": one.state_dict()}), {"x": third.state_dict()})["x"])
        assert [next(of.parameters()).mean().item() for of in (other, third)] == [1, 1]


RESHAPED = {
    "extra state": (used_scaled, Scaled),
    "extra state, a tree": (used_recorded, Recorded),
    "a load of its own": (used_growing, Growing),
    "lazy": (used_lazy, lambda: torch.nn.LazyLinear(2)),
    "no module": (lambda: Loader({"data": torch.ones(5, 3)}), lambda: Loader({"data": torch.empty(0, 3)})),
    "arrays": (lambda: Loader({"data": numpy.ones(5)}), lambda: Loader({"data": numpy.empty(0)})),
}


class TestStateThatChangesItsShape:
    @pytest.mark.parametrize("within", [False, True], ids=["alone", "in a module"])
    @pytest.mark.parametrize("what", RESHAPED)
    def test_an_object_gets_it_as_it_was_saved(self, what, within):
        used, fresh = (make() for make in RESHAPED[what])
        if within and isinstance(used, torch.nn.Module):
            used, fresh = torch.nn.Sequential(torch.nn.ReLU(), used), torch.nn.Sequential(torch.nn.ReLU(), fresh)
        restore(save({"x": used}), {"x": fresh})
        assert same(fresh.state_dict(), used.state_dict())

    def test_a_compiled_module_does_too(self):
        fresh = torch.compile(Growing())
        restore(save({"x": used_growing()}), {"x": fresh})
        assert torch.equal(fresh.seen, torch.arange(3.0))

    def test_what_torch_copies_must_have_its_shape(self):
        for module in (Scaled(), torch.nn.BatchNorm1d(2)):
            other = type(module)(3) if isinstance(module, torch.nn.BatchNorm1d) else Scaled()
            if isinstance(other, Scaled):
                other.weight = torch.nn.Parameter(torch.ones(3))
            with pytest.raises(
                InvalidArgument, match=r"x/0\.weight: the tree has float32 \[2\], the checkpoint has float32 \[3\]"
            ):
                restore(save({"x": torch.nn.Sequential(other)}), {"x": torch.nn.Sequential(module)})
        renamed = [torch.nn.Sequential(torch.nn.Linear(1, size)) for size in (2, 3)]
        for module in renamed:
            module.register_state_dict_post_hook(lambda _module, state, *_: state.update(core=state.pop("0.weight")))
            module.register_state_dict_post_hook(lambda _module, state, *_: state.update({"a.b": state.pop("core")}))
        with pytest.raises(
            InvalidArgument, match=r"x/a\.b: the tree has float32 \[2, 1\], the checkpoint has float32 \[3, 1\]"
        ):
            restore(save({"x": renamed[1]}), {"x": renamed[0]})
        with pytest.raises(InvalidArgument, match=r"x: the tree has float32 \[0\], the checkpoint has float32 \[3\]"):
            restore(save({"x": torch.ones(3)}), {"x": torch.zeros(0)})


class TestTorch:
    @pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
    @pytest.mark.parametrize("stepped", [False, True], ids=["fresh target", "stepped target"])
    def test_training_goes_on_bit_exactly(self, make, stepped):
        model = network(0)
        optimizer = make(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        train(model, optimizer, scheduler)
        saved = save({"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 3})
        train(model, optimizer, scheduler)

        other = network(1)
        theirs = make(other.parameters())
        their_scheduler = torch.optim.lr_scheduler.StepLR(theirs, 2)
        if stepped:
            train(other, theirs, their_scheduler)
        pointers = [parameter.data_ptr() for parameter in other.parameters()]
        found = restore(saved, {"model": other, "optimizer": theirs, "scheduler": their_scheduler, "step": 0})
        assert found == {"model": other, "optimizer": theirs, "scheduler": their_scheduler, "step": 3}
        assert pointers == [parameter.data_ptr() for parameter in other.parameters()]
        train(other, theirs, their_scheduler)

        assert same(model.state_dict(), other.state_dict())
        assert same(optimizer.state_dict(), theirs.state_dict())
        assert same(scheduler.state_dict(), their_scheduler.state_dict())

    def test_a_fresh_optimizers_checkpoint_into_a_stepped_one(self):
        model, other = network(0), network(1)
        theirs = torch.optim.AdamW(other.parameters())
        train(other, theirs)

        restore(save({"o": torch.optim.AdamW(model.parameters())}), {"o": theirs})

        assert theirs.state_dict()["state"] == {}

    @pytest.mark.parametrize("make", [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 2, 2]),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        lambda o: torch.optim.lr_scheduler.SequentialLR(o, [
            torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [2]),
        lambda o: torch.amp.GradScaler("cpu"),
    ])  # fmt: skip
    def test_schedulers_and_scalers(self, make):
        def new():
            return make(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9))

        scheduler, other = new(), new()
        if hasattr(scheduler, "step") and not isinstance(scheduler, torch.amp.GradScaler):
            scheduler.optimizer.step()
            scheduler.step(*[1.0] * isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau))

        restore(save({"s": scheduler}), {"s": other})

        assert same(flatten(scheduler).text, flatten(other).text)

    def test_another_scheduler_is_refused(self):
        """Each class takes each state, and goes on with a mixture."""
        kinds = torch.optim.lr_scheduler

        def steps(rate):
            class Steps(kinds.StepLR):
                pass

            return Steps(rate, 3)

        def one_after_the_other(last):
            return lambda rate: kinds.SequentialLR(rate, [kinds.ConstantLR(rate), last(rate)], [2])

        make = {
            "StepLR": lambda rate: kinds.StepLR(rate, 3),
            "Steps": steps,
            "ExponentialLR": lambda rate: kinds.ExponentialLR(rate, 0.9),
            "SequentialLR of ConstantLR, StepLR": one_after_the_other(lambda rate: kinds.StepLR(rate, 3)),
            "SequentialLR of ConstantLR, ExponentialLR": one_after_the_other(lambda rate: kinds.ExponentialLR(rate, 0.9)),
        }  # fmt: skip

        def new(of, groups=1):
            parameters = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
            return make[of](torch.optim.SGD(parameters, lr=0.1))

        for of in make:
            by_state = save({"s": new(of).state_dict()})  # Which names no class.
            restore(by_state, {"s": new(of)})
            other = "ExponentialLR" if "S" in of else "StepLR"
            assert "s: another scheduler class: the tree's has" in refused(by_state, {"s": new(other)})
            saved = save({"s": new(of)})
            for other in make:
                if other == of or (of, other) == ("StepLR", "Steps"):  # A subclass.
                    restore(saved, {"s": new(other)})
                else:
                    said = f"s: the tree has {other}, the checkpoint has the state of {of}"
                    assert f"{said}: leave it out of the tree" in refused(saved, {"s": new(other)})
                    if of == "Steps" and other == "StepLR":  # Others may raise in torch's load_state_dict.
                        assert said in in_part(saved, {"s": new(other)})
        assert "s: the tree's is of 2 groups, the checkpoint's of 1" in refused(
            save({"s": new("StepLR")}), {"s": new("StepLR", 2)}
        )
        older_text = older(save({"s": new("StepLR")}), "schedulers")
        restore(older_text, {"s": new("StepLR")})
        assert "another scheduler class" in refused(older_text, {"s": new("ExponentialLR")})

    @pytest.mark.parametrize("of", ["LambdaLR", "MultiplicativeLR"])
    def test_schedulers_whose_functions_have_other_attributes(self, of, caplog):
        class Halving:
            def __init__(self, **attributes):
                vars(self).update(attributes)

            def __call__(self, step):
                return 0.5

        functions = {"none": lambda step: 0.5, "every": Halving(every=3), "every, of": Halving(every=3, of=1)}

        def new(function):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
            return getattr(torch.optim.lr_scheduler, of)(optimizer, function)

        for saved, given in itertools.product(functions, repeat=2):
            for form in (lambda scheduler: scheduler, lambda scheduler: scheduler.state_dict()):
                had, has = save({"s": form(new(functions[saved]))}), {"s": form(new(functions[given]))}
                if saved == given:
                    restore(had, has)
                    continue
                said = f"s: another function: the attributes of the tree's lr_lambdas.0 are {given}, the checkpoint's {saved}"
                assert said in refused(had, has)
            restore(had, {"s": None})

        def within(name):
            scheduler = new(functions[name])
            return torch.optim.lr_scheduler.SequentialLR(scheduler.optimizer, [scheduler], []).state_dict()

        assert "s: another function" in refused(save({"s": within("every")}), {"s": within("none")})
        warn_of_unlike("x", [new(functions["none"])], [[of]], [new(functions["every"]).state_dict()])
        assert "x: a scheduler has another function: the attributes of the tree's lr_lambdas.0 are none" in caplog.text

    def test_a_schedulers_state_dict_of_another_class(self):
        rates = torch.optim.lr_scheduler
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        steps, falls = (one.state_dict() for one in (rates.StepLR(optimizer, 3), rates.ExponentialLR(optimizer, 0.9)))
        assert "s: another scheduler class: the tree's has base_lrs, gamma" in refused(save({"s": steps}), {"s": falls})
        restore(save({"s": steps}), {"s": None})

        def in_turn(last):
            return rates.SequentialLR(optimizer, [rates.ConstantLR(optimizer), last(optimizer)], [2]).state_dict()

        saved = save({"s": in_turn(lambda of: rates.StepLR(of, 3))})
        restore(saved, {"s": in_turn(lambda of: rates.StepLR(of, 5))})
        said = refused(saved, {"s": in_turn(lambda of: rates.ExponentialLR(of, 0.9))})
        assert (
            "s: another scheduler class: the tree's has base_lrs, gamma, last_epoch, the checkpoint's base_lrs" in said
        )

    def test_objects_that_only_their_position_tells_apart(self):
        class Other(Loader):
            pass

        def new():
            return {"all": [Loader({"x": 1}), Other({"x": 2})], "named": Loader({"x": 3}), "m": {0: network(0)}}

        saved, swapped = save(new()), new()
        restore(saved, new())
        swapped["all"].reverse()
        swapped["named"] = Other({"x": 4})  # Its key says what it is.
        said = refused(saved, swapped)
        assert "all/1: the tree has Loader, the checkpoint has the state of Other: leave it out" in said
        assert "all/0" not in said and "named" not in said  # A subclass.
        assert in_part(saved, swapped) == ["all/1: the tree has Loader, the checkpoint has the state of Other"]
        restore(older(saved, "objects"), swapped)
        other = new()
        other["m"][0].__class__ = type("Renamed", (torch.nn.Module,), {**vars(type(other["m"][0]))})
        restore(saved, other)  # The names of its weights are compared; the rest is a remark.

    def test_an_object_becomes_its_state_dict_and_back(self):
        model, other, third = network(0), network(1), network(2)
        saved = save({"m": model})

        found = build(*saved)
        assert same(found["m"], model.state_dict())
        restore((saved[0], saved[1]), {"m": other.state_dict()})
        assert same(other.state_dict(), model.state_dict())
        restore(save({"m": model.state_dict()}), {"m": third})
        assert same(third.state_dict(), model.state_dict())

    def test_a_modules_names_are_told_before_anything_is_read(self):
        other = torch.nn.ModuleDict({"a": torch.nn.Linear(1, 1)})
        model = torch.nn.ModuleDict({"b": torch.nn.Linear(1, 1, bias=False)})
        with pytest.raises(
            InvalidArgument, match="1 only in the checkpoint: m/b.weight\n  2 only in the given tree: m/a.w"
        ):
            restore(save({"m": model}), {"m": other})

    def test_a_tensor_of_another_shape_within_an_object_is_an_error(self):
        with pytest.raises(
            InvalidArgument, match=r"m/weight: the tree has float32 \[1, 3\], the checkpoint has float32 \[1, 2\]"
        ):
            restore(save({"m": torch.nn.Linear(2, 1)}), {"m": torch.nn.Linear(3, 1)})

    def test_names_within_another_object_are_its_own_business(self):
        other = Loader({"pos": 0, "buffer": torch.zeros(2), "gone": torch.zeros(1), "kind": Mode.TRAIN})
        buffer = other.state["buffer"]

        restore(
            save({"l": Loader({"pos": [1], "buffer": torch.ones(2), "new": torch.ones(1), "kind": Mode.EVAL})}),
            {"l": other},
        )

        assert other.state["buffer"] is buffer
        assert same(other.state, {"pos": [1], "buffer": torch.ones(2), "new": torch.ones(1), "kind": Mode.EVAL})

    def test_parameters_are_tensors(self):
        saved = save([torch.nn.Parameter(torch.ones(2))])
        like = [torch.nn.Parameter(torch.zeros(2))]

        assert restore(saved, like)[0] is like[0] and like[0].tolist() == [1, 1]


@pytest.mark.parametrize("partial", [False, True])
def test_a_gradient_scaler_that_is_enabled_on_one_side_only_is_refused(partial: bool) -> None:
    """torch's raises once all else is loaded, or drops the scale."""

    def job(enabled: bool) -> dict[str, Any]:
        return {"m": torch.nn.Linear(2, 2), "s": torch.amp.GradScaler("cpu", enabled=enabled)}

    for enabled, (own, saved) in ((True, ("enabled", "disabled")), (False, ("disabled", "enabled"))):
        said = refused(save(job(not enabled)), job(enabled), partial)
        assert (
            f"s: the GradScaler is {own} in the tree and was {saved} at the save: make it so, or leave it out" in said
        )
        restore(save(job(enabled)), job(enabled))
