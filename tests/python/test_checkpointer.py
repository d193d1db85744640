"""The plain API against the real engine, real files, real torch."""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import queue
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
import safetensors
import torch

Make = Callable[..., cairn.Checkpointer]


def a_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


@pytest.mark.parametrize("recycle", [True, False])
def test_saves_are_written_over_what_retention_removes(make: Make, recycle: bool) -> None:
    checkpointer = make(keep_last=1, recycle=recycle)
    for step in range(1, 5):
        save = checkpointer.save(step, {"weight": np.full(300_000, step, np.float32)})
        checkpointer.drain()

    stats = checkpointer.stats
    if recycle and stats["not_recycled_reason"]:
        pytest.skip(stats["not_recycled_reason"])
    assert stats["shards_recycled"] == (2 if recycle else 0)
    assert save.stats["recycled"] == recycle
    assert checkpointer.load()["weight"][0] == 4


def test_checksums_by_a_gpu_are_what_verify_expects(make: Make, device: str) -> None:
    checkpointer = make(gpu_checksums=True)

    save = checkpointer.save(1, {"weight": torch.arange(3_000_001, device=device)})
    checkpointer.drain()

    assert save.stats["gpu_checksum_bytes"] == (save.stats["bytes"] if device != "cpu" else 0)
    checkpointer.verify(1)
    with pytest.raises(cairn.InvalidArgument, match="gpu_checksums"):
        make(checksums=False, gpu_checksums=True)


@pytest.mark.usefixtures("device")
def test_training_goes_on_bit_exactly(make: Make) -> None:
    model, optimizer = a_model()
    rng = cairn.RngState()
    tree: dict[str, Any] = {"model": model, "optimizer": optimizer, "rng": rng, "step": 0}
    checkpointer = make()
    checkpointer.protect(optimizer)
    for step in range(1, 4):
        train(model, optimizer)
        tree["step"] = step
        checkpointer.save(step, tree)
    checkpointer.drain()
    expected = [train(model, optimizer) for _ in range(3)]

    # Another process would begin like this: a fresh optimizer has no state yet.
    torch.manual_seed(99)
    model2, optimizer2 = a_model()
    fresh = {"model": model2, "optimizer": optimizer2, "rng": cairn.RngState(), "step": 0}
    restored = make().restore(fresh)

    assert restored["step"] == 3
    assert [train(model2, optimizer2) for _ in range(3)] == expected
    for (name, a), b in zip(model.state_dict().items(), model2.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_any_safetensors_reader_opens_the_file(make: Make, root: Path) -> None:
    model, _ = a_model()
    with make() as checkpointer:
        checkpointer.save(7, model.state_dict()).wait()

    (shard,) = root.glob("step-*7/shard-*.safetensors")
    with safetensors.safe_open(shard, "pt") as file:
        assert sorted(file.keys()) == sorted(model.state_dict())
        for name, tensor in model.state_dict().items():
            assert torch.equal(file.get_tensor(name), tensor)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(make: Make, device: str, dtype: torch.dtype) -> None:
    raw = torch.randint(0, 2, (3, 8 * 5), dtype=torch.uint8)
    tensor = raw.bool() if dtype is torch.bool else raw.view(dtype)
    checkpointer = make()
    checkpointer.save(1, {"t": tensor}).wait()

    loaded = checkpointer.load(map_location=device)["t"]

    assert loaded.device.type == device and loaded.dtype is dtype and loaded.shape == tensor.shape
    assert bits(loaded) == bits(tensor)


# Made when a test runs, on its device.
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 4),
    "expanded": lambda: torch.arange(4.0).reshape(4, 1).expand(4, 6),
    "windows": lambda: torch.arange(9.0).as_strided((4, 6), (1, 1)),
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "channels_last": lambda: torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sliced": lambda: torch.arange(40.0).reshape(5, 8)[1:4, 2:7:2],
    "conjugated": lambda: torch.complex(torch.arange(6.0), torch.ones(6)).conj(),
    "negated": lambda: torch.complex(torch.arange(6.0), torch.ones(6)).conj().imag,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_comes_back(make: Make, device: str, name: str) -> None:
    tensor = LAYOUTS[name]()
    checkpointer = make()
    checkpointer.save(1, [tensor]).wait()

    (loaded,) = checkpointer.load(map_location=device)

    assert torch.equal(loaded, tensor.resolve_conj().resolve_neg())


