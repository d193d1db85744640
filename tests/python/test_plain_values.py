"""Long lists, dicts and texts beside the tensors: kept exactly, in the file's data and not in its header."""

from __future__ import annotations

import collections
import json
import math
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import cairn
import pytest
import safetensors
import torch
from cairn import _core
from cairn._errors import InvalidArgument
from cairn._ranks.replicas import tree_of
from cairn._tree import build, codec, writer
from flat import flatten
from jobs import COMMAND
from trees import same

SHARED = "x" * 5000  # One text that is in a tree many times.
STEP = "step-00000000000000000001"
TREE = {
    "model": {"w": torch.arange(5.0)},
    "seen": [*range(2**33, 2**33 + 200_000)],
    "words": [f"word {i} \u00e9" for i in range(100_000)],
    "records": [{"id": i, "score": i / 3, "tags": ("a", None), "ok": True} for i in range(20_000)],
}


def saved(root: Path, tree: Any) -> Path:
    with cairn.Checkpointer(root, host_memory="32MiB") as checkpointer:
        checkpointer.save(1, tree).wait()
    return root / STEP


def read_back(value: Any) -> Any:
    """By a walk that takes all at once, and, beside a tensor, by one that takes it apart."""
    flat = flatten([value, torch.zeros(1)])
    alone, beside = build(flatten(value).text, {}), build(flat.text, flat.tensors)[0]
    assert same(alone, beside)
    return alone


@pytest.mark.parametrize(
    "value",
    [
        [0.1, -0.0, 1e300, 5e-324, 2.0**53, 1e16, 1e15, 123456.789, -1e-5, 0.0001],
        [*range(-1100, 1100), 2**31 - 1, -(2**31)],
        [*range(1100), 2**31],
        [2**63 - 1, -(2**63)] * 600,
        [2**63, *range(1100)],
        [True, *range(1100)],
        [1.0, *range(1100)],
        [True, False] * 600,
        [math.inf, -math.inf, -0.0] * 400,
        ["", "\0", "\x1f\x7f", '"\\/', "\ud7ff\ue000\uffff\U00010000\U0010ffff", "\u00ff", "\u0100", "a" * 70_000],
        [b"", b"\0", b"ab", b"abc", bytes(range(256)) * 10] * 300,
        {"a": [{"b": ({}, [], ())}] * 40, "": {}, "\u00e9": {"\n": None}},
        {i: str(i) for i in range(-600, 600)},
        {None: 1, True: 2, False: 3, 5: {7: (8,)}, "5": []},
        {2**60: 1, -(2**60): 2, 2**61 - 1: 3, 2**62: 4},
        [["packed"], ["packed", "list", "<i4", "AAAA"], ["t"], ["list", "tuple"], {"t": ["t"]}],
        collections.deque(range(3000), maxlen=3000),
        [float.fromhex(f"{'-' * (i % 2)}0x1.{i:013x}p{i % 2000 - 1000}") for i in range(0, 2**52, 2**52 // 3000)],
    ],
    ids=lambda value: repr(value)[:40],
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert same(read_back(value), value)


def test_random_trees_come_back_as_they_were() -> None:
    chosen = random.Random(7)
    leaves: list[Any] = [None, True, 7, -(2**40), 2**70, 0.5, math.inf, "x", '\u00e9"', "t", b"y"]

    def tree(levels: int) -> Any:
        if levels == 0 or chosen.random() < 0.3:
            return chosen.choice(leaves)
        children = [tree(levels - 1) for _ in range(chosen.randrange(5))]
        as_keys = [chosen.choice([f"k{i}", i, '"', "_orig_mod.a"]) for i in range(len(children))]
        return chosen.choice([list, tuple, lambda all_of: dict(zip(as_keys, all_of, strict=True))])(children)

    for _ in range(300):
        value = [tree(5)]
        assert same(read_back(value), value)


def test_not_a_bit_of_a_number_is_lost() -> None:
    words = [0x7FF8000000000001, 0xFFF0DEADBEEF0001, 0x7FF0000000000000, 1, 0x8000000000000000] * 300
    numbers = [struct.unpack("<d", struct.pack("<Q", word))[0] for word in words]
    assert [struct.unpack("<Q", struct.pack("<d", one))[0] for one in read_back(numbers)] == words


def test_what_was_read_is_the_callers_own() -> None:
    value = {"a": {"b": 1, "c": [1, 2]}, "d": [[3]] * 2}
    text = flatten(value).text
    first, second = build(text, {}), build(text, {})
    first["a"]["b"] = first["a"]["c"][0] = first["d"][0][0] = 9
    assert (second, first["d"]) == (value, [[9], [3]])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([{"a": i} for i in range(2000)] + [{"a": {1}.pop}], "m/2000/a"),
        ({"big": [*range(5000)], "x": ["\ud800"]}, "m/x/0"),
        ([[0.5] * 2000, [float] * 2], "m/1/0"),
        ([{2**5000: 1}], "m/0"),
        ([{1.5: 1}], "m/0"),
    ],
)
def test_what_cannot_be_kept_among_many_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{path}: "):
        flatten({"m": value})


def test_a_list_that_holds_itself_twice_is_refused_at_once() -> None:
    value: list[Any] = []
    value += [value, value]
    with pytest.raises(InvalidArgument, match="^m/0: .* holds itself"):
        flatten({"m": value})


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"m": {"a": [*range(900)], "log": ["x" * 40] * 900}, "n": ["y"] * 99}, "m/log"),
        ({"m": {"w": torch.zeros(1), "log": [{"a": "x" * 1500}] * 40}}, "m/log"),
        ({"w": torch.zeros(1), "m": [{"text": "x" * 50_000}]}, "m/0/text"),
        ({"w": torch.zeros(1), "m": {"text": "x" * 50_000}, "t": "z" * 3000}, "m/text"),
        ({"m": {"few": [SHARED] * 2, "log": [SHARED] * 100_000}, "w": torch.zeros(1)}, "m/log"),
        ({"w": torch.zeros(1), "m": [{"w": torch.zeros(1), "text": SHARED} for _ in range(9)]}, "the tree"),
    ],
)
def test_too_many_plain_values_are_refused_with_their_path(
    monkeypatch: pytest.MonkeyPatch, tree: Any, path: str
) -> None:
    for limit, small in (("_MOST", 30_000), ("_LONGEST", 20_000), ("_HEAVY", 1000)):
        monkeypatch.setattr(writer, limit, small)
    monkeypatch.setattr(writer, "_check_length", lambda *_: None)
    with pytest.raises(InvalidArgument, match=rf"^{path}: plain values of more than 30,000 bytes in all; "):
        flatten(tree)


