"""The codec between trees and named tensors: names, round trips, restores in place, refusals."""

import collections
import enum
import itertools
import json
import math
import subprocess
import sys
from typing import NamedTuple

import numpy
import pytest
import torch
from cairn import _tree
from cairn._errors import Corrupt, InvalidArgument, NotFound, Unsupported
from cairn._tree import Stored, build, kinds, names, plan_restore
from cairn._tree_paths import EnumName
from flat import flatten


class Mode(enum.Enum):
    TRAIN = 1
    EVAL = 2


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: object
    y: object


class Loader:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def describe(tensor):
    return Stored(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def empty(of, kind):
    if kind == "torch":
        return torch.full(of.shape, 99, dtype=getattr(torch, of.dtype))
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
    plan = plan_restore(text, {name: describe(tensor) for name, tensor in tensors.items()}, tree, describe, empty)
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


def with_metadata():
    ordered = collections.OrderedDict(b=torch.ones(2), a=1)
    ordered._metadata = collections.OrderedDict({"": {"version": 2}})
    return ordered


KEPT = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**6000],
    "floats": [0.0, -0.0, 1.0, 0.1, 1e22, 5e-324, -1.7976931348623157e308, math.inf, -math.inf, math.nan],
    "complex": [1 + 2j, complex(-0.0, math.inf), complex(math.nan, -0.0)],
    "strs": ["", "plain", 'quote " back \\ slash /', "\0\x1f\x7f\u2028", "\u00e9\u4e2d\U0001f600", "\ufeff", "t"],
    "bytes": [b"", bytes(range(256))],
    "lists": [[], [1], [[]], ["t"], ["dict"], ["int", "0x1"]],
    "tuples": ((), (1,), (1, (2, "x"))),
    "dicts": [{}, {"b": 1, "a": 2}, {0: "a", "0": "b", None: "c", "None": "d"}, {True: 1, "True": 2}, {2**70: 1}],
    "nested dict with a list for a key's value": {"t": ["t"], "a": {"t": ["a"]}},
    "ordered": collections.OrderedDict([("b", 1), (0, 2), ("a", 3)]),
    "ordered with metadata": with_metadata(),
    "counter": collections.Counter({30: 1, 80: 2}),
    "sets": [set(), {1, "a", None, 2.5, (1, 2), b"x"}, frozenset({frozenset({1}), "x"})],
    "numpy scalars": [numpy.float32(0.1), numpy.float64(0.1), numpy.int64(-3), numpy.uint8(200), numpy.bool_(True),
                      numpy.complex64(1j), numpy.float16(1.5), numpy.datetime64("2026-01-02"), numpy.float32("nan")],
    "numpy arrays": [numpy.arange(6, dtype=numpy.int16).reshape(2, 3), numpy.array(1.5), numpy.zeros((0, 3)),
                     numpy.array([True, False]), numpy.arange(8.0)[::2], numpy.array([1j], numpy.complex64)],
    "tensors": [torch.arange(6).reshape(2, 3), torch.tensor(1.5), torch.zeros(0, 3),
                torch.ones(2, dtype=torch.bfloat16),
                torch.arange(6.0).reshape(2, 3).t(), torch.tensor([1j])],
    "torch": [torch.Size([2, 0]), torch.float32, torch.bfloat16, torch.device("cuda:1"), torch.device("cpu")],
}  # fmt: skip


@pytest.mark.parametrize("what", KEPT)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"at": {"depth": value}}], ids=["root", "nested"])
def test_what_is_kept_comes_back_the_same(what, wrap):
    tree = wrap(KEPT[what])
    saved = save(tree)

    assert same(build(*saved), tree)
    assert same(restore(saved, None), tree)
    assert same(restore(saved, tree), tree)
    assert flatten(build(*saved)).text == saved[0]
    json.loads(saved[0], parse_constant=pytest.fail)


