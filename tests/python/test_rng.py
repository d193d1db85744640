"""RngState: every default generator goes on as if nothing had happened."""

import random

import numpy
import pytest
import torch
from cairn._errors import InvalidArgument
from cairn._rng import RngState
from cairn._tree import Stored, build, plan_restore
from flat import flatten


def draw():
    return [random.random(), random.gauss(0, 1), numpy.random.normal(), torch.rand(3).tolist()]


def describe(tensor):
    return Stored(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def test_generators_go_on_after_a_restore_as_they_would_have():
    random.gauss(0, 1)  # Leaves a second value in the generator, as numpy's does.
    numpy.random.normal()
    flat = flatten({"rng": RngState()})
    saved = {
        name: tensor.copy() if isinstance(tensor, numpy.ndarray) else tensor.clone()
        for name, tensor in flat.tensors.items()
    }
    expected = draw()
    draw()

    stored = {name: describe(tensor) for name, tensor in saved.items()}
    plan = plan_restore(flat.text, stored, {"rng": RngState()}, describe, lambda _s, _k: pytest.fail("not new"))
    for name, tensor in plan.tensors.items():
        tensor[...] = saved[name]
    draw()
    plan.finish()

    assert draw() == expected


def test_generators_go_on_after_a_load_without_a_tree():
    flat = flatten(RngState())
    expected = draw()

    RngState().load_state_dict(build(flat.text, flat.tensors))

    assert draw() == expected


def test_a_generator_without_a_state_is_left_alone():
    state = RngState().state_dict()
    del state["torch"]
    expected = torch.get_rng_state()

    RngState().load_state_dict(state)

    assert torch.equal(torch.get_rng_state(), expected)


def test_fewer_cuda_devices_than_states_change_nothing():
    state = RngState().state_dict() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * (torch.cuda.device_count() + 1)}
    random.random()
    before = random.getstate()

    with pytest.raises(InvalidArgument, match="expected [0-9]+ CUDA devices?, whose .*, found"):
        RngState().load_state_dict(state)

    assert random.getstate() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_generators_go_on():
    torch.cuda.init()
    state = RngState().state_dict()
    expected = torch.rand(3, device="cuda")

    RngState().load_state_dict(state)

    assert torch.equal(torch.rand(3, device="cuda"), expected)
