"""What no tree may hold, and texts that no tree has written."""

import collections
import json
import subprocess
import sys

import numpy
import pytest
import torch
from cairn._errors import Corrupt, InvalidArgument, NotFound, Unsupported
from cairn._tree import build, names, plan_restore, writer
from flat import flatten
from trees import Flags, Level, Loader, describe, empty


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


class Tagged(str):
    def __init__(self, *_):
        self.tag = 1


class Attributes(dict):
    __getattr__ = dict.__getitem__


class Failing(Loader):
    def state_dict(self):
        raise RuntimeError("theirs")


class Unreadable:
    def __array__(self, *_, **__):
        raise RuntimeError("theirs")

    @property
    def shape(self):
        raise RuntimeError("its shape")

    dtype = shape


class Pair(collections.namedtuple("Pair", "a b")):
    """With a `__dict__`."""


def noted(value):
    value.note = 1
    return value


class TestRefused:
    @pytest.mark.parametrize(("value", "message"), [
        (print, r"a value of type builtin_function_or_method cannot be kept; a tree holds tensors, .* load_state_dict"),
        (object(), r"a value of type object cannot be kept"),
        (torch.nn.Linear, r"a value of type type cannot be kept"),
        (torch.Generator(), r"type torch\S*Generator cannot be kept; keep its get_state\(\), or cairn.RngState"),
        (torch.zeros(1).as_subclass(Wrapped), r"Wrapped cannot be kept; of tensors only torch.Tensor and"),
        (torch.zeros(2).to_sparse(), r"a torch.sparse_coo tensor cannot be kept"),
        (torch.eye(2).to_sparse_csr(), r"a torch.sparse_csr tensor cannot be kept"),
        (torch.zeros(2, device="meta"), r"a meta tensor cannot be kept, .* to_empty\(device=\.\.\.\)"),
        (torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), r"a quantized tensor cannot be kept"),
        (torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]), r"a nested tensor cannot be kept"),
        (numpy.array([None]), r"a numpy array of dtype object cannot be kept, only bool, int"),
        (numpy.array(["a"]), r"a numpy array of dtype <U1 cannot be kept"),
        (numpy.zeros(1, [("a", "f4")]), r"a numpy array of dtype \[\('a', '<f4'\)\] cannot be kept"),
        (numpy.zeros(1, ">f4"), r"a numpy array of dtype >f4 cannot be kept, .* this machine's byte order"),
        (numpy.zeros(1).view(numpy.recarray), r"recarray cannot be kept; numpy.array"),
        (Tagged("a"), r"Tagged cannot be kept; .*str\(\.\.\.\)"),
        pytest.param(Attributes(a=1), r"Attributes cannot be kept; .* convert it with dict\(", id="attributes"),
        ("\ud800", r"a str with a lone surrogate is not Unicode text; use bytes"),
        (collections.defaultdict(list), r"defaultdict cannot be kept; .* convert it with dict\(\.\.\.\)"),
        (type("MyInt", (int,), {})(1), r"MyInt cannot be kept; .* int\(\.\.\.\)"),
        (type("MyDict", (dict,), {})(), r"MyDict cannot be kept; .* dict\(\.\.\.\)"),
        (type("MyBytes", (bytearray,), {})(), r"MyBytes cannot be kept; .* bytearray\(\.\.\.\)"),
        (noted(Pair(1, 2)), r"Pair has attributes that would be lost: note; keep them beside it"),
        (noted(collections.OrderedDict()), r"OrderedDict has attributes that would be lost: note"),
        (Unreadable(), r"an array of type \S*Unreadable does not become numpy's \(theirs\): convert it first"),
        (Flags.A | Flags.B, r"Flags cannot be kept; of a Flag only single members"),
        ({torch.zeros(1)}, r"tensors, objects and dataclasses cannot be kept in a set"),
        ({(torch.zeros(1), "a")}, r"tensors, objects and dataclasses cannot be kept in a set"),
        ({(Loader({}),)}, r"tensors, objects and dataclasses cannot be kept in a set"),
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

    @pytest.mark.parametrize("one", ["x", b"x"], ids=["str", "bytes"])
    def test_what_is_too_long_is_refused_with_its_path(self, one):
        with pytest.raises(InvalidArgument, match=r"^m/log: .* with a length of 67,108,865; .* keep it as a tensor"):
            flatten({"m": {"log": one * ((64 << 20) + 1)}})

    def test_lists_that_are_too_long_are_refused_with_their_path(self, monkeypatch):
        for limit, small in (("_MOST", 5000), ("_LONGEST", 4000), ("_HEAVY", 1000)):
            monkeypatch.setattr(writer, limit, small)
        for value in ([2**62] * 300, [(2**62,)] * 300):
            with pytest.raises(InvalidArgument, match=r"^m/log: plain values of more than 5,000 bytes in all; "):
                flatten({"m": {"log": value}, "more": ["x"] * 99})

    @pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, torch.func.functionalize])
    def test_a_tensor_of_a_transformed_function_is_refused_with_its_path(self, transform):
        with pytest.raises(InvalidArgument, match=r"^m/x: .*torch.func's .* save outside"):
            transform(lambda x: flatten({"m": {"x": x}}))(torch.ones(2))

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="errors take notes from Python 3.11 on")
    def test_an_error_of_an_objects_own_code_gets_the_path(self):
        with pytest.raises(RuntimeError, match="theirs") as caught:
            flatten({"m": [Failing({})]})
        assert caught.value.__notes__ == ["cairn: state_dict() of a value of type test_tree_refused.Failing at m/0"]

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
        '["t",1]', "Infinity", "-Infinity", '-["t"]',
        '["dtype","Tensor"]', '["dtype","no_such"]', '["device","???"]', '["size","a"]', "[" * 100 + "]" * 100,
        '{"a":["what"]}',
        '["complex","a",1]', '["counter",1]', '["float","0x1"]', f'["deque",{10**30}]', '["namedtuple","X","a,b",1]',
        '["namedtuple","X","\ufb01 fi",1,2]', '["dict",1,1,true,2]', '["packed","list","<i4","AAAA"]',
        '["packed","set","<i4","AAAAAA=="]', '["packed","list","<u4","AAAAAA=="]', '["packed","list","<i4",1]',
        '{"a":["packed","list","<f8","*"]}', '["packed"]',
    ])  # fmt: skip
    def test_a_node_that_no_writer_makes_is_corrupt(self, node):
        with pytest.raises(Corrupt, match="^the checkpoint's tree"):
            build(f'{{"version":4,"tree":{node}}}', {})

    def test_no_dtype_imports_a_module(self):
        # In a process of its own: the suite may have imported it already.
        code = """
import sys, torch
from cairn import Corrupt
from cairn._tree import build
before = {*sys.modules}
for name in ("_inductor", "onnx", "_export", "compiler"):
    try:
        build('{"version":1,"tree":["dtype","%s"]}' % name, {})
    except Corrupt:
        continue
    sys.exit("not refused")
sys.exit(", ".join({*sys.modules} - before) or None)
"""
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.parametrize("head", ["set", "frozenset", "dict", "counter"])
    def test_keys_that_are_made_to_collide_are_corrupt(self, head):
        keys = [["int", hex(k * sys.hash_info.modulus)] for k in range(1, 2001)]
        nodes = keys if "set" in head else [node for key in keys for node in (key, 0)]
        with pytest.raises(Corrupt, match="more than 1000 keys have the same hash"):
            build(json.dumps({"version": 1, "tree": [head, *nodes]}), {})

    def test_a_large_set_is_none_of_these(self):
        tree = {"many": {*range(5000)}, "names": {str(i) for i in range(5000)}, "dict": dict.fromkeys(range(5000), 0)}
        text = flatten(tree).text
        assert names(text) == [] and build(text, {}) == tree

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":"1","tree":0}', '{"version":1}', "[" * 100_000])
    def test_a_text_that_is_no_tree_is_corrupt(self, text):
        with pytest.raises(Corrupt, match="^the checkpoint's tree"):
            names(text)

    def test_a_newer_version_is_unsupported(self):
        with pytest.raises(Unsupported, match="version 5, this Cairn reads 4"):
            names('{"version":5,"tree":0}')

    def test_a_tensor_that_is_not_there(self):
        text = flatten({"w": torch.zeros(1)}).text
        with pytest.raises(NotFound, match='no tensor "w"'):
            build(text, {})
        with pytest.raises(Corrupt, match='tensor "w": the checkpoint.s tree names it'):
            plan_restore(text, {}, {"w": torch.zeros(1)}, describe, empty)