def test_a_tree_of_everything():
    saved = save(KEPT)

    assert same(build(*saved), KEPT)
    assert same(restore(saved, KEPT), KEPT)
    assert names(saved[0]) == list(saved[1])
    assert set(kinds(saved[0]).items()) == {
        (name, "numpy" if isinstance(tensor, numpy.ndarray) else "torch") for name, tensor in saved[1].items()
    }


def test_the_text_says_its_version_and_is_compact():
    flat = flatten({"w": torch.zeros(1), "lr": 0.1, "n": numpy.zeros(1), "b": (1, math.inf), 1: None})

    assert flat.text == (
        '{"version":1,"tree":["dict","w",["t"],"lr",0.1,"n",["a"],"b",["tuple",1,["float","inf"]],1,null]}'
    )


def test_a_set_has_one_text_whatever_its_order():
    assert flatten({"b", "a", "c"}).text == '{"version":1,"tree":["set","a","b","c"]}'


class TestNames:
    NASTY = ("", "a", "b", "a.b", "a/b", "a~b", "~", "/", "~0", "~1", "~s", "~t", "~m", "~s0", "~~", "~/", "//", "0",
             "-0",
             "00", "-1", "1", "+1", "1.0", "True", "False", "None", "true", "__metadata__", "~s__metadata__", "\u0661",
             "\0", " ", "1 ", "~01", 0, 1, -1, 2**70, None, "\u00e9", "\U0001f600", "a\0b", "0.weight",
             "_x")  # fmt: skip

    def test_a_state_dict_keeps_its_names(self):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

        assert list(flatten(model.state_dict()).tensors) == list(model.state_dict())
        assert list(flatten(model).tensors) == list(model.state_dict())

    def test_a_tensor_alone_has_a_name(self):
        assert list(flatten(torch.zeros(1)).tensors) == ["~t"]
        assert list(flatten(numpy.zeros(1)).tensors) == ["~t"]

    def test_positions_and_keys_that_read_alike_stay_apart(self):
        t = torch.zeros(1)
        tree = {"0": t, 0: t, "True": t, None: t, "None": t, "a": [t, {"0": t}], "__metadata__": t, "": t}

        assert list(flatten(tree).tensors) == [
            "~s0", "0", "~sTrue", "None", "~sNone", "a/0", "a/1/~s0", "~s__metadata__", "~s"
        ]  # fmt: skip

    def test_no_two_leaves_share_a_name(self):
        # Every path of one to three keys, all in one tree; a leaf stands at each path's end under a key of its own.
        leaf = torch.zeros(1)
        one = dict.fromkeys(self.NASTY, leaf)
        two = {key: one for key in self.NASTY}
        three = {**{key: {**two, "leaf": leaf} for key in self.NASTY[:20]}, **{key: one for key in self.NASTY[20:]}}

        flat = flatten(three)

        count = 20 * (len(self.NASTY) ** 2 + 1) + (len(self.NASTY) - 20) * len(self.NASTY)
        assert len(flat.tensors) == count
        assert names(flat.text) == list(flat.tensors)
        assert not {"", "__metadata__", "~t"} & set(flat.tensors)
        assert same(build(flat.text, flat.tensors), three)

    def test_bools_and_ints_stay_apart_between_trees(self):
        assert list(flatten({1: torch.zeros(1)}).tensors) != list(flatten({True: torch.zeros(1)}).tensors)

    @pytest.mark.parametrize("key", NASTY)
    def test_one_name_for_a_key_alone_or_among_others(self, key):
        # The dict of plain keys, of escaped ones, and of mixed values take different ways.
        t = torch.zeros(1)
        ways = [
            {key: t},
            {key: t, "~x": 1},
            {key: t, "other": 1},
            {key: t, 7: t},
            {key: t, **{f"k{i}": t for i in range(9)}},
        ]

        assert len({next(iter(flatten(tree).tensors)) for tree in ways}) == 1

    def test_keys_of_small_dicts_are_remembered_with_their_type(self):
        class Text(str):
            pass

        flatten([{"a": torch.zeros(1)}, {"a": torch.zeros(1)}])
        with pytest.raises(InvalidArgument, match=r"0?1: the key 'a' of type .*Text"):
            flatten([{"a": torch.zeros(1)}, {Text("a"): torch.zeros(1)}])