def test_their_text_ends_where_it_is_too_long() -> None:
    for value in ([SHARED] * 10**7, [[SHARED] * 100] * 10**6, {"a": 10**7 * [2.5]}, (SHARED, 10**7 * [{}])):
        assert _core.plain_text(value, 9, 10_000) == ("", False)
    two = f'["list","{SHARED}","{SHARED}"]'
    assert _core.plain_text([SHARED] * 2, 9, len(two)) == (two, False)
    assert _core.plain_text([SHARED] * 2, 9, len(two) - 1) == ("", False)


def test_long_ones_are_in_the_data_of_a_file_that_others_open(tmp_path: Path) -> None:
    folder = saved(tmp_path, TREE)

    assert json.loads((folder / "manifest.json").read_text())["required_features"] == ["long_values"]
    with open(folder / "shard-00000.safetensors", "rb") as file:
        assert struct.unpack("<Q", file.read(8))[0] < 8192
    with safetensors.safe_open(folder / "shard-00000.safetensors", "pt") as file:
        assert {*file.keys()} == {"model/w", "cairn.values/tree"}
        assert torch.equal(file.get_tensor("model/w"), TREE["model"]["w"])
        text = bytes(file.get_tensor("cairn.values/tree").numpy()).decode()
    assert [*json.loads(text)["tree"]] == [*TREE]
    with cairn.Checkpointer(tmp_path, read_only=True) as reader:
        assert same(reader.load(), TREE)
        assert [*reader.load(names="model/*")] == ["model/w"]
        lazy = reader.load(lazy=True)
        assert lazy["words"] == TREE["words"] and torch.equal(lazy["model"]["w"].load(), TREE["model"]["w"])
        into = {"model": {"w": torch.zeros(5)}, "seen": None, "words": [], "records": [{"id": 1}]}
        assert same(reader.restore(into), TREE)
        reader.verify()


def test_short_ones_need_no_reader_that_knows_of_long_ones(tmp_path: Path) -> None:
    folder = saved(tmp_path, {"w": torch.zeros(1), "words": ["x"] * 1000})
    assert json.loads((folder / "manifest.json").read_text())["required_features"] == []


def test_a_flipped_bit_in_one_is_found_and_named(tmp_path: Path) -> None:
    path = saved(tmp_path, TREE) / "shard-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with cairn.Checkpointer(tmp_path, read_only=True) as reader:
        for read in (reader.load, reader.verify, lambda: reader.restore(TREE)):
            with pytest.raises(cairn.Corrupt, match='value "tree": expected the digest|checksum'):
                read()


