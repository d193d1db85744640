"""cairn.megatron against the real Megatron-core on the CPU, over gloo: dist_checkpointing.save and load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import cairn.megatron
import pytest
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.serialization import load_plain_tensors, load_sharded_metadata
from programs import EXAMPLES, Job, expect_alone, expect_exact_resume
from ranks import World

ROWS = 1 << 19


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", 0, 1, True), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def strategies(tmp_path: Path) -> Iterator[cairn.megatron.Strategies]:
    made = cairn.megatron.register(tmp_path / ".cairn", host_memory="64MiB")
    yield made
    made.checkpointer.close()


def state(seed: int) -> dict[str, Any]:
    """Whole, sharded in two, with an axis of layers at the front, an object, and what is not sharded."""
    torch.manual_seed(seed)
    return {
        "model": {
            "whole": ShardedTensor.from_rank_offsets("whole", torch.randn(ROWS, 4)),
            "top": ShardedTensor.from_rank_offsets("halves", torch.randn(3, 2), (0, 0, 2)),
            "bottom": ShardedTensor.from_rank_offsets("halves", torch.randn(3, 2), (0, 1, 2)),
            "layer0": ShardedTensor.from_rank_offsets("layers", torch.randn(5), (0, 0, 2), prepend_axis_num=1),
            "layer1": ShardedTensor.from_rank_offsets("layers", torch.randn(5), (0, 1, 2), prepend_axis_num=1),
            "half": ShardedTensor.from_rank_offsets("half", torch.randn(4).bfloat16()),
        },
        "rng": ShardedObject("rng", {"seed": seed, "state": torch.get_rng_state()}, (1,), (0,)),
        "iteration": seed,
    }


def plain(sharded: dict[str, Any]) -> dict[str, Any]:
    return {name: one.data.clone() for name, one in sharded["model"].items()}


def folder_of(root: Path, iteration: int) -> str:
    folder = root / f"iter_{iteration:07}"
    folder.mkdir()
    return str(folder)


def expect_same(loaded: dict[str, Any], expected: dict[str, Any]) -> None:
    assert loaded["model"].keys() == expected.keys()
    assert all(torch.equal(loaded["model"][name], expected[name]) for name in expected)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_loads_what_it_saved(strategies: Any, tmp_path: Path, asynchronous: bool) -> None:
    saved = state(1)
    expected, rng = plain(saved), saved["rng"].data["state"]
    folder = folder_of(tmp_path, 10)
    request = dist_checkpointing.save(saved, folder, cairn.megatron.BACKEND, async_sharded_save=asynchronous)
    if asynchronous:
        assert not (Path(folder) / "metadata.json").exists()
        assert strategies.calls.schedule_async_request(request) == 0
        assert strategies.calls.maybe_finalize_async_calls(blocking=True) == [0]

    loaded = dist_checkpointing.load(state(2), folder)

    expect_same(loaded, expected)
    assert loaded["iteration"] == 1 and loaded["rng"]["seed"] == 1 and torch.equal(loaded["rng"]["state"], rng)
    assert sorted(one.name for one in Path(folder).iterdir()) == ["common.pt", "metadata.json", f"step-{10:020}"]
    assert not strategies.checkpointer.steps()


def test_tensors_may_change_after_the_fence(strategies: Any, tmp_path: Path) -> None:
    saved = state(1)
    expected, folder = plain(saved), folder_of(tmp_path, 10)
    request = dist_checkpointing.save(saved, folder, cairn.megatron.BACKEND, async_sharded_save=True)
    strategies.checkpointer.fence()
    for one in saved["model"].values():
        one.data.zero_()
    strategies.calls.schedule_async_request(request)
    strategies.calls.maybe_finalize_async_calls(blocking=True)
    expect_same(dist_checkpointing.load(state(2), folder), expected)


def test_several_are_in_flight_and_finalized_in_order(strategies: Any, tmp_path: Path) -> None:
    folders = [folder_of(tmp_path, iteration) for iteration in (1, 2)]
    states = [state(1), state(2)]
    expected = [plain(one) for one in states]
    for one, folder in zip(states, folders, strict=True):
        request = dist_checkpointing.save(one, folder, cairn.megatron.BACKEND, async_sharded_save=True)
        strategies.calls.schedule_async_request(request)
    assert strategies.calls.get_num_unfinalized_calls() == 2
    assert strategies.calls.maybe_finalize_async_calls(blocking=True) == [0, 1]
    for folder, wanted in zip(folders, expected, strict=True):
        expect_same(dist_checkpointing.load(state(3), folder), wanted)


def test_close_finalizes_what_is_behind_a_failed_save(strategies: Any, tmp_path: Path) -> None:
    (tmp_path / f".cairn/step-{1:020}/theirs").mkdir(parents=True)  # The commit's rename fails.
    folders = [folder_of(tmp_path, iteration) for iteration in (1, 2)]
    saved = state(2)
    expected = plain(saved)
    for folder in folders:
        request = dist_checkpointing.save(saved, folder, cairn.megatron.BACKEND, async_sharded_save=True)
        strategies.calls.schedule_async_request(request)

    with pytest.raises(cairn.Error, match="step 1"):
        strategies.close()

    expect_same(dist_checkpointing.load(state(3), folders[1]), expected)


def test_every_rank_hears_that_rank_0_could_not_publish(tmp_path: Path) -> None:
    world = World(2, tmp_path, fresh=True)
    code = f"""