class TestClassesOfTheTarget:
    def test_enums_and_namedtuples_come_back_in_the_given_class(self):
        tree = {
            "mode": Mode.EVAL,
            "level": Level.LOW,
            "flag": Flags.A,
            "p": Point(torch.ones(2), [1]),
            "s": {Mode.TRAIN},
        }
        like = {
            "mode": Mode.TRAIN,
            "level": Level.LOW,
            "flag": Flags.B,
            "p": Point(torch.zeros(2), 0),
            "s": {Mode.EVAL},
        }

        found = restore(save(tree), like)

        assert found["mode"] is Mode.EVAL and found["level"] is Level.LOW and found["flag"] is Flags.A
        assert type(found["p"]) is Point and found["p"].y == [1]
        assert found["p"].x is like["p"].x and torch.equal(found["p"].x, torch.ones(2))
        assert found["s"] == {Mode.TRAIN}

    def test_without_a_target_they_are_stand_ins_that_can_be_saved_again(self):
        saved = save({"mode": Mode.EVAL, "p": Point(1, 2)})

        found = build(*saved)

        assert found["mode"] == "EVAL" and type(found["mode"]) is EnumName and found["mode"].enum == "Mode"
        assert found["p"] == (1, 2) and found["p"]._fields == ("x", "y") and type(found["p"]).__name__ == "Point"
        assert save(found)[0] == saved[0]
        assert restore(save(found), {"mode": Mode.TRAIN, "p": Point(0, 0)}) == {"mode": Mode.EVAL, "p": Point(1, 2)}

    def test_a_member_that_the_class_lacks_is_refused(self):
        with pytest.raises(InvalidArgument, match='m: expected a value of type .*Level, found "EVAL"'):
            restore(save({"m": Mode.EVAL}), {"m": Level.LOW})

    def test_a_namedtuple_of_other_fields_is_refused(self):
        other = collections.namedtuple("Point", "x z")
        with pytest.raises(
            InvalidArgument, match=r"p: expected a value of type .*Point, found a namedtuple Point of x y"
        ):
            restore(save({"p": Point(1, 2), "w": torch.zeros(1)}), {"p": other(1, 2), "w": torch.zeros(1)})


