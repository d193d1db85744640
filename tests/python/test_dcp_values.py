"""cairn.dcp: what SavePlanner keeps without pickle, and dtypes that safetensors lacks."""

from __future__ import annotations

import collections
import datetime
import enum
import io
import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cairn
import numpy
import pytest
import safetensors
import torch
from cairn._tree import writer
from cairn._tree.values import AS_BYTES
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
Make = Callable[..., cairn.Checkpointer]


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Config:
    lr: float
    path: Path
    points: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.lr > 0  # Training code; loading calls none of it.


UTC = datetime.timezone.utc
KEPT = {
    "bytearray": bytearray(b"\0\xff"),
    "enum": Color.RED,
    "namedtuple": Point(1, (Color.RED,)),
    "dataclass": Config(0.5, Path("runs/é"), [Point(None, 2**80)]),
    "path": pathlib.PurePosixPath("/a/b"),
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "naive": datetime.datetime(2026, 10, 25, 2, 30, fold=1),
    "date": datetime.date(2026, 1, 2),
    "time": datetime.time(1, 2, 3, tzinfo=datetime.timezone(datetime.timedelta(hours=-5))),
    "timedelta": datetime.timedelta(days=-1, microseconds=7),
    "deque": collections.deque([1, "x", Color.RED], maxlen=5),
    "endless": collections.deque(),
    "range": range(0, 2**70, 3),
    "slice": slice(None, -1, 2),
}


def save(checkpointer: cairn.Checkpointer, how: str, state: dict[str, Any], planner: Any = None) -> None:
    writer = cairn.dcp.StorageWriter(checkpointer, 1)
    planner = planner or cairn.dcp.SavePlanner()
    if how == "sync":
        dcp.save(state, storage_writer=writer, planner=planner)
    else:
        response = dcp.async_save(state, storage_writer=writer, planner=planner)
        getattr(response, "upload_completion", response).result(60)


def load(checkpointer: cairn.Checkpointer, state: dict[str, Any], planner: Any = None) -> dict[str, Any]:
    planner = planner or cairn.dcp.LoadPlanner()
    dcp.load(state, storage_reader=cairn.dcp.StorageReader(checkpointer), planner=planner)
    return state


@pytest.mark.parametrize("how", ["sync", "async"])
def test_large_arrays_in_values_are_kept(make: Make, how: str) -> None:
    state = {"array": numpy.arange(8193.0), "within": (torch.ones(100_000), 3), "w": torch.ones(2)}
    checkpointer = make()
    save(checkpointer, how, state)

    found = load(checkpointer, {"array": None, "within": None, "w": torch.zeros(2)})

    assert numpy.array_equal(found["array"], state["array"])
    assert torch.equal(found["within"][0], state["within"][0]) and found["within"][1] == 3


