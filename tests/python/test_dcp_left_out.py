"""What only the checkpoint has: named by a load through cairn.dcp, and refused if it is state of an optimizer."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from dcp_worlds import Worlds, worlds
from jobs import ENVIRONMENT
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

cairn_dcp = pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
__all__ = ["worlds"]  # A fixture.


def job(
    seed: int, steps: int = 0, frozen: bool = False, kind: Any = torch.optim.AdamW
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    model[0].requires_grad_(not frozen)
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


def nested(model: Any, optimizer: Any) -> dict[str, Any]:
    return get_optimizer_state_dict(model, optimizer)


def flat(model: Any, optimizer: Any) -> dict[str, Any]:
    return get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))


def bare(_model: Any, optimizer: Any) -> dict[str, Any]:
    return optimizer.state_dict()  # type: ignore[no-any-return]


@pytest.fixture
def path(root: Path) -> Path:
    return root / "step-1"


def save(path: Path, state: Any) -> None:
    cairn_dcp.save(state, checkpoint_id=path, no_dist=True)
    cairn_dcp.checkpointer_for(path, no_dist=True).close()


def load(path: Path, state: Any, **options: Any) -> Any:
    cairn_dcp.load(state, checkpoint_id=path, no_dist=True, **options)
    return state


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage().partition(": ")[2]) for one in caplog.records if one.name == "cairn"]


@pytest.mark.parametrize(
    ("form", "name"), [(nested, "state.0.weight.exp_avg"), (flat, "state.0.weight.exp_avg"), (bare, "state.0.exp_avg")]
)
@pytest.mark.parametrize("at", ["optim.", ""])
def test_moments_that_the_state_to_load_into_lacks_are_an_error(
    path: Path, form: Any, name: str, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    def state(*of: Any) -> dict[str, Any]:
        found: dict[str, Any] = form(*of)
        return {"optim": found, "step": 3} if at else {**found, "step": 3}

    model, optimizer = job(0, steps=2)
    save(path, state(model, optimizer))
    other = job(1, frozen=form is not bare)
    into = state(*other)
    before = repr(into)

    with pytest.raises(cairn.InvalidArgument) as refused:
        load(path, into)

    message = str(refused.value)
    assert message.startswith(f"{path.parent}/step-00000000000000000001: ")
    assert f"of an optimizer's state only in the checkpoint: {at}state.0" in message
    assert "get_optimizer_state_dict" in message and "strict=False" in message
    assert repr(into) == before

    caplog.set_level(logging.INFO, "cairn")
    load(path, into, strict=False)

    assert into["step"] == 3
    assert [(level, f"{at}state.0" in text) for level, text in told(caplog)] == [("WARNING", True)]
    if form is not bare:  # What is frozen at the save, too, has no moments.
        save(path, state(*job(0, steps=2, frozen=True)))
        load(path, into)


def test_numbers_of_an_optimizer_that_mean_other_parameters_are_an_error(path: Path) -> None:
    model, _ = job(0)
    names = [*model.named_parameters()]

    def made(parameters: Any) -> dict[str, Any]:
        return {"optim": torch.optim.SGD(parameters).state_dict()}

    save(path, made(names))
    for state, said in (
        (
            made(names[::-1]),
            '"optim.param_groups.0.param_names": 1.bias in the state to load into, 0.weight in the check',
        ),
        (
            made(names[:3]),
            '"optim.param_groups.0.param_names": 3 parameters in the state to load into, 4 in the checkpoint',
        ),
        (
            made([one for _, one in names[:1]]),
            '"optim.param_groups.0.params": 1 parameter in the state to load into, 4 in',
        ),
    ):
        for strict in (True, False):
            with pytest.raises(cairn.InvalidArgument) as refused:
                load(path, state, strict=strict)
            assert said in str(refused.value)
    load(path, made(names))


@pytest.mark.parametrize("form", [nested, flat, bare])
def test_the_state_of_another_class_is_an_error_though_it_is_alike(
    path: Path, form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam)
    for saved in kinds:
        save(path, {"optim": form(*job(0, steps=2, kind=saved))})
        for other in kinds:
            into = {"optim": form(*job(1, steps=1, kind=other))}
            if other is saved:
                load(path, into)
                continue
            before = repr(into)
            with pytest.raises(cairn.InvalidArgument) as refused:
                load(path, into)
            assert repr(into) == before
            assert re.search(r"optim\..*(amsgrad|decoupled_weight_decay)", str(refused.value))
            if torch.optim.RAdam not in (saved, other):
                assert "the state of another optimizer class" in str(refused.value)
                caplog.clear()
                load(path, into, strict=False)
                assert [text.partition(":")[0] for _, text in told(caplog)] == ["the state of another optimizer class"]


class Twin(torch.optim.AdamW):
    """As another library has one: with the same state and options."""


def test_the_class_of_an_optimizer_that_is_given_itself_counts(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(path, {"optim": job(0, steps=2, kind=Twin)[1]})
    load(path, {"optim": job(1, steps=1, kind=Twin)[1]})
    into = {"optim": job(1, steps=1)[1]}
    before = repr(into["optim"].state_dict())

    with pytest.raises(
        cairn.InvalidArgument, match='class: "optim" is AdamW in the state to load into, Twin in the che'
    ):
        load(path, into)

    assert repr(into["optim"].state_dict()) == before
    load(path, into, strict=False)
    assert [text.partition(":")[0] for _, text in told(caplog)] == ["the state of another optimizer class"]


def test_parameters_in_other_groups_are_an_error_though_state_goes_by_name(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """torch gives each group the options of any group that has one of its parameters."""

    def state(*groups: slice) -> dict[str, Any]:
        model, _ = job(0)
        parameters = [*model.parameters()]
        parts = [{"params": parameters[group], "lr": 10.0**-at} for at, group in enumerate(groups)]
        return {"optim": nested(model, torch.optim.AdamW(parts))}

    save(path, state(slice(3), slice(3, 4)))
    load(path, state(slice(3, 4), slice(3)))  # It knows the groups by their parameters.
    into = state(slice(2), slice(2, 4))
    before = repr(into)
    with pytest.raises(cairn.InvalidArgument, match=r'in other groups: "optim.param_groups.0.params", ".*1.params"'):
        load(path, into)
    assert repr(into) == before
    load(path, into, strict=False)
    assert "in other groups" in caplog.text


@pytest.mark.parametrize("planner", [None, cairn_dcp.LoadPlanner(allow_partial_load=True)])
def test_what_a_checkpoint_lacks_is_never_left_without_a_word(
    path: Path, caplog: pytest.LogCaptureFixture, planner: Any
) -> None:
    save(path, {"model": {"w": torch.ones(2)}})

    into = load(path, {"model": {"w": torch.zeros(2), "new": torch.zeros(2)}}, strict=False, planner=planner)

    assert bool(into["model"]["w"].all()) and not into["model"]["new"].any()
    assert ("WARNING", "model.new") in told(caplog) and "because the checkpoint lacks them" in caplog.text
    with pytest.raises(cairn.InvalidArgument, match=r"Missing key in checkpoint state_dict: modle\.w"):
        load(path, {"modle": {"w": torch.zeros(2)}}, strict=False, planner=planner)


def test_a_value_that_would_take_a_tensors_place_is_an_error(path: Path) -> None:
    """The tensor would stay as it is, though the load succeeds."""
    save(path, {"m": {"count": 3, "w": torch.ones(2)}})
    into = {"m": {"count": torch.zeros(()), "w": torch.zeros(2)}}
    for planner in (None, DefaultLoadPlanner()):
        with pytest.raises(BaseException, match=r'"m\.count": the state to load into has a tensor'):
            load(path, into, planner=planner)
        assert not into["m"]["w"].any()
    assert load(path, {"m": {"count": None}}, strict=False) == {"m": {"count": 3}}


def test_a_model_alone_is_loaded_and_the_rest_is_named_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = job(0, steps=2)
    state = {
        "model": model.state_dict() | {"none": torch.zeros(0, 3)},
        "optim": {"state": optimizer.state_dict()["state"]},
        "loss": 2.5,
    }
    save(path, state)
    caplog.set_level(logging.INFO, "cairn")

    into = load(path, {"model": job(1)[0].state_dict()})

    assert torch.equal(into["model"]["0.weight"], model[0].weight)
    ((level, text),) = told(caplog)
    assert level == "WARNING" and text == "left out what only the checkpoint has: loss, optim (12 names)"


def test_who_has_set_up_no_logging_hears_what_is_left_out(path: Path) -> None:
    save(path, {"model": {"w": torch.ones(3)}, "sched": {"last": 3}})
    program = (
        "import sys, torch, cairn.dcp as dcp\n"
        "state = {'model': {'w': torch.zeros(3)}}\n"
        "dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)\n"
        "assert state['model']['w'].all()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, path],
        check=True,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "step-00000000000000000001: left out what only the checkpoint has: sched\n" in ran.stderr


def test_a_part_of_what_is_loaded_that_is_left_out_is_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(path, {"m": {"a": torch.ones(3), "ema": torch.ones(3)}, "step": 5, "sched": {"last": 3}})
    caplog.set_level(logging.INFO, "cairn")
    load(path, {"m": {"a": torch.zeros(3)}, "step": 0})
    assert told(caplog) == [
        ("WARNING", "left out 1 name that only the checkpoint has: m.ema"),
        ("WARNING", "left out what only the checkpoint has: sched"),
    ]


def test_a_weight_that_is_left_out_is_a_warning_though_weights_lie_at_the_top(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a model's own state dict, and as torchtitan has them."""
    save(path, {"a.weight": torch.ones(2), "b.weight": torch.ones(2), "optim": {"state": torch.ones(2)}, "step": 5})
    caplog.set_level(logging.INFO, "cairn")
    load(path, {"a.weight": torch.zeros(2)})
    assert told(caplog) == [
        ("WARNING", "left out 1 name that only the checkpoint has: b.weight"),
        ("WARNING", "left out what only the checkpoint has: optim, step"),
    ]