class TestRestore:
    def test_tensors_are_filled_in_place_and_values_are_new(self):
        like = {"w": torch.zeros(2), "n": numpy.zeros(2), "conf": {"lr": 1.0}, "step": 0}
        weights, array, conf = like["w"], like["n"], like["conf"]

        found = restore(save({"w": torch.ones(2), "n": numpy.ones(2), "conf": {"lr": 0.5}, "step": 7}), like)

        assert found["w"] is weights and weights.tolist() == [1, 1]
        assert found["n"] is array and array.tolist() == [1, 1]
        assert found["step"] == 7 and found["conf"] == {"lr": 0.5}
        assert like["step"] == 0 and like["conf"] is conf and conf == {"lr": 1.0}

    def test_placeholders_take_whatever_is_stored(self):
        tree = {"a": {"w": torch.ones(2), "l": [numpy.ones(1)]}, "b": torch.ones(1), "c": {"x": 1}}

        assert same(restore(save(tree), {"a": None, "b": 0, "c": None}), tree)

    def test_plain_values_are_the_checkpoints_as_a_whole(self):
        tree = {"w": torch.ones(1), "seen": {"x": [1, 2]}, "history": [0.1, 0.2], "best": None}

        assert same(restore(save(tree), {"w": torch.zeros(1), "seen": {}, "history": [], "best": 3.0}), tree)

    def test_names_on_either_side_are_all_told(self):
        t = torch.zeros(1)
        with pytest.raises(InvalidArgument) as caught:
            restore(save({"a": t, "b": {"c": t, "d": t}, "l": [t, t]}), {"b": {"c": t, "e": t}, "l": [t], "f": 1})

        assert str(caught.value) == (
            "the given tree does not match the checkpoint:\n"
            "  3 only in the checkpoint: a, b/d, l/1\n"
            "  2 only in the given tree: f, b/e"
        )

    def test_root_names_count_without_tensors_too(self):
        with pytest.raises(InvalidArgument, match="1 only in the checkpoint: a\n  1 only in the given tree: b"):
            restore(save({"a": 1}), {"b": 1})

    def test_long_lists_are_cut(self):
        t = torch.zeros(1)
        with pytest.raises(InvalidArgument, match="45 only in the checkpoint: w0, .*, w19 and 25 more"):
            restore(save({"x": t, **{f"w{i}": t for i in range(45)}}), {"x": t})

    def test_keys_of_another_type_are_other_names(self):
        t = torch.zeros(1)
        with pytest.raises(InvalidArgument, match="only in the checkpoint: 0\n.*only in the given tree: '0'"):
            restore(save({0: t}), {"0": t})
        with pytest.raises(InvalidArgument, match="only in the checkpoint: True\n.*only in the given tree: 1"):
            restore(save({True: t}), {1: t})

    def test_shapes_and_dtypes_that_differ_are_all_told(self):
        tree = {"a": torch.zeros(3, 4), "b": torch.zeros(2), "c": torch.zeros(1)}
        like = {"a": torch.ones(3, 5), "b": torch.ones(2, dtype=torch.float64), "c": torch.ones(1)}
        with pytest.raises(InvalidArgument) as caught:
            restore(save(tree), like)

        assert "2 that differ: a: expected float32 [3, 5], found float32 [3, 4]" in str(caught.value)
        assert "b: expected float64 [2], found float32 [2]" in str(caught.value)
        assert like["c"].item() == 1

    @pytest.mark.parametrize(("tree", "like", "message"), [
        (torch.zeros(1), {"x": torch.zeros(1)}, "expected a value of type dict, found a tensor, float32 \\[1\\]"),
        ({"x": torch.zeros(1)}, torch.zeros(1), "expected a value of type torch.Tensor, found a dict"),
        (1.0, torch.zeros(1), "expected a value of type torch.Tensor, found a plain value"),
        ([torch.zeros(1)], {0: torch.zeros(1)}, "expected a value of type dict, found a list"),
        ({1, 2}, torch.zeros(1), "expected a value of type torch.Tensor, found a set"),
        (1, Loader({}), "expected a value of type .*Loader, found no state"),
    ])  # fmt: skip
    def test_kinds_that_differ_are_told(self, tree, like, message):
        with pytest.raises(InvalidArgument, match=message):
            restore(save({"a": {"b": tree}, "w": torch.zeros(1)}), {"a": {"b": like}, "w": torch.zeros(1)})

    def test_a_target_that_cannot_be_kept_is_refused(self):
        t = torch.zeros(2)
        with pytest.raises(InvalidArgument, match="x: a torch.sparse_coo tensor"):
            restore(save({"x": t}), {"x": t.to_sparse()})
        array = numpy.zeros(2)
        array.flags.writeable = False
        with pytest.raises(InvalidArgument, match="read-only"):
            restore(save({"x": numpy.zeros(2)}), {"x": array})

    def test_tied_tensors_are_two_entries_of_one(self):
        tied = torch.zeros(2)
        flat = flatten({"a": tied, "b": tied})

        assert flat.tensors["a"] is flat.tensors["b"] is tied


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
        with pytest.raises(InvalidArgument, match=r"m/weight: expected float32 \[1, 3\], found float32 \[1, 2\]"):
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


def cyclic(make):
    value = make()
    (value.append if isinstance(value, list) else lambda item: value.update(me=item))(value)
    return value