@pytest.mark.parametrize("name", ["transposed", "channels_last", "sliced"])
@pytest.mark.usefixtures("device")
def test_restores_in_place_into_strided_tensors(make: Make, name: str) -> None:
    tensor = LAYOUTS[name]()
    checkpointer = make()
    checkpointer.save(1, {"t": tensor}).wait()
    target = LAYOUTS[name]().fill_(9)

    checkpointer.restore({"t": target})

    assert target.stride() == tensor.stride() and torch.equal(target, tensor)


def test_numpy_needs_no_torch(root: Path) -> None:
    code = """
        import sys, numpy as np, cairn
        tree = {"a": np.arange(6, dtype="<i4").reshape(2, 3)[:, ::-1], "b": np.float32(1.5), "c": [1, None, float("inf")]}
        with cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
            checkpointer.save(1, tree).wait()
            loaded = checkpointer.load()
        assert (loaded["a"] == tree["a"]).all() and loaded["b"] == tree["b"] and loaded["c"] == tree["c"]
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(root)], check=True)


def test_tied_weights_are_written_once(make: Make, device: str) -> None:
    weight = torch.nn.Parameter(torch.randn(1000, 100))
    checkpointer = make()
    save = checkpointer.save(1, {"embedding": weight, "head": weight})
    save.wait()

    assert save.stats["bytes"] == weight.nbytes
    loaded = checkpointer.load(map_location=device)
    assert torch.equal(loaded["embedding"], weight) and torch.equal(loaded["head"], weight)


@pytest.mark.usefixtures("device")
def test_a_subset_by_name_or_pattern(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"model": {"a.weight": torch.ones(3), "b.weight": torch.zeros(2)}, "step": 4}).wait()

    assert list(checkpointer.load(names="model/a.*")) == ["model/a.weight"]
    assert set(checkpointer.load(names=["model/a.weight", "*b*"])) == {"model/a.weight", "model/b.weight"}
    with pytest.raises(cairn.NotFound, match='no tensor in .* matches "nothing"'):
        checkpointer.load(names="nothing")


def test_differences_are_named_before_a_byte_is_written(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"same": torch.ones(3), "gone": torch.ones(2), "other": torch.ones(4)}).wait()
    same = torch.zeros(3)

    with pytest.raises(cairn.InvalidArgument, match="gone") as caught:
        checkpointer.restore({"same": same, "added": torch.ones(1), "other": torch.ones(4)})
    assert "added" in str(caught.value)
    with pytest.raises(cairn.InvalidArgument, match=r"other: the tree has F32 \[5\], the checkpoint has F32 \[4\]"):
        checkpointer.restore({"same": same, "gone": torch.ones(2), "other": torch.ones(5)})
    assert torch.equal(same, torch.zeros(3))


@pytest.mark.usefixtures("device")
def test_steps_pins_and_retention(make: Make) -> None:
    checkpointer = make(keep_last=2)
    for step in range(1, 5):
        checkpointer.save(step, {"t": torch.full((10,), float(step))}).wait()
        if step == 1:
            checkpointer.pin(1)
    checkpointer.drain()

    assert checkpointer.steps() == [1, 3, 4] and checkpointer.latest() == 4
    assert float(checkpointer.restore({"t": torch.zeros(10)}, step=3)["t"][0]) == 3
    with pytest.raises(cairn.NotFound):
        checkpointer.restore({"t": torch.zeros(10)}, step=2)
    checkpointer.remove(4)
    assert checkpointer.latest() == 3


def test_a_step_twice(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"t": torch.ones(1)}).wait()

    with pytest.raises(cairn.AlreadyExists, match="step 1"):
        checkpointer.save(1, {"t": torch.ones(1)})
    with pytest.raises(cairn.FailedPrecondition, match="step 0 is below"):
        checkpointer.save(0, {"t": torch.ones(1)})
    checkpointer.save(1, {"t": torch.zeros(1)}, replace=True).wait()
    assert torch.equal(checkpointer.load()["t"], torch.zeros(1))


@pytest.mark.usefixtures("device")
def test_damage_is_found_and_fall_back_passes_it_over(make: Make, root: Path) -> None:
    checkpointer = make()
    for step in (1, 2):
        checkpointer.save(step, {"t": torch.full((1000,), float(step))}).wait()
    checkpointer.verify(2)
    (shard,) = root.glob("step-*2/shard-*")
    with open(shard, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))

    with pytest.raises(cairn.Corrupt, match="CRC32C"):
        checkpointer.verify()
    with pytest.raises(cairn.Corrupt):
        checkpointer.restore({"t": torch.zeros(1000)})
    restored = checkpointer.restore({"t": torch.zeros(1000)}, fall_back=True)
    assert float(restored["t"][0]) == 1


def test_a_folder_that_was_copied_elsewhere(make: Make, root: Path, tmp_path: Path) -> None:
    checkpointer = make()
    checkpointer.save(1, {"t": torch.arange(5.0), "n": 3}).wait()
    copy = (tmp_path / "copy").resolve()
    os.rename(next(root.glob("step-*")), copy)

    loaded = make().load(folder=copy)

    assert torch.equal(loaded["t"], torch.arange(5.0)) and loaded["n"] == 3


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("4GB", 4 * 10**9), ("1.5KiB", 1536), ("12", 12), (7, 7), (" 2 MiB ", 2 << 20)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert cairn.parse_size(text) == size


@pytest.mark.parametrize("text", ["4x", "", "-1", "GiB", "4 gib", -3, True, 1.5, None])
def test_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(cairn.InvalidArgument, match="expected a size"):
        cairn.parse_size(text)


def test_bad_options_and_roots(make: Make, root: Path, tmp_path: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match='when_full.*"wait", "skip", "replace".*"later"'):
        make(when_full="later")
    with pytest.raises(cairn.InvalidArgument, match="at least"):
        make(host_memory="1MiB")
    (tmp_path / "file").write_text("")
    with pytest.raises(cairn.Error, match="file"):
        cairn.Checkpointer(tmp_path / "file")
    with pytest.raises(cairn.NotFound):
        make().restore({})
    with pytest.raises(cairn.FailedPrecondition, match="this process"):
        cairn.Checkpointer(root, host_memory="8MiB", chunk="1MiB", queue_depth=2)


def test_what_cannot_be_kept_is_refused_by_path(make: Make) -> None:
    checkpointer = make()
    with pytest.raises(cairn.InvalidArgument, match="a/0/b"):
        checkpointer.save(1, {"a": [{"b": lambda: None}]})
    with pytest.raises(cairn.InvalidArgument, match="z: a quantized tensor"):
        checkpointer.save(1, {"z": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)})
    assert checkpointer.steps() == []


def test_closed_is_closed(make: Make) -> None:
    checkpointer = make()
    checkpointer.close()
    checkpointer.close()
    with pytest.raises(cairn.FailedPrecondition, match="closed"):
        checkpointer.save(1, {"t": torch.ones(1)})


def test_an_exception_in_the_block_goes_through_and_the_save_is_kept(root: Path) -> None:
    with (
        pytest.raises(KeyError, match="theirs"),
        cairn.Checkpointer(root, host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer,
    ):
        checkpointer.save(1, {"t": torch.ones(1000)})
        raise KeyError("theirs")
    with cairn.Checkpointer(root, host_memory="8MiB", chunk="1MiB", queue_depth=2, read_only=True) as reader:
        assert reader.steps() == [1]


def test_threads_may_save_at_once(make: Make) -> None:
    checkpointer = make(keep_last=0, max_in_flight=4)
    outcomes: list[int] = []

    def save(step: int) -> None:
        try:
            outcomes.append(checkpointer.save(step, {"t": torch.full((100_000,), float(step))}).result())
        except cairn.FailedPrecondition:
            outcomes.append(-1)  # A younger step was first.

    threads = [threading.Thread(target=save, args=(step,)) for step in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(outcomes) == 8
    assert checkpointer.steps() == sorted(step for step in outcomes if step > 0)
    for step in checkpointer.steps():
        assert float(checkpointer.load(step)["t"][-1]) == step


def test_a_save_can_be_awaited(make: Make) -> None:
    checkpointer = make()

    async def main() -> int:
        return await checkpointer.save(3, {"t": torch.ones(10)})

    assert asyncio.run(main()) == 3


@pytest.mark.usefixtures("device")
def test_what_the_caller_drops_is_still_saved(make: Make) -> None:
    checkpointer = make(keep_last=0)
    for step in range(1, 6):
        checkpointer.save(step, {"t": torch.full((3_000_000,), float(step))})
    checkpointer.drain()
    for step in range(1, 6):
        assert bool((checkpointer.load(step)["t"] == step).all())


def test_a_failure_is_on_the_handle_in_check_and_in_the_log(
    make: Make, root: Path, request: pytest.FixtureRequest
) -> None:
    told: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = logging.handlers.QueueHandler(told)
    handler.setLevel(logging.ERROR)
    logging.getLogger("cairn").addHandler(handler)
    request.addfinalizer(lambda: logging.getLogger("cairn").removeHandler(handler))
    checkpointer = make()
    checkpointer.save(1, {"t": torch.ones(10)}).wait()
    # The step's name is taken by something else: the commit's rename fails.
    (root / "step-00000000000000000002").mkdir()
    (root / "step-00000000000000000002" / "theirs").write_text("")
    save = checkpointer.save(2, {"t": torch.ones(10)})

    with pytest.raises(cairn.Error, match="step 2"):
        save.wait()
    with pytest.raises(cairn.Error, match="step 2"):
        checkpointer.check()
    assert "step 2" in told.get(timeout=60).getMessage()
    checkpointer.save(3, {"t": torch.ones(10)}).wait()


def test_numpy_arrays_restore_in_place(make: Make) -> None:
    checkpointer = make()
    array = np.arange(12, dtype=np.float64).reshape(3, 4)
    checkpointer.save(1, {"a": array}).wait()
    target = np.zeros((3, 4))
    restored = checkpointer.restore({"a": target})
    assert restored["a"] is target and (target == array).all()
    readonly = np.zeros((3, 4))
    readonly.flags.writeable = False
    with pytest.raises(cairn.InvalidArgument, match="read-only"):
        checkpointer.restore({"a": readonly})


def test_tied_tensors_are_written_once_and_tied_again(root: Path) -> None:
    embedding = torch.randn(100, 8)
    tree = {"embed": embedding, "head": embedding, "alone": torch.randn(100, 8), "part": embedding[:50]}
    with cairn.Checkpointer(root, host_memory="16MiB", chunk="1MiB") as checkpointer:
        save = checkpointer.save(1, tree)
        save.wait()
        loaded = checkpointer.load()
        only = checkpointer.load(names=["head"])

    assert save.stats["bytes"] == sum(tree[name].nbytes for name in ("embed", "alone", "part"))
    assert loaded["embed"] is loaded["head"]
    assert loaded["part"] is not loaded["embed"]
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tree.items())
    assert list(only) == ["head"] and torch.equal(only["head"], embedding)


def test_lazily_only_what_is_asked_for_is_read(make: Make, root: Path) -> None:
    checkpointer = make(keep_last=1)
    tree = {
        "big": torch.arange(3_000_000.0),
        "small": torch.ones(3, dtype=torch.bfloat16),
        "array": np.arange(4),
        "step": 5,
    }
    checkpointer.save(5, tree).wait()

    lazy = checkpointer.load(lazy=True)
    only = checkpointer.load(names="b*", lazy=True)

    assert lazy["step"] == 5
    assert isinstance(lazy["small"], cairn.LazyTensor)
    assert (lazy["small"].dtype, lazy["small"].shape) == ("BF16", (3,))
    assert torch.equal(lazy["big"].load(), tree["big"]) and torch.equal(only["big"].load(), tree["big"])
    assert np.array_equal(lazy["array"].load(), tree["array"])
    # What it reads is verified: damage to another tensor is none of its business.
    shard = next(root.glob("step-*/shard-*"))
    content = bytearray(shard.read_bytes())
    content[-5_000_000] ^= 1
    shard.write_bytes(content)
    assert torch.equal(lazy["small"].load(), tree["small"])
    with pytest.raises(cairn.Corrupt):
        lazy["big"].load()
    checkpointer.remove(5)  # Retention leaves alone what was found damaged.
    with pytest.raises(cairn.NotFound):
        lazy["small"].load()


def test_a_look_at_an_older_checkpoint_starts_no_new_line(make: Make) -> None:
    checkpointer = make(keep_last=0)
    for step in (10, 20):
        checkpointer.save(step, {"t": torch.full((3,), float(step))}).wait()

    assert checkpointer.load(10)["t"][0] == 10 and checkpointer.load(10, lazy=True)["t"].load()[0] == 10
    with pytest.raises(cairn.FailedPrecondition):
        checkpointer.save(15, {"t": torch.ones(3)})
    checkpointer.save(30, {"t": torch.ones(3)}).wait()
    assert {one.line for one in checkpointer.checkpoints()} == {0}

    checkpointer.restore({"t": torch.ones(3)}, 10)
    checkpointer.save(15, {"t": torch.ones(3)}).wait()
    assert checkpointer.latest() == 15
    newest = checkpointer.checkpoints()[-1]
    assert (newest.line, newest.parent, newest.copy) == (1, 10, False)
    assert {one.root for one in checkpointer.checkpoints()} == {newest.root} != {""}