def test_too_many_of_them_are_refused_with_their_path(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, small in (("_MOST", 30_000), ("_LONGEST", 20_000), ("_HEAVY", 1000)):
        monkeypatch.setattr(writer, limit, small)
    checkpointer = make()
    with pytest.raises(CheckpointException, match=r"log\.a: plain values of more than 30,000 bytes in all; "):
        save(checkpointer, "sync", {"w": torch.ones(2), "log": {"a": ["x" * 40] * 900, "b": 1}})
    save(checkpointer, "sync", {"w": torch.ones(2)})


def items_of(root: Path) -> Any:
    with safetensors.safe_open(next(root.glob("step-*/shard-*")), "pt") as file:
        return json.loads(json.loads(file.metadata()["cairn.values"])["dcp"]["json"])


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("loader", [cairn.dcp.LoadPlanner, dcp.DefaultLoadPlanner])
def test_they_come_back_equal_without_pickle(make: Make, root: Path, how: str, loader: Any) -> None:
    checkpointer = make()
    save(checkpointer, how, KEPT)

    got = load(checkpointer, dict.fromkeys(KEPT), loader())

    assert got == KEPT
    assert [type(value) for value in got.values()] == [type(value) for value in KEPT.values()]
    assert got["deque"].maxlen == 5
    assert got["naive"].fold == (loader is cairn.dcp.LoadPlanner)  # DCP's unpickles, in a protocol that drops it.
    assert items_of(root)["pickled"] == [] and items_of(root)["version"] == 2


def test_a_stream_comes_back_with_its_position(make: Make) -> None:
    stream = io.BytesIO(b"abcdef")
    stream.seek(2)
    checkpointer = make()
    save(checkpointer, "sync", {"s": stream})
    got = load(checkpointer, {"s": None})["s"]
    assert got.getvalue() == b"abcdef" and got.read() == b"cdef"


def test_tensors_within_them_are_kept_too(make: Make) -> None:
    checkpointer = make()
    array, tensor = numpy.arange(3.0), torch.ones(4, dtype=torch.complex128)
    save(checkpointer, "sync", {"p": Point(array, collections.deque([tensor])), "c": Config(1.0, Path(), [tensor])})  # type: ignore[list-item]
    got = load(checkpointer, {"p": None, "c": None})
    assert got["p"].x.tolist() == array.tolist() and torch.equal(got["p"].y[0], tensor)
    assert torch.equal(got["c"].points[0], tensor)


@pytest.mark.parametrize("loader", [cairn.dcp.LoadPlanner, dcp.DefaultLoadPlanner])
def test_the_callers_tensors_in_a_tuple_are_filled(make: Make, loader: Any) -> None:
    """DCP puts new ones into the state dict alone, and the weights in it stay as they are."""
    checkpointer = make()
    save(checkpointer, "sync", {"p": Point(torch.ones(3), (torch.ones(2), torch.ones(1)))})
    weight, moment, other = torch.nn.Parameter(torch.zeros(3)), torch.zeros(2), torch.zeros(1, dtype=torch.float64)
    load(checkpointer, {"p": Point(weight, (moment, other))}, loader())
    assert weight.tolist() == [1.0] * 3 and moment.tolist() == [1.0] * 2 and other.tolist() == [1.0]
    got = load(checkpointer, {"p": Point(weight, None)}, loader())["p"]  # A placeholder.
    assert [one.tolist() for one in got.y] == [[1.0, 1.0], [1.0]]
    assert load(checkpointer, {"p": None}, loader())["p"].x.tolist() == [1.0] * 3


X, Y = torch.zeros(6), torch.zeros(9)
HALF = torch.zeros(6, dtype=torch.bfloat16)
UNLIKE: dict[str, tuple[dict[str, Any], str]] = {
    "one tensor twice": ({"t": (X, X)}, '"t/0" and "t/1" share memory'),
    "a tensor beside it": ({"t": (X, torch.zeros(6)), "u": X}, '"u" and "t/0" share memory'),
    "overlapping": ({"t": (Y[:6], Y[3:])}, '"t/0" and "t/1" share memory'),
    "a namedtuple": ({"n": Point(X, X)}, '"n/0" and "n/1" share memory'),
    "elements that share": ({"t": (torch.zeros(1).expand(6), X)}, '"t/0" cannot be read into'),
    "narrower": ({"n": Point(X, HALF)}, 'of another dtype: n/1 .F32 in the checkpoint, BF16 here.*cast="allow"'),
    "narrower below": ({"d": {"x": (X, {"y": HALF})}}, "d.x/1/y .F32 in the checkpoint, BF16 here"),
    "another shape": ({"t": (X, torch.zeros(3))}, r"t/1 .saved \[6\], current \[3\]"),
    "shorter": ({"t": (X,)}, "1 only in the checkpoint: t/1"),
    "longer": ({"t": (X, Y[:6], Y[6:])}, "1 only in the given tree: t/2"),
    "a tensor for a number": ({"p": (X, Y)}, "p/0: the tree has .*Tensor, the checkpoint has a plain value"),
    "a tuple for a number": ({"s": (X,)}, "s: the tree has .*tuple, the checkpoint has a plain value"),
    "a tensor for an array": ({"a": (X,)}, "a/0 .a numpy array in the checkpoint, .*Tensor here"),
}


@pytest.fixture(scope="module")
def with_tuples(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def six(value: float) -> torch.Tensor:
        return torch.full((6,), value, dtype=torch.float32)

    state = {
        "t": (six(4), six(5)), "u": six(6), "n": Point(six(7), six(8)), "d": {"x": (six(9), {"y": six(10)})},
        "q": collections.deque([six(11), six(12)]), "p": (1, 2), "s": 3, "a": (numpy.ones(6),),
    }  # fmt: skip
    path = tmp_path_factory.mktemp("tuples") / "step-1"
    cairn.dcp.save(state, checkpoint_id=path, no_dist=True)
    cairn.dcp.checkpointer_for(path, no_dist=True).close()
    return path


@pytest.mark.parametrize("how", ["path", "reader", "torch's"])
@pytest.mark.parametrize("case", UNLIKE)
def test_tensors_within_values_are_refused_as_others_are(with_tuples: Path, case: str, how: str) -> None:
    state, said = UNLIKE[case]
    into = dict(state)
    with pytest.raises((cairn.InvalidArgument, CheckpointException), match=f"(?s){said}"):
        if how == "path":
            cairn.dcp.load(into, checkpoint_id=with_tuples, no_dist=True)
        else:
            reader = cairn.dcp.StorageReader(with_tuples.parent, 1)
            (cairn.dcp if how == "reader" else dcp).load(into, storage_reader=reader, no_dist=True)
    assert into == state and not (X.any() or Y.any() or HALF.any())


class Shade(enum.Enum):
    RED = 1
    DARK = 2


@pytest.mark.parametrize("value", [Shade.DARK, Shade.RED, (Shade.DARK, 1)])
def test_a_class_that_cannot_take_the_value_is_an_error(make: Make, value: Any) -> None:
    """It became None, or the member of that name."""
    checkpointer = make()
    saved = (Color.RED, 1) if isinstance(value, tuple) else Color.RED
    save(checkpointer, "sync", {"e": {"f": saved}, "w": torch.ones(2)})
    into = {"e": {"f": value}, "w": torch.zeros(2)}
    with pytest.raises(cairn.InvalidArgument, match=r'e\.f.*Shade, the checkpoint has "RED" of the Enum .*Color'):
        cairn.dcp.load(into, storage_reader=cairn.dcp.StorageReader(checkpointer))
    assert into["e"] == {"f": value} and not into["w"].any()


def test_tied_tensors_of_values_are_read_into_tied_ones(make: Make) -> None:
    checkpointer, one = make(), torch.ones(6)
    save(checkpointer, "sync", {"t": (one, one), "u": one, "same": (torch.ones(6),)})
    target = torch.zeros(6)
    load(checkpointer, {"t": (target, target), "u": target}, cairn.dcp.LoadPlanner())
    assert target.tolist() == [1.0] * 6
    target.zero_()  # Written twice, as by two ranks.
    load(checkpointer, {"t": (target, None), "same": (target,)}, cairn.dcp.LoadPlanner())
    assert target.tolist() == [1.0] * 6


@pytest.mark.parametrize("loader", [cairn.dcp.LoadPlanner, dcp.DefaultLoadPlanner])
def test_values_go_to_keys_that_are_no_text(make: Make, loader: Any) -> None:
    """DCP's planners put them beside these, at their text: an optimizer's number of steps would stay as it is."""
    checkpointer = make()
    state = {"state": {0: {"step": 5, "sums": [0.5]}, 12: 3, True: {"deep": {None: "x"}}, "1": 7}}
    save(checkpointer, "sync", state)
    into = {"state": {0: {"step": 1, "sums": []}, 12: 0, True: {"deep": {None: ""}}, "1": 0}}
    assert load(checkpointer, into, loader()) == state


def test_keys_stay_what_they_are_without_flattening(make: Make) -> None:
    checkpointer = make()
    state: dict[str, Any] = {"a": {"by": {0: 5, "t": torch.ones(1)}, "empty": [{}, {None: 1}]}}
    save(checkpointer, "sync", state, cairn.dcp.SavePlanner(flatten_state_dict=False))
    got = load(checkpointer, {"a": None}, cairn.dcp.LoadPlanner(flatten_state_dict=False))
    assert got == state


def test_dcps_planner_pickles_none_of_them(make: Make, root: Path) -> None:
    checkpointer = make()
    save(checkpointer, "sync", KEPT, dcp.DefaultSavePlanner())
    assert items_of(root)["pickled"] == []
    assert load(checkpointer, dict.fromkeys(KEPT), dcp.DefaultLoadPlanner()) == KEPT


def test_what_would_not_come_back_equal_is_refused_by_name(make: Make) -> None:
    @dataclass
    class Local:
        x: int

    more = Config(1.0, Path())
    object.__setattr__(more, "cache", 1)
    checkpointer = make()
    for value, why in (
        (Local(1), "Local cannot be kept: its class is not found by its name"),
        (more, "Config cannot be kept: it has more than its fields: cache"),
        (Closes(1), "Closes cannot be kept: its class has __del__"),
        (Sets(), "Sets cannot be kept: its field x is a property"),
        (slice(1.5), "a slice cannot be kept, only of int and None"),
        (datetime.datetime(2026, 1, 1, tzinfo=Zone()), "with a tzinfo of Zone cannot be kept"),
    ):
        with pytest.raises(CheckpointException, match=f"v/0: .*{why}"):
            save(checkpointer, "sync", {"v": (value,)})
    assert checkpointer.steps() == []


class Zone(datetime.tzinfo):
    def utcoffset(self, _: Any) -> datetime.timedelta:
        return datetime.timedelta(0)


@dataclass
class Closes:
    x: Any

    def __del__(self) -> None:
        closed.append(self.x)


@dataclass
class Sets:
    x: Any = 1


Sets.x = property(lambda _: 1, lambda _, value: closed.append(value))


@dataclass(frozen=True)
class Hashed:
    x: Any

    def __hash__(self) -> int:
        closed.append(self.x)
        return 1


class Pair(collections.namedtuple("Pair", "x")):
    __slots__ = ()

    def __hash__(self) -> int:
        closed.append(self.x)
        return 1


class Code(enum.Enum):
    A = 1
    B = 2

    def __hash__(self) -> int:
        closed.append(self.name)
        return 1


closed: list[Any] = []


@pytest.mark.parametrize(
    ("node", "kind", "message"),
    [
        (
            ["enum", "not_yet_imported:Color", "RED"],
            cairn.InvalidArgument,
            "its class not_yet_imported.Color is not imp",
        ),
        (["dataclass", "not_yet_imported:X", {}], cairn.InvalidArgument, "is not imported here"),
        (["namedtuple", "not_yet_imported:X", "x", 1], cairn.InvalidArgument, "is not imported here"),
        (["dataclass", "subprocess:Popen", {"args": "true"}], cairn.InvalidArgument, "Popen is no dataclass here"),
        (["dataclass", f"{__name__}:Config", {"lr": 1}], cairn.InvalidArgument, "with the fields lr; it has lr, pa"),
        (["dataclass", f"{__name__}:Closes", {"x": "evil"}], cairn.InvalidArgument, "its class has __del__"),
        (["dataclass", f"{__name__}:Sets", {"x": "evil"}], cairn.InvalidArgument, "its field x is a property"),
        (["dataclass", f"{__name__}:Config.__class__", {}], cairn.InvalidArgument, "is not imported here"),
        (["range", 1, 2, 0], cairn.Corrupt, "must not be zero"),
        (["time", "datetime", "yesterday", 0], cairn.Corrupt, "Invalid isoformat"),
        (["path", "WindowsPath", "x"], cairn.Corrupt, "expected a value"),
        (["bytesio", "", 10**30], cairn.Corrupt, "the checkpoint's tree"),
        (["deque", 1, 2, 3], cairn.Corrupt, "expected a value"),
        (["set", ["dataclass", f"{__name__}:Hashed", {"x": 1}]], cairn.Corrupt, "a dataclass in a set"),
        (["set", ["tuple", ["dataclass", f"{__name__}:Hashed", {"x": 1}]]], cairn.Corrupt, "a dataclass in a set"),
        (["set", ["enum", f"{__name__}:Code", "A"]], cairn.InvalidArgument, "whose hash is code"),
        (["set", ["tuple", "tuple", ["enum", f"{__name__}:Code", "A"]]], cairn.InvalidArgument, "whose hash is code"),
        (["frozenset", ["namedtuple", f"{__name__}:Pair", "x", 1]], cairn.InvalidArgument, "whose hash is code"),
        (["timedelta", 10**12, 0, 0], cairn.Corrupt, "the checkpoint's tree"),
    ],
)
def test_no_file_makes_code_run(tmp_path: Path, monkeypatch: Any, node: Any, kind: Any, message: str) -> None:
    from cairn._dcp.stored import StoredItems

    closed.clear()
    (tmp_path / "not_yet_imported.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(kind, match=message):
        StoredItems({}, {}, {"v": node}, set(), {}).value("v", {}, {(1, 2)})
    assert closed == []


def test_what_has_a_hash_of_its_own_comes_back_in_a_set_only_if_its_class_is_given(make: Make) -> None:
    from cairn._dcp.stored import StoredItems

    with pytest.raises(cairn.InvalidArgument, match=r"s: .*Code cannot be kept in a set, because its hash is code"):
        make().save(1, {"s": {Code.A}})
    node = ["set", ["enum", f"{__name__}:Code", "A"]]  # As an older version wrote it.
    assert StoredItems({}, {}, {"v": node}, set(), {}).value("v", {}, {Code.B}) == {Code.A}


def test_a_dataclass_in_a_set_is_refused_by_name(make: Make) -> None:
    checkpointer = make()
    for value in ({Config(1.0, Path(), ())}, {(1, Config(1.0, Path(), ()))}):  # type: ignore[arg-type]
        with pytest.raises(CheckpointException, match="v: tensors, objects and dataclasses cannot be kept in a set"):
            save(checkpointer, "sync", {"v": value})
        with pytest.raises(
            cairn.InvalidArgument, match="m/v: tensors, objects and dataclasses cannot be kept in a set"
        ):
            checkpointer.save(1, {"m": {"v": value}})
    assert checkpointer.steps() == []


def test_a_dataclass_that_has_changed_since_is_not_called_corrupt(make: Make, monkeypatch: Any) -> None:
    state = {"w": torch.ones(2), "config": Config(0.5, Path("x"))}
    checkpointer = make()
    save(checkpointer, "sync", state)
    checkpointer.save(2, state).wait()
    changed = make_dataclass("Config", [("lr", float), ("warmup", int, 3)])
    changed.__module__ = __name__
    monkeypatch.setitem(globals(), "Config", changed)
    tree = {"w": torch.zeros(2), "config": changed(0.1)}
    message = rf"config(/'~v')?: .*{__name__}:Config with the fields lr, path, points.* has lr, warmup"

    for more in ({}, {"strict": False}, {"fall_back": True}):
        with pytest.raises(cairn.InvalidArgument, match=message):
            checkpointer.restore(tree, **more)
    for found in (checkpointer.load(), checkpointer.restore({"w": None, "config": None})):
        assert (found["config"].lr, found["config"].points, found["w"].tolist()) == (0.5, [], [1, 1])
    assert checkpointer.load(names="w")["w"].tolist() == [1, 1]
    with pytest.raises(CheckpointException, match=message) as raised:
        dcp.load(tree, storage_reader=cairn.dcp.StorageReader(checkpointer, 1), planner=cairn.dcp.LoadPlanner())
    assert type(raised.value.failures[0][0]) is cairn.InvalidArgument


def test_a_changed_dataclass_among_plain_values_is_refused_too(make: Make, monkeypatch: Any) -> None:
    checkpointer = make()
    checkpointer.save(1, {"w": torch.ones(2), "configs": [Config(0.5, Path("x"))]}).wait()
    changed = make_dataclass("Config", [("lr", float)])
    changed.__module__ = __name__
    monkeypatch.setitem(globals(), "Config", changed)

    with pytest.raises(cairn.InvalidArgument, match="configs/0: the checkpoint has a dataclass .*; it has lr$"):
        checkpointer.restore({"w": torch.zeros(2), "configs": [changed(0.1)]})


def test_a_class_is_taken_from_the_state_to_load_into(make: Make) -> None:
    from cairn._dcp.stored import StoredItems

    node = ["dataclass", "elsewhere:Config", {"lr": 0.5, "path": None, "points": ["list"]}]
    got = StoredItems({}, {}, {"v": node}, set(), {}).value("v", {}, Config(1.0, Path()))
    assert type(got) is Config and got.lr == 0.5


DTYPES = [name for name in AS_BYTES if hasattr(torch, name)]


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).contiguous().view(torch.uint8).tolist())


@pytest.mark.cases
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_that_safetensors_lacks_are_kept_as_bytes(make: Make, root: Path, name: str) -> None:
    dtype = getattr(torch, name)
    size = torch.empty((), dtype=dtype).element_size()
    want = torch.randint(0, 100, (3, 4 * size), dtype=torch.uint8).view(dtype)
    state = {"w": want, "x": torch.ones(2), "one": want[0, 0], "value": (want[1],)}
    checkpointer = make()
    unsized = "int" in name or "bits" in name
    for how in ("sync", "async", "plain"):
        if unsized and how != "plain":
            with pytest.raises(
                CheckpointException, match=rf'Unsupported: "w": .* a tensor of torch\.{name}: give it as'
            ):
                save(checkpointer, how, state)
            continue
        if how == "plain":
            checkpointer.save(2, state).wait()
        else:
            save(checkpointer, how, state)
        with safetensors.safe_open(next(root.glob(f"step-*{2 if how == 'plain' else 1}/shard-*")), "pt") as file:
            raw = file.get_tensor("w")
            assert raw.dtype == torch.uint8 and list(raw.shape) == ([3, 4, size] if size > 1 else [3, 4])
            assert bits(raw) == bits(want)

        got: Any = {key: torch.empty_like(value) for key, value in state.items() if key != "value"}  # type: ignore[arg-type]
        got["value"] = (torch.empty_like(want[1]),) if how == "plain" else None
        if how == "plain":
            checkpointer.restore(got)
            loaded = checkpointer.load()
            lazy = checkpointer.load(lazy=True)["w"]
            assert (lazy.dtype, lazy.shape, bits(lazy.load())) == (name, (3, 4), bits(want))
            assert loaded["w"].dtype == dtype and bits(loaded["w"]) == bits(want)
            with pytest.raises(cairn.InvalidArgument, match=f"w: the tree has U8 .*, the checkpoint has {name}"):
                checkpointer.restore({**got, "w": torch.zeros(raw.shape, dtype=torch.uint8)})
        else:
            load(checkpointer, got)
            checkpointer.remove(1)
        assert got["w"].dtype == got["value"][0].dtype == dtype
        assert [bits(got["w"]), bits(got["one"]), bits(got["value"][0])] == [
            bits(want),
            bits(want[0, 0]),
            bits(want[1]),
        ]


def test_narrow_integers_whose_elements_share_memory(make: Make) -> None:
    narrow = torch.arange(2, dtype=torch.uint8).view(torch.int4)[1:].expand(3)
    checkpointer = make()

    checkpointer.save(1, {"w": narrow}).wait()

    loaded = checkpointer.load()["w"]
    assert loaded.dtype == torch.int4 and loaded.view(torch.uint8).tolist() == [1, 1, 1]


def test_numpys_complex128_and_strided_ones(make: Make) -> None:
    want = {
        "n": numpy.arange(6).reshape(2, 3) * (1 + 2j),
        "t": (torch.arange(6).reshape(2, 3) * (1 + 2j)).to(torch.complex128).t().conj(),
    }
    checkpointer = make()
    checkpointer.save(1, want).wait()
    got = checkpointer.restore({"n": numpy.zeros((2, 3), complex), "t": torch.zeros(3, 2, dtype=torch.complex128)})
    assert numpy.array_equal(got["n"], want["n"]) and torch.equal(got["t"], want["t"].resolve_conj())
