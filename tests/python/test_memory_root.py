"""Checkpointer(memory=...): saves that survive the death of the process, and what the disk gets of them."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from cairn._path_store import PathStore
from hung_disk import Gate
from jobs import ENVIRONMENT


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def state(step: int) -> dict[str, Any]:
    return {"weight": torch.full((300_000,), float(step)), "epoch": step}


def opened(root: Path, memory: Path, **options: Any) -> cairn.Checkpointer:
    return cairn.Checkpointer(root, memory=memory, host_memory="32MiB", **options)


def test_each_save_is_kept_and_the_disk_gets_the_newest(tmp_path: Path, memory: Path) -> None:
    with opened(tmp_path, memory) as checkpointer:
        saves = [checkpointer.save(step, state(step)) for step in range(1, 6)]
        for save in saves:
            save.kept()
            assert save.stats["phase"] in ("kept", "durable")
            assert save.stats["kept"] > 0
        assert saves[-1].result() == 5
        checkpointer.drain()
        stats = checkpointer.stats
        assert stats["saves_kept"] == 5
        assert stats["memory"].startswith(f"{memory}/cairn-")
        left_out = [save for save in saves if save.stats["phase"] == "kept"]
        assert stats["saves_durable"] == 5 - len(left_out)
        for save in left_out:
            assert save.done()
            with pytest.raises(cairn.Cancelled, match="left out of the disk"):
                save.wait()
            heard = threading.Event()
            save.add_done_callback(lambda _, heard=heard: heard.set())
            assert heard.wait(60)
        assert "\ncairn_save_kept_seconds_count{" in checkpointer.metrics_text()
    assert list(memory.iterdir()) == []
    with cairn.Checkpointer(tmp_path, read_only=True, host_memory="32MiB") as reader:
        assert reader.restore(state(0))["epoch"] == 5


KEEPS_AND_DIES = """
import os, sys, cairn, torch
checkpointer = cairn.Checkpointer(sys.argv[1], memory=sys.argv[2], host_memory="32MiB")
for step in range(1, 21):
    checkpointer.save(step, {"weight": torch.full((300_000,), float(step)), "epoch": step}).kept()
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_goes_on_with_its_last_step(tmp_path: Path, memory: Path) -> None:
    """However far the disk has come."""
    command = [sys.executable, "-c", KEEPS_AND_DIES, tmp_path, memory]
    child = subprocess.run(command, check=False, env=ENVIRONMENT, timeout=120)
    assert child.returncode == -9
    with opened(tmp_path, memory) as checkpointer:
        assert checkpointer.checkpoints()[-1].step == 20
        tree = state(0)
        found = checkpointer.restore(tree)
        assert found["epoch"] == 20
        assert torch.equal(tree["weight"], torch.full((300_000,), 20.0))
        assert checkpointer.save(21, state(21)).result() == 21


def test_the_next_start_brings_it_to_the_disk(tmp_path: Path, memory: Path) -> None:
    command = [sys.executable, "-c", KEEPS_AND_DIES, tmp_path, memory]
    assert subprocess.run(command, check=False, env=ENVIRONMENT, timeout=120).returncode == -9
    with opened(tmp_path, memory):
        pass
    assert list(memory.iterdir()) == []
    with cairn.Checkpointer(tmp_path, read_only=True, host_memory="32MiB") as reader:
        tree = state(0)
        assert reader.restore(tree)["epoch"] == 20
        assert torch.equal(tree["weight"], torch.full((300_000,), 20.0))


LOADS_WHAT_IT_KEEPS = """
import os, sys, cairn, torch
checkpointer = cairn.Checkpointer(sys.argv[1], memory=sys.argv[2], host_memory="32MiB", io_queue="threads")
for step in (1, 2):
    checkpointer.save(step, {"weight": torch.full((300_000,), float(step)), "epoch": step}).kept()
print(checkpointer.load()["epoch"], checkpointer.restore({"epoch": 0, "weight": torch.zeros(300_000)})["epoch"])
checkpointer.save(3, {"weight": torch.full((300_000,), 3.0), "epoch": 3})
print(checkpointer.load()["epoch"], flush=True)
os._exit(0)
"""


def test_what_is_kept_is_read_while_the_disk_hangs(tmp_path: Path, memory: Path) -> None:
    gate = Gate(tmp_path)
    with gate.hold("mkdir", path=tmp_path / "run" / ".attempt"):
        child = subprocess.run(
            [sys.executable, "-c", LOADS_WHAT_IT_KEEPS, tmp_path / "run", memory],
            check=False,
            env=ENVIRONMENT | gate.environment,
            timeout=100,  # Less than stall_timeout.
            capture_output=True,
            text=True,
        )
    assert child.stdout.split() == ["2", "2", "3"]
    assert "without a checkpoint" not in child.stderr


DRAINS_INTO_A_HUNG_DISK = """
import os, sys, cairn, torch
checkpointer = cairn.Checkpointer(
    sys.argv[1], memory=sys.argv[2], host_memory="32MiB", io_queue="threads", stall_timeout=1, close_timeout=80)
for step in (1, 2, 3):
    checkpointer.save(step, {"epoch": step}).kept()
for call in (checkpointer.drain, checkpointer.close):
    try:
        call()
    except cairn.Error as error:
        print(error, flush=True)
os._exit(0)
"""