def deep(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


class Wrapped(torch.Tensor):
    pass


class TestRefused:
    @pytest.mark.parametrize(("value", "message"), [
        (print, r"a value of type builtin_function_or_method cannot be kept; a tree holds tensors, .* load_state_dict"),
        (object(), r"a value of type object cannot be kept"),
        (torch.nn.Linear, r"a value of type type cannot be kept"),
        (torch.Generator(), r"type torch\S*Generator cannot be kept; keep its get_state\(\), or cairn.RngState"),
        (torch.zeros(1).as_subclass(Wrapped), r"Wrapped cannot be kept; of tensors only torch.Tensor and"),
        (torch.zeros(2).to_sparse(), r"a torch.sparse_coo tensor cannot be kept"),
        (torch.eye(2).to_sparse_csr(), r"a torch.sparse_csr tensor cannot be kept"),
        (torch.zeros(2, device="meta"), r"a meta tensor cannot be kept"),
        (torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), r"a quantized tensor cannot be kept"),
        (torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]), r"a nested tensor cannot be kept"),
        (numpy.array([None]), r"a numpy array of dtype object cannot be kept, only bool, int"),
        (numpy.array(["a"]), r"a numpy array of dtype <U1 cannot be kept"),
        (numpy.zeros(1, [("a", "f4")]), r"a numpy array of dtype \[\('a', '<f4'\)\] cannot be kept"),
        (numpy.zeros(1, ">f4"), r"a numpy array of dtype >f4 cannot be kept, .* this machine's byte order"),
        (numpy.zeros(1).view(numpy.recarray), r"recarray cannot be kept; numpy.array"),
        (numpy.str_("a"), r"type numpy.str_? cannot be kept; .*str\(\.\.\.\)"),
        ("\ud800", r"a str with a lone surrogate is not Unicode text; use bytes"),
        (collections.defaultdict(list), r"defaultdict cannot be kept; .* convert it with dict\(\.\.\.\)"),
        (type("MyInt", (int,), {})(1), r"MyInt cannot be kept; .* int\(\.\.\.\)"),
        (type("MyDict", (dict,), {})(), r"MyDict cannot be kept; .* dict\(\.\.\.\)"),
        (bytearray(b"x"), r"bytearray cannot be kept"),
        (Flags.A | Flags.B, r"Flags cannot be kept; of a Flag only single members"),
        ({torch.zeros(1)}, r"tensors and objects cannot be kept in a set"),
        ({(Loader({}),)}, r"tensors and objects cannot be kept in a set"),
        (cyclic(dict), r"a value of type dict that holds itself"),
        (cyclic(list), r"a value of type list that holds itself"),
        (deep(70), r"the tree is deeper than 64 levels"),
        ({1.5: 1}, r"the key 1.5 of type float cannot be kept; keys are str in Unicode, int"),
        ({(1, 2): 1}, r"the key \(1, 2\) of type tuple"),
        ({numpy.int64(1): 1}, r"of type numpy.int64"),
        ({Level.LOW: 1}, r"of type .*Level"),
        ({"\udfff": 1}, r"the key '\\udfff' of type str"),
        ({2**5000: 1}, r"at most 4,096 bits"),
    ])  # fmt: skip
    def test_what_cannot_be_kept_is_refused_with_its_path(self, value, message):
        with pytest.raises(InvalidArgument, match=r"^optimizer/state/0/step(/\S+)?: (?s:.*)" + message):
            flatten({"optimizer": Loader({"state": {0: {"first": 1, "step": value}}})})

    def test_one_bad_tensor_among_many_is_named(self):
        tree = {f"w{i}": torch.zeros(1) for i in range(20)} | {"bad": torch.zeros(1, device="meta")}
        with pytest.raises(InvalidArgument, match="^m/bad: a meta tensor"):
            flatten({"m": tree})

    @pytest.mark.parametrize(
        ("key", "path"), [("a/b", "'a/b'"), ("0", "'0'"), (0, "0"), ("~", "'~'"), ("", "''"), ("a.b", "a.b")]
    )
    def test_paths_are_readable(self, key, path):
        with pytest.raises(InvalidArgument, match=f"^x/{path}: "):
            flatten({"x": {key: print}})

    def test_the_root_is_named(self):
        with pytest.raises(InvalidArgument, match="^the tree: "):
            flatten(print)

    def test_the_same_list_twice_is_no_cycle(self):
        shared = [1]
        assert build(flatten([shared, shared]).text, {}) == [[1], [1]]