def test_what_one_rank_refuses_no_rank_begins_to_read(worlds: Worlds) -> None:
    """And what the ranks ask for together counts: each stage of a pipeline has its own parameters."""
    two = worlds(2)
    two.all(
        "stage = {f'optim.state.{rank}.exp_avg': torch.full((4,), rank + 1.0), 'optim.param_groups': [1],"
        "         'w': torch.ones(4)}\n"
        "def refused(state, wanted, planner=None):\n"
        "    blank = {key: torch.zeros_like(one) if hasattr(one, 'shape') else 0 for key, one in state.items()}\n"
        "    try: load(blank, 1, planner)\n"
        "    except BaseException as error: assert wanted in str(error), str(error)\n"
        "    else: return 'loaded', sum(float(one.sum()) for one in blank.values() if hasattr(one, 'shape'))\n"
        "    return 'refused', any(bool(one.any()) for one in blank.values() if hasattr(one, 'shape'))\n"
        "save(stage, 1)\n"
        "narrow = {**stage, 'w': stage['w'].half() if rank else stage['w']}\n"
        "lacking = {key: one for key, one in stage.items() if not rank or 'state' not in key}; None"
    )
    for planner in ("None", "cairn.dcp.LoadPlanner()"):
        assert two.all(f"refused(stage, '', {planner})") == [["loaded", 8.0], ["loaded", 12.0]]
        for state, told in (
            ("lacking", "1 name of an optimizer's state only in the checkpoint: optim.state.1.exp_avg"),
            ("narrow", "w (F32 in the checkpoint, F16 here)"),
        ):
            assert two.all(f"refused({state}, {told!r}, {planner})") == [["refused", False]] * 2