def test_a_drain_that_the_disk_hangs_up_ends(tmp_path: Path, memory: Path) -> None:
    gate = Gate(tmp_path)
    with gate.hold("mkdir", path=tmp_path / "run" / ".attempt"):
        child = subprocess.run(
            [sys.executable, "-c", DRAINS_INTO_A_HUNG_DISK, tmp_path / "run", memory],
            check=False,
            env=ENVIRONMENT | gate.environment,
            timeout=300,
            capture_output=True,
            text=True,
        )
    drained, closed = child.stdout.splitlines()
    # Not that of a deadline, which would not say it.
    assert "beyond stall_timeout" in drained
    assert "beyond stall_timeout" in closed
    assert list(memory.glob("cairn-*/step-*"))


KEPT_BEYOND_ITS_MIRROR = """
import os, sys, cairn
checkpointer = cairn.Checkpointer(
    sys.argv[1], memory=sys.argv[2], host_memory="32MiB", disk_every=100, mirrors=[cairn.Mirror(sys.argv[3])])
checkpointer.save(1, {"step": 1}).wait(where=sys.argv[3])
for step in range(2, 5):
    checkpointer.save(step, {"step": step}).kept()
os.kill(os.getpid(), 9)
"""


def test_what_is_kept_continues_what_a_mirror_brings_back(tmp_path: Path, memory: Path) -> None:
    target = tmp_path / "mirror"
    target.mkdir()
    subprocess.run(
        [sys.executable, "-c", KEPT_BEYOND_ITS_MIRROR, tmp_path / "run", memory, target],
        check=False,
        env=ENVIRONMENT,
        timeout=300,
    )
    assert list(memory.glob("cairn-*/step-*"))
    shutil.rmtree(tmp_path / "run")

    # Also if the first start that has brought it ends before it comes to the memory.
    (folder,) = memory.iterdir()
    folder.chmod(0o755)
    with pytest.raises(cairn.FailedPrecondition):
        opened(tmp_path / "run", memory, restore_from=target)
    folder.chmod(0o700)
    with opened(tmp_path / "run", memory, restore_from=target) as checkpointer:
        assert checkpointer.load()["step"] == 4
        checkpointer.save(5, {"step": 5}).wait()
    with cairn.Checkpointer(tmp_path / "run", read_only=True, host_memory="32MiB") as reader:
        assert [one.step for one in reader.checkpoints()] == [1, 4, 5]


def test_the_disk_gets_what_is_due_or_waited_for(tmp_path: Path, memory: Path) -> None:
    with opened(tmp_path, memory, disk_every=10, keep_last=0) as checkpointer:

        async def awaited(step: int) -> int:
            return await checkpointer.save(step, state(step))

        checkpointer.save(1, state(1)).wait(60)
        for step in range(2, 11):
            checkpointer.save(step, state(step)).kept(60)
        due = checkpointer.save(11, state(11))
        due.add_done_callback(lambda save: save.result())
        due.wait(60)
        checkpointer.save(12, state(12)).kept(60)
        assert asyncio.run(asyncio.wait_for(awaited(13), 60)) == 13
        checkpointer.save(14, state(14)).kept(60)
    with cairn.Checkpointer(tmp_path, read_only=True, host_memory="32MiB") as reader:
        assert reader.steps() == [1, 11, 13, 14]


def test_a_reader_that_is_given_the_memory_reads_both_places(
    tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", KEEPS_AND_DIES, tmp_path, memory]
    assert subprocess.run(command, check=False, env=ENVIRONMENT, timeout=120).returncode == -9
    with opened(tmp_path, memory, read_only=True) as reader:
        assert reader.restore(state(0))["epoch"] == 20
    (folder,) = memory.iterdir()

    folder.chmod(0o750)  # As another user's is refused, too.
    with opened(tmp_path, memory, read_only=True) as reader:
        reader.checkpoints(), reader.checkpoints()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"expected {folder} to be a folder of user" in said
    assert "may be newer than what the disk has" in said


def test_what_was_overwritten_too_early_is_not_kept(tmp_path: Path, memory: Path) -> None:
    weight = torch.zeros(4_000_000)
    with opened(tmp_path, memory) as checkpointer:
        checkpointer._engine.core.begin_step()  # So that nobody looks at it before the write.
        save = checkpointer.save(1, {"weight": weight})
        weight[:1].add_(1)
        with pytest.raises(cairn.FailedPrecondition, match='tensor "weight" was overwritten'):
            save.kept()
        assert checkpointer.steps() == []


def test_training_may_overwrite_what_is_kept(tmp_path: Path, memory: Path) -> None:
    tree = state(1)
    with opened(tmp_path, memory) as checkpointer:
        save = checkpointer.save(1, tree)
        save.captured()
        tree["weight"].fill_(99)
        save.wait()
    with cairn.Checkpointer(tmp_path, read_only=True, host_memory="32MiB") as reader:
        assert torch.equal(reader.restore(state(0))["weight"], state(1)["weight"])


def test_events_tell_kept_from_durable(tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="cairn")
    with opened(tmp_path, memory) as checkpointer:
        checkpointer.save(7, state(7)).wait()
    events = [record.cairn_event for record in caplog.records if getattr(record, "cairn_step", None) == 7]
    assert [event for event in events if event in ("captured", "kept", "durable")] == ["captured", "kept", "durable"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"keep_best": 1, "best_metric": "loss"}, "no keep_best"),
        ({"checksums": False}, "checksums"),
    ],
)
def test_what_it_cannot_keep_is_refused(tmp_path: Path, memory: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(cairn.InvalidArgument, match=why):
        opened(tmp_path, memory, **options)


def test_a_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match="expected a folder on tmpfs"):
        opened(tmp_path / "run", tmp_path)
    assert not (tmp_path / "run").exists()


def test_integrations_refuse_it(memory: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match="memory: expected none with this integration"):
        PathStore(memory=memory)
