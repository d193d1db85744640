"""Reading beside a saver whose retention is fast, and what is passed over where an older checkpoint is permitted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
from cairn import _in_flight

torch = pytest.importorskip("torch")

Make = Callable[..., cairn.Checkpointer]

NOBODY = 65534

# Saves as fast as it can, keeps one, until its input ends; says so once the first is durable.
SAVER = """
import sys, threading
import cairn, torch
root = sys.argv[1]
stopped = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
with cairn.Checkpointer(root, host_memory="8MiB", chunk="1MiB", queue_depth=2, keep_last=1) as checkpointer:
    step = 0
    while not stopped.is_set():
        step += 1
        checkpointer.save(step, {"t": torch.full((64,), float(step)), "step": step}).wait()
        if step == 1:
            print("saved", flush=True)
print(step, flush=True)
"""


class Meanwhile:
    """State that is looked at while a restore plans what to read."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.then = then

    def state_dict(self) -> dict[str, Any]:
        self.then()
        return {"kept": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def reader_of(root: Path) -> cairn.Checkpointer:
    return cairn.Checkpointer(root, read_only=True, host_memory="8MiB", chunk="1MiB", queue_depth=2)


def save(checkpointer: cairn.Checkpointer, *steps: int) -> None:
    for step in steps:
        checkpointer.save(step, {"t": torch.full((1000,), float(step)), "m": Meanwhile()}).wait()
    checkpointer.drain()


def test_what_restore_has_chosen_stays_until_it_is_read(make: Make) -> None:
    checkpointer = make(keep_last=1)
    save(checkpointer, 1)
    target = {"t": torch.zeros(1000), "m": Meanwhile(lambda: save(checkpointer, *range(2, 6)))}

    with reader_of(Path(checkpointer.root)) as reader:
        restored = reader.restore(target)

    assert float(restored["t"][0]) == 1
    save(checkpointer, 6)
    assert checkpointer.steps() == [6]  # What was held goes with the next retention.


def test_the_newest_is_found_however_fast_retention_is(root: Path) -> None:
    rounds = 500
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVER, os.fspath(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert saver.stdout is not None and saver.stdout.readline() == "saved\n"
        seen = 0
        with reader_of(root) as reader:
            for _ in range(rounds):
                tree = {"t": torch.zeros(64), "step": 0}
                restored = reader.restore(tree)
                loaded = reader.load()
                newest = reader.latest()
                for one in (restored, loaded):
                    assert one["step"] >= seen and torch.equal(one["t"], torch.full((64,), float(one["step"])))
                    seen = one["step"]
                assert newest is not None and newest >= seen
                reader.verify()
        out, _ = saver.communicate("")
    finally:
        saver.kill()
        saver.wait()
    assert saver.returncode == 0 and int(out) > 1


def test_a_step_that_was_named_and_is_gone_is_not_found(make: Make, root: Path) -> None:
    checkpointer = make(keep_last=1)
    save(checkpointer, 1, 2)

    with pytest.raises(cairn.NotFound):
        checkpointer.restore({"t": torch.zeros(1000), "m": Meanwhile()}, 1)
    for call in (checkpointer.load, checkpointer.pin, checkpointer.remove, lambda step: cairn.load(root, step=step)):
        with pytest.raises(cairn.NotFound, match=rf"there is no step 1 under {root}; there is 2$"):
            call(1)


def test_what_was_replaced_between_look_and_read_is_said(make: Make) -> None:
    checkpointer = make()
    save(checkpointer, 1)
    lazy = checkpointer.load(lazy=True)

    checkpointer.save(1, {"t": torch.zeros(1000), "m": Meanwhile()}, replace=True).wait()

    with pytest.raises(cairn.FailedPrecondition, match="step 1 was replaced"):
        lazy["t"].load()


def test_dcp_reads_what_it_has_planned(make: Make) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    cairn_dcp = pytest.importorskip("cairn.dcp")
    checkpointer = make(keep_last=1)

    def save_dcp(step: int) -> None:
        state = {"t": torch.full((1000,), float(step))}
        dcp.save(state, storage_writer=cairn_dcp.StorageWriter(checkpointer, step), planner=cairn_dcp.SavePlanner())
        checkpointer.drain()

    class Planner(cairn_dcp.LoadPlanner):
        def create_local_plan(self) -> Any:
            save_dcp(2)
            save_dcp(3)
            return super().create_local_plan()

    save_dcp(1)
    target = {"t": torch.zeros(1000)}

    dcp.load(target, storage_reader=cairn_dcp.StorageReader(checkpointer.root), planner=Planner())

    assert float(target["t"][0]) == 1
    save_dcp(4)
    assert checkpointer.steps() == [4]


def manifest_of(root: Path, step: int) -> Path:
    return root / f"step-{step:020d}" / "manifest.json"


def test_latest_and_restore_mean_the_same_where_the_newest_manifest_is_damaged(
    make: Make, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = make()
    save(checkpointer, 1, 2)
    manifest_of(root, 2).write_text("{}")
    tree = {"t": torch.zeros(1000), "m": Meanwhile()}

    for call in (checkpointer.latest, lambda: checkpointer.restore(tree), checkpointer.load):
        with pytest.raises(cairn.Corrupt, match="step-0*2/manifest.json"):
            call()
    assert checkpointer.latest(fall_back=True) == 1
    assert float(checkpointer.restore(tree, fall_back=True)["t"][0]) == 1
    assert "step-00000000000000000002" in caplog.text and "manifest.json" in caplog.text

    manifest_of(root, 1).write_text("{}")
    for fall_back in (False, True):
        with pytest.raises(cairn.Corrupt):
            checkpointer.latest(fall_back=fall_back)


def test_latest_of_a_root_without_checkpoints_is_none(make: Make) -> None:
    checkpointer = make()
    assert checkpointer.latest() is None and checkpointer.latest(fall_back=True) is None


def test_latest_falls_back_as_restore_does_where_a_shard_is_damaged(make: Make, root: Path) -> None:
    checkpointer = make()
    save(checkpointer, 1, 2)
    shard = next(manifest_of(root, 2).parent.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")

    assert checkpointer.latest() == 2  # What it holds is seen only when it is read.
    assert checkpointer.latest(fall_back=True) == 1
    with pytest.raises(cairn.Corrupt):
        checkpointer.restore({"t": torch.zeros(1000), "m": Meanwhile()})


def test_a_shard_that_is_missing_is_found_by_who_reads_it(make: Make, root: Path) -> None:
    checkpointer = make()
    save(checkpointer, 1, 2)
    shard = next(manifest_of(root, 2).parent.glob("shard-*"))
    shard.unlink()
    tree = {"t": torch.zeros(1000), "m": Meanwhile()}

    assert checkpointer.steps() == [1, 2] and checkpointer.latest() == 2
    for call in (lambda: checkpointer.restore(tree), checkpointer.load, checkpointer.verify):
        with pytest.raises(cairn.Corrupt, match=shard.name):
            call()
    assert checkpointer.latest(fall_back=True) == 1
    assert float(checkpointer.restore(tree, fall_back=True)["t"][0]) == 1


def test_a_folder_that_is_named_is_read_with_fall_back_too(make: Make, root: Path, tmp_path: Path) -> None:
    checkpointer = make()
    save(checkpointer, 1, 2)
    copy = shutil.copytree(manifest_of(root, 1).parent, tmp_path / "copy")

    restored = checkpointer.restore({"t": torch.zeros(1000), "m": Meanwhile()}, folder=copy, fall_back=True)

    assert float(restored["t"][0]) == 1


@pytest.fixture
def open_root() -> Iterator[Path]:
    """One that every user may look into."""
    folder = Path(tempfile.mkdtemp(prefix="cairn-test-"))
    folder.chmod(0o755)
    yield folder / "run"
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["manifest.json", "shard-00000.safetensors", ""])
def test_what_may_not_be_read_is_not_passed_over(open_root: Path, what: str) -> None:
    with cairn.Checkpointer(open_root, host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        save(checkpointer, 1, 2)
    unreadable = manifest_of(open_root, 2).parent / what
    unreadable.chmod(0)
    user = os.geteuid()

    with reader_of(open_root) as reader:
        if user == 0:
            os.seteuid(NOBODY)
        try:
            with pytest.raises(cairn.FailedPrecondition, match="Permission denied"):
                reader.restore({"t": torch.zeros(1000), "m": Meanwhile()}, fall_back=True)
            with pytest.raises(cairn.FailedPrecondition, match="Permission denied"):
                reader.latest(fall_back=True)
        finally:
            os.seteuid(user)
            unreadable.chmod(0o755)


def test_a_root_that_is_being_made_has_no_checkpoint_yet(tmp_path: Path) -> None:
    """It comes while the load looks for it."""

    class Maker:
        def await_path(self, path: str, timeout: float) -> None:
            os.makedirs(path, exist_ok=True)

    maker = Maker()
    _in_flight.path_stores.add(maker)
    with pytest.raises(cairn.NotFound, match="there is no checkpoint under"):
        cairn.load(tmp_path / "run")
    _in_flight.path_stores.discard(maker)
