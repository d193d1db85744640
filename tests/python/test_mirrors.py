"""`Checkpointer(mirrors=...)`: processes beside the job, which training never waits for, whatever becomes of them."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from jobs import ENVIRONMENT, expect_whole, mirrors_of, until

HOST_MEMORY = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}
JOB = """
import os, signal, sys
import cairn, torch

with cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2,
                        mirrors=[cairn.Mirror(sys.argv[2])]) as checkpointer:
    sys.stdin.readline()  # The test has stopped the mirror.
    child = os.fork()  # As data loaders are. It has what the job has open, and outlives it.
    if child == 0:
        signal.pause()
    print(child, flush=True)
    checkpointer.save(1, {"weight": torch.ones(100_000)}).wait()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def tree(step: int) -> dict[str, Any]:
    return {"weight": torch.full((100_000,), float(step)), "step": step}


def process_of(root: Path, besides: int = 0, target: Path | None = None) -> int:
    """The one that mirrors the root, to this target, once it has begun; not an earlier one."""
    found: list[int] = []

    def look() -> bool:
        records = [json.loads(path.read_text()) for path in root.glob(".mirrors/*.json")]
        found[:] = [one["process"] for one in records if target is None or one["target"] == str(target)]
        return bool(found) and found[0] != besides

    until(look)
    return found[0]


def error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except cairn.Error as error:
        return error
    return None


def names_on_stack(thread: threading.Thread) -> set[str]:
    """Of the functions that it is in."""
    frame = sys._current_frames().get(thread.ident or 0)
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def expect_end(pidfd: int) -> None:
    """Of that process, whoever its parent is."""
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)


def test_what_is_saved_is_at_the_target_when_the_checkpointer_is_closed(root: Path, tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    mirrors = [
        cairn.Mirror(near, keep_last=1, bandwidth="1GiB"),
        cairn.Mirror(str(far), every=2, keep_last=3, keep_every=2),
    ]
    with cairn.Checkpointer(root, keep_last=2, mirrors=mirrors, **HOST_MEMORY) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, tree(step))
        checkpointer.drain()
    with cairn.Checkpointer(root, read_only=True, **HOST_MEMORY) as reader:
        listed = {one.step: one.mirrors for one in reader.checkpoints()}

    expect_whole(near, 3)
    expect_whole(far, 2)
    assert listed == {2: (str(far),), 3: (str(near),)}
    with cairn.Checkpointer(near, **HOST_MEMORY) as other:
        assert torch.equal(other.restore(tree(0))["weight"], tree(3)["weight"])
    assert list(root.glob(".mirrors/*/step-*")) == []


