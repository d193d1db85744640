"""The codec between trees and named tensors: names, round trips, restores in place, refusals."""

import collections
import enum
import gc
import itertools
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import pytest
import torch
from cairn import _tree
from cairn._errors import InvalidArgument
from cairn._tree import build, kinds, names
from cairn._tree.paths import MAX_DEPTH, EnumName
from cairn._tree.tensors import TensorCollector
from flat import flatten
from trees import Flags, Level, Loader, Mode, restore, same, save


class Point(NamedTuple):
    x: object
    y: object


@dataclass
class Nested:
    inner: object


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
    "long lists": [[0, -0.0, 1.5, True, None, 'é " \\'] * 20, [*range(99), -(2**63), 2**63], [0.5, math.nan] * 40, ["t"] * 40,
                   (*map(str, range(99)),), [[]] * 40, collections.deque(range(99))],
    "many numbers": [[*range(-3, 3000)], (2**31, *range(1100)), [math.inf, -0.0, math.nan, 0.1] * 300, [True] * 1100,
                     [2**64, *range(1100)], [1, 0.5] * 600, {"params": [*range(2000)], "t": [[*range(1500)]] * 2}],
    "long dicts": [{str(i): i / 3 for i in range(99)}, {"t": ["t"], **{str(i): None for i in range(99)}},
                   {f"_orig_mod.{i}": 2**i for i in range(99)}],
    "tuples": ((), (1,), (1, (2, "x"))),
    "dicts": [{}, {"b": 1, "a": 2}, {0: "a", "0": "b", None: "c", "None": "d"}, {True: 1, "True": 2}, {2**70: 1}],
    "nested dict with a list for a key's value": {"t": ["t"], "a": {"t": ["a"]}},
    "ordered": collections.OrderedDict([("b", 1), (0, 2), ("a", 3)]),
    "ordered by text": [collections.OrderedDict(of) for of in (
        {}, {"": {"version": 1}, "a.b": {}, "True": 2**70, 'é"': [1.5, math.nan, None, b"x", (True,)]}, {"a": {1: 2}},
        {"a": collections.OrderedDict(b=1), "c": {2}}, {"_orig_mod.0": {"version": 1}}, {"n": [*range(1500)]})],
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


def test_a_str_of_another_class_comes_back_as_its_text():
    for value in (torch.__version__, numpy.str_("é")):
        back = restore(save({"at": value}), {"at": value})["at"]
        assert type(back) is str
        assert back == value


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


def test_texts_that_look_like_parts_of_the_text_are_kept():
    like = ['["t"]', '"["t"]"', "NaN", "t", ["t"], {'["t"]': "Infinity", "NaN": '["a"]'}]
    tree = {"w": torch.zeros(1), "texts": like, **{text: 1 for text in ("NaN", '["t"]')}}
    flat = flatten(tree)
    assert build(flat.text, flat.tensors) == tree


@pytest.mark.parametrize("keys", [(1, -2, 2**62, -(2**63)), (1, 2**63), (True, None), ("w", 1), ("1", 1)])
def test_tensors_below_other_keys_are_named_alike_by_both_walks(keys):
    tree = {
        "s": {key: torch.zeros(1) for key in keys},
        "l": [torch.zeros(1), (torch.zeros(1), "a", 1.5)],
        "d": {key: {"m": torch.zeros(1), "v": torch.ones(2).expand(3, 2), "n": None} for key in keys},
        "o": {1: {}, 2: {key: torch.zeros(1) for key in keys}, 3: {"a/b": torch.zeros(1)}, 4: {"w": numpy.ones(1)}},
    }
    flat = flatten(tree)
    assert len(flat.tensors) == 4 * len(keys) + 4
    assert same(build(flat.text, flat.tensors), tree)


