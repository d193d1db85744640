"""Trees of numpy arrays. This file and test_package.py import no torch: scripts/test-install runs them before it is there."""

from collections.abc import Callable
from typing import Any

import cairn
import numpy as np
import pytest

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]


def a_tree() -> dict[str, Any]:
    grid = np.arange(24.0).reshape(2, 3, 4)
    return {
        "dtypes": {dtype: np.arange(6).astype(dtype) for dtype in DTYPES},
        "layouts": [
            grid,
            grid.T,
            grid[:, ::-1, ::2],
            np.broadcast_to(grid[0], (5, 3, 4)),
            np.empty((0, 3)),
            np.array(7),
        ],
        "large": np.arange(3_000_000, dtype="f4"),  # More than the pool.
        "values": (np.float32(1.5), 3, "text", None, float("inf"), b"\x00"),
        "rng": cairn.RngState(),
    }


def blank() -> dict[str, Any]:
    tree = a_tree()
    tree["dtypes"] = {dtype: np.zeros_like(array) for dtype, array in tree["dtypes"].items()}
    tree["layouts"] = [np.zeros(array.shape, array.dtype) for array in tree["layouts"]]
    return tree | {"large": np.zeros_like(tree["large"]), "values": (np.float32(0), 0, "", 1, 0.0, b"")}


def expect_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
    if isinstance(expected, (list, tuple, dict)):
        assert len(found) == len(expected)
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            expect_same(found[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, strict=True)
    else:
        assert found == expected


@pytest.fixture
def saved(make: Callable[..., cairn.Checkpointer]) -> cairn.Checkpointer:
    checkpointer = make()
    checkpointer.save(1, a_tree()).wait()
    return checkpointer


def test_a_tree_is_restored_in_place_and_its_generators_go_on(make: Callable[..., cairn.Checkpointer]) -> None:
    checkpointer, tree, expected = make(), blank(), a_tree()
    arrays = [*tree["dtypes"].values(), *tree["layouts"], tree["large"]]
    checkpointer.save(1, expected).wait()
    drawn = np.random.rand(3)

    restored = checkpointer.restore(tree)

    assert np.random.rand(3).tolist() == drawn.tolist()
    assert all(
        one is other
        for one, other in zip(
            arrays, [*restored["dtypes"].values(), *restored["layouts"], restored["large"]], strict=True
        )
    )
    for key in ("dtypes", "layouts", "large", "values"):
        expect_same(restored[key], expected[key])


def test_a_tree_is_made_from_nothing(saved: cairn.Checkpointer) -> None:
    loaded, expected = saved.load(), a_tree()

    for key in ("dtypes", "layouts", "large", "values"):
        expect_same(loaded[key], expected[key])


def test_a_part_of_it_is_read_when_asked_for(saved: cairn.Checkpointer) -> None:
    lazy = saved.load(names="dtypes/*", lazy=True)

    assert len(lazy) == len(DTYPES)
    expect_same(lazy["dtypes/f4"].load(), np.arange(6, dtype="f4"))


def test_another_checkpointer_reads_it(saved: cairn.Checkpointer) -> None:
    saved.close()
    with cairn.Checkpointer(saved.root, host_memory="8MiB", chunk="1MiB", read_only=True) as reader:
        reader.verify()
        expect_same(reader.restore(blank())["layouts"], a_tree()["layouts"])


class Foreign:
    """An immutable array of another library, as JAX's are: it has __array__, or __dlpack__, or both."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array


class WithArray(Foreign):
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self._array


class WithDlpack(Foreign):
    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Table(WithArray):
    def to_numpy(self) -> np.ndarray[Any, Any]:
        return self._array


class Elsewhere(WithArray):
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise TypeError("it is on another device")


@pytest.mark.parametrize("kind", [WithArray, WithDlpack])
def test_another_library_s_arrays_are_kept_and_come_back_as_numpy_s(
    make: Callable[..., cairn.Checkpointer], kind: type[Foreign]
) -> None:
    tree = {"w": kind(np.arange(6.0).reshape(2, 3)), "inner": [kind(np.arange(3, dtype="i4"))], "n": 1}
    checkpointer = make()
    checkpointer.save(1, tree).wait()

    for found in (
        checkpointer.load(),
        checkpointer.restore(tree),
        checkpointer.restore({**tree, "w": np.zeros((2, 3))}),
    ):
        expect_same(found, {"w": np.arange(6.0).reshape(2, 3), "inner": [np.arange(3, dtype="i4")], "n": 1})
    with pytest.raises(cairn.InvalidArgument, match=r"w: the tree has F64 \[3\], the checkpoint has F64 \[2, 3\]"):
        checkpointer.restore({**tree, "w": kind(np.zeros(3))})


def test_what_only_looks_like_an_array_is_refused(make: Callable[..., cairn.Checkpointer]) -> None:
    checkpointer = make()
    with pytest.raises(cairn.InvalidArgument, match=r"t: a value of type .*Table cannot be kept"):
        checkpointer.save(1, {"t": Table(np.ones(2))})
    with pytest.raises(cairn.InvalidArgument, match=r"e: an array of type .*Elsewhere .*another device.*convert it"):
        checkpointer.save(1, {"e": Elsewhere(np.ones(2))})


def test_bfloat16_of_numpy_s_extension(make: Callable[..., cairn.Checkpointer]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {name: np.arange(8).astype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn")}
    checkpointer = make()
    checkpointer.save(1, arrays).wait()
    expect_same(checkpointer.load(), arrays)