import datetime, cairn.megatron
from megatron.core import dist_checkpointing
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
s = cairn.megatron.register({str(tmp_path / ".cairn")!r}, host_memory="64MiB")
state = {{"w": dist_checkpointing.ShardedTensor.from_rank_offsets("w", torch.ones(3), (0, rank, world))}}
def save(folder):
    s.calls.schedule_async_request(
        dist_checkpointing.save(state, folder, cairn.megatron.BACKEND, async_sharded_save=True))
    s.calls.maybe_finalize_async_calls(blocking=True)
"""
    try:
        assert world.all(code) == [None, None]
        folder = folder_of(tmp_path, 1)
        (tmp_path / f"iter_0000001/step-{1:020}").write_text("")
        assert [one["error"] for one in world.answers(f"save({folder!r})")] == ["AlreadyExists"] * 2
        assert world.all(f"save({folder_of(tmp_path, 2)!r})") == [None, None]
        assert world.all("s.close()") == [None, None]
    finally:
        world.end()


def test_a_folder_can_be_moved_and_read_without_its_root(strategies: Any, tmp_path: Path) -> None:
    saved = state(1)
    expected = plain(saved)
    dist_checkpointing.save(saved, folder_of(tmp_path, 10), cairn.megatron.BACKEND)
    strategies.checkpointer.close()
    shutil.move(tmp_path / "iter_0000010", tmp_path / "elsewhere")
    expect_same(dist_checkpointing.load(state(2), str(tmp_path / "elsewhere")), expected)


def test_metadata_and_plain_tensors(strategies: Any, tmp_path: Path) -> None:
    saved, folder = state(1), folder_of(tmp_path, 10)
    expected = plain(saved)
    dist_checkpointing.save(saved, folder, cairn.megatron.BACKEND)
    metadata = load_sharded_metadata(folder)
    assert metadata["halves"].global_shape == (6, 2) and metadata["layers"].global_shape == (2, 5)
    assert [one.key for one in metadata.values() if isinstance(one, ShardedObject)] == ["rng"]
    tensors = load_plain_tensors(folder)
    assert torch.equal(tensors["halves"], torch.cat([expected["top"], expected["bottom"]]))


def test_a_save_again_after_a_crash_before_the_last_file(tmp_path: Path) -> None:
    first = cairn.megatron.register(tmp_path / ".cairn", host_memory="64MiB")
    request = dist_checkpointing.save(
        state(1), folder_of(tmp_path, 10), cairn.megatron.BACKEND, async_sharded_save=True
    )
    request.save.wait()
    first.checkpointer.close()  # Durable, but never finalized.
    with pytest.raises(CheckpointingException, match="not a distributed checkpoint"):
        dist_checkpointing.load(state(2), str(tmp_path / "iter_0000010"))

    again, saved = cairn.megatron.register(tmp_path / ".cairn", host_memory="64MiB"), state(3)
    expected = plain(saved)
    dist_checkpointing.save(saved, str(tmp_path / "iter_0000010"), cairn.megatron.BACKEND)
    again.checkpointer.close()
    expect_same(dist_checkpointing.load(state(2), str(tmp_path / "iter_0000010")), expected)


def test_an_object_that_needs_pickle_is_refused_by_key(strategies: Any, tmp_path: Path) -> None:
    saved = state(1)
    saved["rng"].data = {"odd": object()}
    with pytest.raises(cairn.InvalidArgument, match="rng"):
        dist_checkpointing.save(saved, folder_of(tmp_path, 10), cairn.megatron.BACKEND)


def test_another_shape_is_refused(strategies: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 10)
    dist_checkpointing.save(state(1), folder, cairn.megatron.BACKEND)
    other = state(2)
    other["model"]["half"] = ShardedTensor.from_rank_offsets("half", torch.zeros(5).bfloat16())
    with pytest.raises(BaseException, match="Global shape mismatch"):
        dist_checkpointing.load(other, folder)


def test_what_is_not_supported_is_refused(strategies: Any, tmp_path: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match="iter_0000010"):
        (tmp_path / "no-number").mkdir()
        dist_checkpointing.save(state(1), str(tmp_path / "no-number"), cairn.megatron.BACKEND)
    with pytest.raises(cairn.Unsupported, match="does not change"):
        strategies.load.remove_sharded_tensors(str(tmp_path), "model")


def test_its_import_needs_no_other_framework() -> None:
    expect_alone("megatron")


def test_the_example_is_killed_and_resumes_bit_exactly(tmp_path: Path) -> None:
    expect_exact_resume("megatron_text.py", tmp_path, lines=20, pattern="iter_*/metadata.json")


def test_another_number_of_ranks_continues(tmp_path: Path) -> None:
    path = EXAMPLES / "megatron_text.py"
    Job(path, tmp_path, "--steps", 10, world=2).finish()
    lines = Job(path, tmp_path, "--steps", 12, world=1).finish()
    assert [line.split()[0] for line in lines if line.startswith("step=")] == ["step=11", "step=12"]