def test_a_rank_may_have_some_of_the_classes_that_all_ranks_have() -> None:
    from cairn._dcp.optimizers import unlike_classes

    own = {"optim": [torch.optim.AdamW([torch.zeros(1)])]}
    assert unlike_classes(own, {"optim": ["AdamW", "SGD"]}) == []
    assert unlike_classes(own, {"optim": ["SGD"]}) == [
        '"optim" is AdamW in the state to load into, SGD in the checkpoint'
    ]


@pytest.mark.parametrize("form", [nested, flat])
def test_a_schedulers_state_of_groups_in_another_order_is_refused(path: Path, form: Any) -> None:
    """torch gives each group the options of the one that has its parameters; a scheduler's rates have no names."""

    def grouped(turned: bool, rates: tuple[Any, Any] = (0.1, 0.2)) -> dict[str, Any]:
        model, _ = job(0)
        groups = [{"params": model[i].parameters(), "lr": rate} for i, rate in enumerate(rates)]
        optimizer = torch.optim.AdamW(groups[::-1] if turned else groups)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        return {"model": model.state_dict(), "optim": form(model, optimizer), "s": scheduler}

    state = grouped(False)
    save(path, state)
    load(path, grouped(False))
    for strict in (True, False):
        into = grouped(True)
        before = {name: one.clone() for name, one in into["model"].items()}
        with pytest.raises(
            cairn.InvalidArgument, match='step-0*1: "s": its base_lrs are of the optimizer.s groups in the or'
        ):
            load(path, into, strict=strict)
        assert all(torch.equal(before[name], one) for name, one in into["model"].items())
    del into["s"]
    load(path, into)

    even = path.with_name("step-2")
    save(even, grouped(False, (0.1, 0.1)))
    load(even, grouped(True, (0.1, 0.1)))
    if form is nested:
        rates = torch.tensor(0.1), torch.tensor(0.2)
        save(path.with_name("step-3"), grouped(False, rates))
        with pytest.raises(cairn.InvalidArgument, match='"s": its [a-z_]+ are of the optimizer.s groups in the or'):
            load(path.with_name("step-3"), grouped(True, rates))
        load(path.with_name("step-3"), grouped(False, rates))


def test_a_schedulers_state_of_another_number_of_groups_is_refused_also_in_part(path: Path) -> None:
    def grouped(*layers: int) -> dict[str, Any]:
        model, _ = job(0)
        optimizer = torch.optim.AdamW([{"params": model[i].parameters()} for i in layers])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        return {"optim": nested(model, optimizer), "s": scheduler}

    save(path, grouped(0))
    with pytest.raises(cairn.InvalidArgument, match='"s": its base_lrs are of 1 group, the optimizer has 2'):
        load(path, grouped(0, 1), strict=False)


def test_lbfgs_of_another_order_is_refused(path: Path) -> None:
    def made(turned: bool) -> dict[str, Any]:
        model, _ = job(0)
        first, *rest = model.parameters()
        optimizer = torch.optim.LBFGS([first, *(rest[::-1] if turned else rest)])

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return {"optim": nested(model, optimizer)}

    save(path, made(False))
    load(path, made(False))
    with pytest.raises(cairn.InvalidArgument, match="the state of LBFGS is one vector of all parameters"):
        load(path, made(True))