def test_the_command_knows_them(tmp_path: Path) -> None:
    for name, tree in (("a", TREE), ("b", {**TREE, "seen": []})):
        saved(tmp_path / name, tree)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([COMMAND, *arguments], check=False, capture_output=True, text=True)

    shown = run("show", tmp_path / "a")
    assert "model/w" in shown.stdout and "cairn.values" not in shown.stdout and "rank 0: tree = " in shown.stdout
    told = json.loads(run("show", tmp_path / "a", "--json").stdout)
    assert [one["name"] for one in told["tensors"]] == ["model/w"]
    assert [*told["values"][0]["tree"]["tree"]] == [*TREE]
    assert run("verify", tmp_path / "a").returncode == 0
    assert run("diff", tmp_path / "a", tmp_path / "b").returncode == 0  # It compares tensors.
    done = run("export", tmp_path / "a", "--out", tmp_path / "out.safetensors")
    assert done.returncode == 0, done.stderr
    with safetensors.safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert [*file.keys()] == ["model/w"]


def test_cairn_dcp_keeps_them_alike(tmp_path: Path) -> None:
    pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
    state = {"w": torch.arange(5.0), **{name: TREE[name] for name in ("seen", "words")}}
    cairn.dcp.save(state, checkpoint_id=tmp_path / "step-1", no_dist=True)

    found: dict[str, Any] = {"w": torch.zeros(5), "seen": None, "words": None}
    cairn.dcp.load(found, checkpoint_id=tmp_path / "step-1", no_dist=True)

    assert same(found, state)
    assert json.loads((tmp_path / STEP / "manifest.json").read_text())["required_features"] == ["long_values"]
    with safetensors.safe_open(tmp_path / STEP / "shard-00000.safetensors", "pt") as file:
        assert {*file.keys()} == {"w", "cairn.values/dcp"}


def test_a_save_beside_them_keeps_what_is_frozen(tmp_path: Path) -> None:
    tree = {"base": torch.ones(600_000), "w": torch.zeros(3), "seen": TREE["seen"]}
    with cairn.Checkpointer(tmp_path, host_memory="32MiB", keep_last=3) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {**tree, "step": step}, frozen=["base"]).wait()
        assert json.loads((tmp_path / f"step-{2:020}/manifest.json").read_text())["required_features"] == [
            "kept",
            "long_values",
        ]
        assert same(checkpointer.load(2), {**tree, "step": 2})
        assert same(checkpointer.load(1), {**tree, "step": 1})


def test_nothing_is_walked_one_by_one() -> None:
    """The walks in Python take microseconds for each value."""
    calls = collections.Counter[str]()
    tree = {"w": torch.zeros(1), **{key: TREE[key] for key in ("seen", "words", "records")}}

    class Counting(writer.Writer):
        def node(self, value: Any, name: str) -> str:
            calls["node"] += 1
            return super().node(value, name)

    original, codec.Writer = codec.Writer, Counting  # type: ignore[misc]
    try:
        text = flatten(tree).text
    finally:
        codec.Writer = original  # type: ignore[misc]
    assert calls["node"] < 20
    assert same(build(text, {"w": tree["w"]}), tree)


def test_a_packed_list_is_padded_at_its_end_alone() -> None:
    """Each piece that is decoded was taken for the last, and what was missing in the list ended the process."""
    digits = "A" * 16_382 + "==" + "A" * 16_384
    with pytest.raises(cairn.Corrupt):
        build(f'{{"version":4,"tree":["packed","list","<f8","{digits}"]}}', {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[1]", cairn.Corrupt),
        ("{", cairn.Corrupt),
        ('{"version":4,"tree":' + '["list",' * 5000 + "null" + "]" * 5000 + "}", cairn.Corrupt),
        ('{"version":99,"tree":null}', cairn.Unsupported),
    ],
    ids=["list", "cut off", "deep", "later version"],
)
def test_a_text_for_other_ranks_is_checked_like_ones_own(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        tree_of(text)


def test_plain_values_have_the_names_of_a_compiled_tree(tmp_path: Path) -> None:
    with cairn.Checkpointer(tmp_path / "run", host_memory="32MiB") as checkpointer:
        checkpointer.save(1, {"w": torch.zeros(1), "h": {"fc": {"lr": 1}}}).wait()
        found = checkpointer.restore({"w": torch.zeros(1), "h": {"_orig_mod.fc": {"lr": 2}}})

    assert found["h"] == {"_orig_mod.fc": {"lr": 1}}