def test_tensors_in_lists_are_taken_in_one_call(monkeypatch):
    monkeypatch.delattr(TensorCollector, "add")
    sink = TensorCollector()
    state = {0: torch.zeros(1), 1: torch.zeros(1)}
    moments = {i: {"m": torch.zeros(1), "v": torch.zeros(1)} for i in range(5)}
    _tree.flatten({"l": [torch.zeros(1)] * 3, "t": (torch.zeros(1),), "state": state, "moments": moments}, sink)
    of = {
        f"{prefix}/{key}": value for prefix, keys, values in sink.given for key, value in zip(keys, values, strict=True)
    }
    assert [len(keys) for _, keys, _ in sink.given if keys] == [4, 3, 1, 2, 5, 10]
    assert of["moments/3/v"] is moments[3]["v"]


@pytest.mark.parametrize("name", ["0.weight", "12.0.bias", "_orig_mod.weight", "Norm.weight", "True.w", "-1.w", "w"])
def test_tensors_of_modules_are_taken_in_one_call_whatever_their_names_begin_with(monkeypatch, name):
    monkeypatch.delattr(TensorCollector, "add")
    sink = TensorCollector()
    _tree.flatten({"model": collections.OrderedDict({name: torch.zeros(1)}), "of": {1: {name: torch.zeros(1)}}}, sink)
    assert [name] in (found := [keys for _, keys, _ in sink.given]) and [f"1/{name}"] in found


def test_a_dict_of_tensors_counts_as_a_level():
    tree = {"w": torch.zeros(1)}
    for _ in range(MAX_DEPTH - 1):
        tree = {"d": tree}
    _tree.flatten(tree, TensorCollector())
    with pytest.raises(InvalidArgument, match="deeper than 64 levels"):
        _tree.flatten({"d": tree}, TensorCollector())


def test_what_is_as_deep_as_may_be_comes_back():
    for nest in (Nested, lambda value: [value], lambda value: {1: value}):
        value = complex(math.inf, 0.5)
        for _ in range(MAX_DEPTH):
            value = nest(value)
        assert build(flatten(value).text, {}) == value


def test_the_collector_does_not_visit_each_of_many_tensors():
    tensors = [torch.zeros(1)] * 20_000
    tree = {f"w{i}": tensor for i, tensor in enumerate(tensors)}
    state = {i: {"m": tensor} for i, tensor in enumerate(tensors)}
    text = flatten(tree).text
    before = gc.get_stats()[0]["collections"]
    _tree.flatten({"model": tree, "state": state}, TensorCollector())
    assert gc.get_stats()[0]["collections"] - before < 5
    before = gc.get_stats()[0]["collections"]
    assert len(kinds(text)) == 20_000
    assert gc.get_stats()[0]["collections"] - before < 5  # A list for each tensor makes it run 28 times.