def test_a_mirror_that_dies_is_started_again(
    root: Path, tmp_path: Path, make: Callable[..., cairn.Checkpointer], caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = make(mirrors=[cairn.Mirror(tmp_path / "mirror")])
    first = process_of(root)
    os.kill(first, signal.SIGKILL)
    process_of(root, besides=first)

    checkpointer.save(1, tree(1))
    checkpointer.drain()
    checkpointer.close()

    expect_whole(tmp_path / "mirror", 1)
    assert f"{root}: mirror {tmp_path / 'mirror'}: has ended by signal 9, and is started again" in caplog.text


@pytest.mark.parametrize("awaited", [False, True])
def test_one_that_hangs_is_named_left_behind_and_no_reason_to_wait(
    awaited: bool, root: Path, tmp_path: Path, make: Callable[..., cairn.Checkpointer], caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "mirror"
    checkpointer = make(mirrors=[cairn.Mirror(target)], mirror_timeout=0.1)
    hung = process_of(root)
    pidfd = os.pidfd_open(hung)
    os.kill(hung, signal.SIGSTOP)

    save = checkpointer.save(1, tree(1))
    save.wait()
    raised: list[BaseException | None] = []
    waiter = threading.Thread(target=lambda: raised.append(error_of(lambda: save.wait(where=target))))
    if awaited:
        waiter.start()
        until(lambda: names_on_stack(waiter) & {"wait_mirrored"})
    begun = time.monotonic()
    checkpointer.close()
    took = time.monotonic() - begun
    behind = f"{root}: mirror {target}: has not ended in time, and is left behind (process {hung})"
    named = behind in caplog.text
    os.kill(hung, signal.SIGCONT)
    expect_end(pidfd)
    if awaited:
        waiter.join(60)
        assert isinstance(raised[0], cairn.Error)

    assert took < 30
    assert named
    expect_whole(target, 1)
    until(lambda: not Path(f"/proc/{hung}").exists())  # No zombie.


def test_when_the_job_is_killed_its_mirror_finishes_and_ends(root: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-c", JOB, str(root), str(tmp_path / "mirror")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as job:
        assert job.stdin is not None and job.stdout is not None
        mirror = process_of(root)
        pidfd = os.pidfd_open(mirror)
        os.kill(mirror, signal.SIGSTOP)  # So that it has copied nothing before.
        job.stdin.write(b"\n")
        job.stdin.close()
        child = int(job.stdout.readline())
        assert job.wait(60) == -signal.SIGKILL
    try:
        os.kill(mirror, signal.SIGCONT)

        expect_end(pidfd)
    finally:
        os.kill(child, signal.SIGKILL)
    expect_whole(tmp_path / "mirror", 1)


def test_what_goes_wrong_is_logged_with_the_mirrors_own_words(
    root: Path, tmp_path: Path, make: Callable[..., cairn.Checkpointer], caplog: pytest.LogCaptureFixture
) -> None:
    with cairn.Checkpointer(tmp_path / "other", **HOST_MEMORY) as other:
        other.save(7, tree(7)).wait()

    checkpointer = make(mirrors=[cairn.Mirror(tmp_path / "other")])
    checkpointer.save(1, tree(1)).wait()
    checkpointer.close()

    assert f"{tmp_path / 'other'} is not a copy of that root: expected the id " in caplog.text
    assert "has ended with exit code 2" in caplog.text
    expect_whole(tmp_path / "other", 7)
    expect_whole(root, 1)


def test_rank_0_alone_starts_them(worlds: Any, root: Path, tmp_path: Path) -> None:
    world = worlds(options=f"mirrors=[cairn.Mirror({str(tmp_path / 'mirror')!r})]")

    mirror, ranks = process_of(root), world.all("__import__('os').getpid()")
    assert [mirrors_of(rank) for rank in ranks] == [[mirror], []]

    world.all("c.save(1, tree(1, rank)).wait()")
    world.all("c.close()")
    expect_whole(tmp_path / "mirror", 1)


def test_a_save_is_waited_for_where_it_is_wanted(root: Path, tmp_path: Path, make: Callable[..., Any]) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    checkpointer = make(mirrors=[cairn.Mirror(near), cairn.Mirror(far, every=2)])
    hung = [process_of(root, target=far)]
    os.kill(hung[0], signal.SIGSTOP)

    first = checkpointer.save(1, tree(1))
    first.wait(where=near)
    expect_whole(near, 1)
    with pytest.raises(cairn.FailedPrecondition, match="never will be: that takes only steps divisible by 2"):
        first.wait(where=far)
    second = checkpointer.save(2, tree(2))
    second.wait()
    with pytest.raises(cairn.DeadlineExceeded, match=f"step 2 is not at the mirror {far} yet"):
        second.wait(0.2, where=str(far))
    os.kill(hung[0], signal.SIGCONT)
    second.wait(60, where=far)
    expect_whole(far, 2)
    with pytest.raises(cairn.InvalidArgument, match="expected one of "):
        second.wait(where=tmp_path / "elsewhere")


def test_a_lost_root_comes_back_by_itself(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    far = tmp_path / "far"
    options = HOST_MEMORY | {"mirrors": [cairn.Mirror(far)], "restore_from": far}
    with pytest.raises(cairn.Error, match="no such directory: is its disk mounted"):
        cairn.Checkpointer(root, **options)
    far.mkdir()
    with cairn.Checkpointer(root, **options) as checkpointer:
        with pytest.raises(cairn.NotFound):
            checkpointer.restore(tree(0))
        for step in (1, 2):
            checkpointer.save(step, tree(step)).wait()
    assert f"restore_from {far}: it has no checkpoint, so the root begins empty" in caplog.text
    shutil.rmtree(root)

    with cairn.Checkpointer(root, **options) as checkpointer:
        found = checkpointer.restore(tree(0))
        assert checkpointer.steps() == [2]
        checkpointer.save(3, tree(3)).wait(60, where=far)
    shutil.rmtree(root)
    with cairn.Checkpointer(root, **options) as checkpointer:
        assert checkpointer.steps() == [3]

    assert found["step"] == 2 and torch.equal(found["weight"], tree(2)["weight"])
    expect_whole(far, 1, 2, 3)


def test_a_mirror_that_is_no_mirror_of_the_root_is_named_and_nothing_is_opened(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(cairn.Error, match=f"restore_from {tmp_path / 'file'}: ") as raised:
        cairn.Checkpointer(root, restore_from=tmp_path / "file", **HOST_MEMORY)
    assert not isinstance(raised.value, cairn.NotFound)


def test_what_is_no_mirror_is_refused_before_anything_is_opened(root: Path, tmp_path: Path) -> None:
    for mirrors, message in (
        ([tmp_path], r"mirrors: expected cairn.Mirror\(target, ...\), found "),
        ([cairn.Mirror(tmp_path, every=0)], "every: expected 1 or more, found 0"),
        ([cairn.Mirror(tmp_path, keep_last=-1)], "keep_last: expected a whole number of 0 or more"),
    ):
        with pytest.raises(cairn.InvalidArgument, match=message):
            cairn.Checkpointer(root, mirrors=mirrors)  # type: ignore[arg-type]
    with pytest.raises(cairn.Unsupported, match="ftp://host/run"):
        cairn.Checkpointer(root, mirrors=[cairn.Mirror("ftp://host/run")])
    assert not root.exists()


def test_a_reader_starts_none(root: Path, tmp_path: Path) -> None:
    with cairn.Checkpointer(root, **HOST_MEMORY) as checkpointer:
        checkpointer.save(1, tree(1)).wait()

    with cairn.Checkpointer(root, read_only=True, mirrors=[cairn.Mirror(tmp_path / "mirror")], **HOST_MEMORY):
        pass

    assert not (tmp_path / "mirror").exists()