class TestBadText:
    @pytest.mark.parametrize("node", [
        '["what"]', "[]", "[1]", '["int",1]', '["int","x"]', '["float","x"]', '["bytes","*"]', '["numpy","O","00"]',
        '["numpy","<f4","00"]', '["dict",1]', '["dict",1,2,1,3]', '["dict",["list"],1]', '["dict",1.5,1]', '["set",{}]',
        '["namedtuple","P","1 2",1,2]', '["namedtuple","P","x y",1]', '["odict"]', '["state"]', '["complex",1]',
        '["t",1]',
        '["dtype","Tensor"]', '["dtype","no_such"]', '["device","???"]', '["size","a"]', "[" * 100 + "]" * 100,
        '{"a":["what"]}',
        '["complex","a",1]', '["counter",1]', '["float","0x1"]',
    ])  # fmt: skip
    def test_a_node_that_no_writer_makes_is_corrupt(self, node):
        with pytest.raises(Corrupt, match="^the checkpoint's tree"):
            build(f'{{"version":1,"tree":{node}}}', {})

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":"1","tree":0}', '{"version":1}', "[" * 100_000])
    def test_a_text_that_is_no_tree_is_corrupt(self, text):
        with pytest.raises(Corrupt, match="^the checkpoint's tree"):
            names(text)

    def test_a_newer_version_is_unsupported(self):
        with pytest.raises(Unsupported, match="version 2, this Cairn reads 1"):
            names('{"version":2,"tree":0}')

    def test_a_tensor_that_is_not_there(self):
        text = flatten({"w": torch.zeros(1)}).text
        with pytest.raises(NotFound, match='no tensor "w"'):
            build(text, {})
        with pytest.raises(Corrupt, match='names the tensor "w"'):
            plan_restore(text, {}, {"w": torch.zeros(1)}, describe, empty)


@pytest.mark.parametrize("missing", [("torch",), ("torch", "numpy")])
def test_works_where_a_module_is_not_installed(missing):
    script = """if True:
        import sys, types
        sys.modules.update(dict.fromkeys(MISSING))
        package = types.ModuleType("cairn"); package.__path__ = [FOLDER]; sys.modules["cairn"] = package
        from cairn import _tree
        from cairn._tree import build, plan_restore, Stored, names
        from cairn._tree_writer import Names
        def flatten(tree):
            sink = Names()
            return types.SimpleNamespace(text=_tree.flatten(tree, sink), tensors=sink.tensors)
        tree = {"a": [1, 2.5, (None, b"x")], 1: {"s": {1}}}
        assert build(flatten(tree).text, {}) == tree
        assert plan_restore(flatten(tree).text, {}, tree, None, None).finish() == tree
        if "numpy" not in MISSING:
            import numpy
            tree = {"x": numpy.arange(3), "y": numpy.float32(1)}
            flat = flatten(tree)
            assert build(flat.text, flat.tensors) == tree
            of = Stored("I64", (3,))
            assert plan_restore(flat.text, {"x": of}, tree, lambda _: of, None).tensors["x"] is tree["x"]
        else:
            try:
                build('{"version":1,"tree":["numpy","<f4","00000000"]}', {})
            except Exception as error:
                assert type(error).__name__ == "Unsupported", error
        try:
            build('{"version":1,"tree":["dtype","float32"]}', {})
        except Exception as error:
            assert type(error).__name__ == "Unsupported", error
        assert names('{"version":1,"tree":["list",["dtype","float32"],["t"]]}') == ["1"]
    """
    for word, meant in (("MISSING", missing), ("FOLDER", _tree.__file__.rpartition("/")[0])):
        script = script.replace(word, repr(meant))
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_pair_of_kept_values_has_its_own_text():
    values = [value for group in KEPT.values() if isinstance(group, (list, tuple)) for value in group]
    texts = [(flatten(value).text, value) for value in values]
    for (left, one), (right, other) in itertools.combinations(texts, 2):
        assert left != right or same(one, other) or left.endswith(('["t"]}', '["a"]}'))