class TestNames:
    NASTY = ("", "a", "b", "a.b", "a/b", "a~b", "~", "/", "~0", "~1", "~s", "~t", "~m", "~s0", "~~", "~/", "//", "0",
             "-0",
             "00", "-1", "1", "+1", "1.0", "True", "False", "None", "true", "__metadata__", "~s__metadata__", "\u0661",
             "\0", " ", "1 ", "~01", 0, 1, -1, 2**70, None, "\u00e9", "\U0001f600", "a\0b", "0.weight",
             "_x", "-", "-x", "--1", "007", "1_0", "0x1", "T", "Truer", "False.", "Nones", "_", "__metadata__x")  # fmt: skip

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

    @pytest.mark.parametrize("like", [Flags.A, Level.LOW])
    def test_an_enum_of_another_class_is_an_error_also_with_a_member_of_that_name(self, like):
        class Other(enum.Enum):
            A = 2

        with pytest.raises(
            InvalidArgument, match=r'mode: the tree has .*, the checkpoint has "A" of the Enum .*Other; None'
        ):
            restore(save({"mode": Other.A}), {"mode": like})

    def test_without_a_target_they_are_stand_ins_that_can_be_saved_again(self):
        saved = save({"mode": Mode.EVAL, "p": Point(1, 2)})

        found = build(*saved)

        assert found["mode"] == "EVAL" and type(found["mode"]) is EnumName and found["mode"].enum == "Mode"
        assert found["p"] == (1, 2) and found["p"]._fields == ("x", "y") and type(found["p"]).__name__ == "Point"
        assert save(found)[0] == saved[0]
        assert restore(save(found), {"mode": Mode.TRAIN, "p": Point(0, 0)}) == {"mode": Mode.EVAL, "p": Point(1, 2)}

    def test_a_member_that_the_class_lacks_is_refused(self):
        with pytest.raises(InvalidArgument, match='m: the tree has a value of type .*Level, the checkpoint has "EVAL"'):
            restore(save({"m": Mode.EVAL}), {"m": Level.LOW})

    def test_a_namedtuple_of_other_fields_is_refused(self):
        other = collections.namedtuple("Point", "x z")
        with pytest.raises(
            InvalidArgument,
            match=r"p: the tree has a value of type .*Point, the checkpoint has a namedtuple Point of x y",
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

    def test_long_plain_lists_are_the_checkpoints_whatever_the_tree_has(self):
        saved = save({"log": [*range(99)], "by": {str(i): i for i in range(99)}, "new": ["x"] * 99})
        like = {"log": [0.5] * 40, "by": {"1": "other"}, "new": [Mode.TRAIN] * 99}
        assert restore(saved, like) == {"log": [*range(99)], "by": {str(i): i for i in range(99)}, "new": ["x"] * 99}
        for held in (torch.zeros(1), Loader({})):
            with pytest.raises(InvalidArgument, match=r"log(/3)?: the tree has"):
                restore(saved, {**like, "log": [0, 0, 0, held, *[0] * 95]})

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
            "  2 only in the given tree: f, b/e\n"
            "  leave them out of the tree or add them, or restore(..., strict=False) for what both have"
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

        assert "2 that differ: a: the tree has float32 [3, 5], the checkpoint has float32 [3, 4]" in str(caught.value)
        assert "b: the tree has float64 [2], the checkpoint has float32 [2]" in str(caught.value)
        assert like["c"].item() == 1

    @pytest.mark.parametrize(("tree", "like", "message"), [
        (torch.zeros(1), {"x": torch.zeros(1)}, "the tree has a value of type dict, the checkpoint has a tensor, float32 \\[1\\]"),
        ({"x": torch.zeros(1)}, torch.zeros(1), "the tree has a value of type torch.Tensor, the checkpoint has a dict"),
        (1.0, torch.zeros(1), "the tree has a value of type torch.Tensor, the checkpoint has a plain value"),
        ([torch.zeros(1)], {0: torch.zeros(1)}, "the tree has a value of type dict, the checkpoint has a list"),
        ({1, 2}, torch.zeros(1), "the tree has a value of type torch.Tensor, the checkpoint has a set"),
        (1, Loader({}), "the tree has a value of type .*Loader, the checkpoint has no state"),
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


@pytest.mark.parametrize("missing", [("torch",), ("torch", "numpy")])
def test_works_where_a_module_is_not_installed(missing):
    script = """if True:
        import sys, types
        sys.modules.update(dict.fromkeys(MISSING))
        package = types.ModuleType("cairn"); package.__path__ = [FOLDER]; sys.modules["cairn"] = package
        from cairn import _tree
        from cairn._tree import build, plan_restore, Stored, names
        from cairn._tree.writer import Names
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
    for word, meant in (("MISSING", missing), ("FOLDER", _tree.__file__.rpartition("/_tree/")[0])):
        script = script.replace(word, repr(meant))
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_pair_of_kept_values_has_its_own_text():
    values = [value for group in KEPT.values() if isinstance(group, (list, tuple)) for value in group]
    texts = [(flatten(value).text, value) for value in values]
    for (left, one), (right, other) in itertools.combinations(texts, 2):
        assert left != right or same(one, other) or left.endswith(('["t"]}', '["a"]}'))
