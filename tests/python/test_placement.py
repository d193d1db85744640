"""On which device a restore makes the tensors that the tree lacks: what it reads into must not be in host memory first.

The plans are real, for parameters on torch's "meta" device; only the tests that need a GPU read into another device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from cairn._tree import Plan, plan_restore
from cairn._tree import tensors as tree_tensors
from trees import describe, in_file, save

Make = Callable[..., cairn.Checkpointer]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def parameters(device: str) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(size, device=device)) for size in (3, 5, 7)]


def grouped(kind: type[torch.optim.Optimizer], device: str, **options: Any) -> torch.optim.Optimizer:
    first, second, third = parameters(device)
    return kind([{"params": [third]}, {"params": [first, second]}], lr=0.1, **options)


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def planned(saved: Any, tree: Any, place: Callable[[str], Any] = lambda _name: None) -> tuple[Plan, dict[str, str]]:
    """The plan, and the device type of each tensor that it has made."""
    text, tensors = saved
    made: list[Any] = []

    def empty(of: Any, _kind: str, device: Any = "cpu") -> torch.Tensor:
        made.append(torch.empty(of.shape, dtype=getattr(torch, of.dtype), device=device))
        return made[-1]

    stored = {name: in_file(tensor) for name, tensor in tensors.items()}
    plan = plan_restore(text, stored, tree, describe, empty, place=place)
    new = {id(tensor) for tensor in made}
    return plan, {name: tensor.device.type for name, tensor in plan.tensors.items() if id(tensor) in new}


@pytest.mark.parametrize("wrapped", [False, True])
def test_optimizer_state_is_made_on_its_parameters_device(wrapped: bool) -> None:
    class Wrapper(torch.optim.Optimizer):  # As accelerate's.
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def state_dict(self) -> Any:
            return self.optimizer.state_dict()

        def load_state_dict(self, state: Any) -> None:
            self.optimizer.load_state_dict(state)

    saved = save({"optimizer": stepped(grouped(torch.optim.AdamW, "cpu"))})
    optimizer = grouped(torch.optim.AdamW, "meta")

    plan, made = planned(saved, {"optimizer": Wrapper(optimizer) if wrapped else optimizer})

    assert made == {
        f"optimizer/state/{number}/{key}": "cpu" if key == "step" else "meta"
        for number in range(3)
        for key in ("step", "exp_avg", "exp_avg_sq")
    }
    plan.finish()
    for number, size in enumerate((7, 3, 5)):
        parameter = [p for group in optimizer.param_groups for p in group["params"]][number]
        assert optimizer.state[parameter]["exp_avg"] is plan.tensors[f"optimizer/state/{number}/exp_avg"], "no copy"
        assert optimizer.state[parameter]["exp_avg"].shape == (size,)


def test_what_torch_keeps_deeper_in_the_state_is_made_there_too() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    lbfgs = torch.optim.LBFGS([weight])

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = ((weight - 3) ** 4).sum()
        loss.backward()
        return loss

    lbfgs.step(closure)
    assert isinstance(lbfgs.state[weight]["old_dirs"], list)

    _, made = planned(save(lbfgs), torch.optim.LBFGS([torch.nn.Parameter(torch.ones(4, device="meta"))]))

    assert "state/0/old_dirs/0" in made and set(made.values()) == {"meta"}


def test_state_that_is_there_is_filled_in_place() -> None:
    saved = save(stepped(grouped(torch.optim.AdamW, "cpu")))
    optimizer = stepped(grouped(torch.optim.AdamW, "cpu"))
    first = optimizer.param_groups[0]["params"][0]
    del optimizer.state[optimizer.param_groups[1]["params"][0]]

    plan, made = planned(saved, optimizer)

    assert plan.tensors["state/0/exp_avg"] is optimizer.state[first]["exp_avg"]
    assert set(made) == {"state/1/step", "state/1/exp_avg", "state/1/exp_avg_sq"}


def test_who_asks_for_a_device_gets_it() -> None:
    saved = save({"optimizer": stepped(grouped(torch.optim.AdamW, "cpu"))})
    _, made = planned(saved, {"optimizer": grouped(torch.optim.AdamW, "meta")}, tree_tensors.placement_of("cpu"))
    assert set(made.values()) == {"cpu"}


def test_an_optimizer_with_a_load_state_dict_of_its_own_gets_its_state_on_the_cpu() -> None:
    class Offloaded(torch.optim.AdamW):
        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict(state_dict)

    _, made = planned(save(stepped(grouped(Offloaded, "cpu"))), grouped(Offloaded, "meta"))
    assert set(made.values()) == {"cpu"}


def test_a_restore_into_a_new_optimizer_continues_bit_for_bit(make: Make) -> None:
    optimizer = stepped(grouped(torch.optim.AdamW, "cpu"))
    with make() as checkpointer:
        checkpointer.save(1, {"optimizer": optimizer}).wait()
        new = grouped(torch.optim.AdamW, "cpu")
        checkpointer.restore({"optimizer": new})
    for old, made in zip(optimizer.state.values(), new.state.values(), strict=True):
        assert {key: value.tolist() for key, value in old.items()} == {
            key: value.tolist() for key, value in made.items()
        }


def test_the_trainers_and_lightnings_states_are_placed_by_name() -> None:
    contents = pytest.importorskip("cairn._huggingface.contents")
    place = contents.state_on(torch.device("meta")).of
    assert place("trainer/tensors/optimizer.state.0.exp_avg") == torch.device("meta")
    for name in ("trainer/tensors/optimizer.state.0.step", "trainer/tensors/scaler", "trainer_rank/tensors/rng.torch"):
        assert place(name) is None
    assert place("model.optimizer.state.0.exp_avg") is None

    lightning = pytest.importorskip("cairn.lightning")
    io = lightning.CheckpointIO()
    assert io._place("optimizer_states/0/state/0/exp_avg") is None, "outside a fit"
    io.optimizers_on = torch.device("meta")
    assert io._place("optimizer_states/0/state/0/exp_avg") == torch.device("meta")
    for name in ("optimizer_states/0/state/0/step", "state_dict/state/0", "optimizer_states/0/param_groups/0/lr"):
        assert io._place(name) is None


@needs_gpu
def test_a_restore_to_a_gpu_makes_nothing_of_the_states_size_on_the_host(make: Make, root: Path) -> None:
    weight = torch.nn.Parameter(torch.zeros(4 << 20, device="cuda"))
    optimizer = stepped(torch.optim.AdamW([weight]))
    with make() as checkpointer:
        checkpointer.save(1, {"optimizer": optimizer}).wait()
        new = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(4 << 20, device="cuda"))])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
            checkpointer.restore({"optimizer": new})
    assert max(event.cpu_memory_usage for event in seen.events()) < 1 << 20
    ours = next(iter(new.state.values()))
    for key, value in next(iter(optimizer.state.values())).items():
        assert ours[key].device == value.device
        assert torch.equal(ours[key], value)


@needs_gpu
def test_the_current_device_is_set_up_when_it_opens(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.ones(1 << 20, device="cuda")  # CUDA is initialised now.
    with make() as checkpointer:
        checkpointer.save(1, {"w": weight}).wait()
    assert not [record.message for record in caplog.records if "set up" in record.message]
