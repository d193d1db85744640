"""Trees for the codec's tests: what is saved of one, restored into another, and whether two are the same."""

import enum
import math

import numpy
import torch
from cairn._tree import Stored, names, plan_restore
from cairn._tree.values import AS_BYTES
from flat import flatten


class Mode(enum.Enum):
    TRAIN = 1
    EVAL = 2


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Loader:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def describe(tensor):
    return Stored(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def in_file(tensor):
    of = describe(tensor)
    size = AS_BYTES.get(of.dtype)
    return of if size is None else Stored("U8", (*of.shape, size) if size > 1 else of.shape)


def empty(of, kind, device="cpu"):
    if kind == "torch":
        return torch.full(of.shape, 99, dtype=getattr(torch, of.dtype), device=device)
    return numpy.full(of.shape, 99, dtype=of.dtype)


def save(tree):
    """What a checkpoint would hold: a text, and copies of the tensors."""
    flat = flatten(tree)
    copies = {
        name: tensor.copy() if isinstance(tensor, numpy.ndarray) else tensor.detach().clone()
        for name, tensor in flat.tensors.items()
    }
    return flat.text, copies


def restore(saved, tree):
    text, tensors = saved
    plan = plan_restore(text, {name: in_file(tensor) for name, tensor in tensors.items()}, tree, describe, empty)
    assert list(plan.tensors) == names(text)
    with torch.no_grad():
        for name, target in plan.tensors.items():
            target[...] = torch.as_tensor(tensors[name]) if isinstance(target, torch.Tensor) else tensors[name]
    return plan.finish()


def same(left, right):
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, (numpy.ndarray, numpy.generic)):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return (
            [(type(key), key) for key in left] == [(type(key), key) for key in right]
            and all(same(left[key], right[key]) for key in left)
            and same(getattr(left, "_metadata", None), getattr(right, "_metadata", None))
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (set, frozenset)):
        return sorted(map(repr, left)) == sorted(map(repr, right))
    if isinstance(left, float):
        return (
            math.isnan(left)
            and math.isnan(right)
            or (left == right and math.copysign(1, left) == math.copysign(1, right))
        )
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    return left == right
