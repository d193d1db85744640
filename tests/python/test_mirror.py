"""`cairn mirror` beside a job: what it copies restores bit by bit, whatever is killed, and training never waits for it."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from jobs import COMMAND, expect_whole

READER = Path(__file__).parents[1] / "format"


def tree(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(700, 1000, generator=generator),
        "bias": torch.randn(7, generator=generator),
        "step": step,
    }


def save(root: Path, *steps: int, **options: Any) -> None:
    with cairn.Checkpointer(root, host_memory="64MiB", **options) as checkpointer:
        for step in steps:
            checkpointer.save(step, tree(step)).wait()


def expect_restored(root: Path, step: int) -> None:
    blank = {"weight": torch.zeros(700, 1000), "bias": torch.zeros(7), "step": 0}
    with cairn.Checkpointer(root, host_memory="64MiB") as checkpointer:
        found = checkpointer.restore(blank)
    want = tree(step)
    assert found["step"] == step
    assert all(torch.equal(found[name], want[name]) for name in ("weight", "bias"))


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)


class Mirror:
    """One that goes on. Its events are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def wait_for(self, step: int | None = None) -> None:
        """Until it has copied this step, or any one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            assert event["event"] == "copied", event
            if step in (None, event["step"]):
                return
        pytest.fail(f"the mirror has ended with {self.process.wait()} before step {step}")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@contextmanager
def mirror(root: Path, target: Path, *options: str) -> Iterator[Mirror]:
    arguments = [str(COMMAND), "mirror", str(root), str(target), "--json", *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Mirror(process)
        finally:
            process.kill()


def test_a_lost_disk_costs_what_the_mirror_had_not_copied(tmp_path: Path) -> None:
    root, target = tmp_path / "run", tmp_path / "disk" / "mirror"
    save(root, 1)
    with mirror(root, target, "--keep-last", "2") as beside:
        with cairn.Checkpointer(root, host_memory="64MiB", keep_last=1) as checkpointer:
            for step in (2, 3, 4):
                checkpointer.save(step, tree(step)).wait()
                beside.wait_for(step)
        listed = {one["step"]: one.get("mirrors") for one in json.loads(run("ls", root, "--json").stdout)}
        assert beside.stop() == 0
    shutil.rmtree(root)

    back = run("fetch", target, root)

    assert listed == {4: [str(target)]}
    expect_whole(target, 3, 4)
    assert back.returncode == 0, back.stderr
    expect_whole(root, 3, 4)
    expect_restored(root, 4)
    expect_restored(target, 4)


def test_training_goes_on_from_the_target_in_a_line_above_the_lost_roots(tmp_path: Path) -> None:
    root, target = tmp_path / "run", tmp_path / "mirror"
    save(root, 1)
    save(root, 2)
    run("mirror", root, target, "--once")
    save(root, 3)

    with cairn.Checkpointer(target, host_memory="64MiB") as checkpointer:
        checkpointer.restore(tree(0))
        checkpointer.save(3, tree(30)).wait()
        line = checkpointer.checkpoints()[-1].line
    again = run("mirror", root, target, "--once")

    assert line > cairn.Checkpointer(root, read_only=True).checkpoints()[-1].line
    assert again.returncode == 0, again.stderr
    expect_restored(target, 30)


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    root, target = tmp_path / "run", tmp_path / "mirror"

    for step in range(1, 9, 2):
        save(root, step, step + 1, keep_last=0)
        with mirror(root, target) as beside:
            beside.wait_for()
            beside.process.send_signal(signal.SIGKILL)
            beside.process.wait()
        with cairn.Checkpointer(target, read_only=True) as reader:
            for one in reader.steps():
                reader.verify(one)
    done = run("mirror", root, target, "--once")

    assert done.returncode == 0, done.stderr
    expect_whole(target, *range(1, 9))
    assert [path.name for path in target.iterdir() if path.name.startswith(".retired") or "attempt" in path.name] == []
    assert list(root.glob(".mirrors/*/step-*")) == []


def test_the_documented_reader_reads_what_it_has_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(READER))
    cairn_reader = importlib.import_module("cairn_reader")
    root, target = tmp_path / "run", tmp_path / "mirror"
    with cairn.Checkpointer(root, host_memory="64MiB") as checkpointer:
        checkpointer.save(1, {"weight": torch.arange(1000.0), "step": 1}).wait()
    assert run("mirror", root, target, "--once").returncode == 0

    (folder,) = target.glob("step-*")
    manifest = cairn_reader.read_manifest(folder)
    _, tensors, _, _ = cairn_reader.read_shard(folder, manifest["shards"][0])

    assert manifest["step"] == 1
    assert tensors
    assert (folder / "manifest.json").read_bytes() == (root / folder.name / "manifest.json").read_bytes()


def test_damage_is_passed_over_and_told(tmp_path: Path) -> None:
    root, target = tmp_path / "run", tmp_path / "mirror"
    save(root, 1, 2)
    shard = root / f"step-{2:020}" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)

    done = run("mirror", root, target, "--once")
    listed = run("ls", root)

    assert done.returncode == 1
    assert "copied step 1, " in done.stdout
    assert f"{shard.name}: CRC32C of data bytes" in done.stderr
    expect_whole(target, 1)
    assert f"mirror {target}: Corrupt: " in listed.stdout


def test_a_target_that_is_full_is_named_and_keeps_what_it_has(tmp_path: Path) -> None:
    root, disk = tmp_path / "run", tmp_path / "disk"
    save(root, 1, 2)
    disk.mkdir()
    inside = ["unshare", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=4m none {disk}"  # Room for one checkpoint of 2.8 MB.
    tried = subprocess.run([*inside, mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"mounting a tmpfs: {tried.stderr}")

    program = f'{mount} && "$0" mirror {root} {disk}/mirror --once; echo exit $?; ls {disk}/mirror'
    done = subprocess.run([*inside, program, str(COMMAND)], capture_output=True, text=True, check=False)

    assert "copied step 2, " in done.stdout and "exit 2" in done.stdout
    assert "NoSpace: " in done.stderr and str(disk) in done.stderr
    assert done.stdout.splitlines()[-1] == f"step-{2:020}"
    assert list(root.glob(".mirrors/*/step-*")) == []


@pytest.mark.parametrize("gone", ["moved", "removed"])
def test_a_root_that_is_gone_ends_its_mirror(gone: str, tmp_path: Path) -> None:
    root, target = tmp_path / "run", tmp_path / "mirror"
    save(root, 1)
    arguments = [COMMAND, "mirror", root, target, "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as beside:
        Mirror(beside).wait_for(1)
        if gone == "moved":
            root.rename(tmp_path / "elsewhere")
        while root.exists():  # The mirror may write beside it.
            shutil.rmtree(root, ignore_errors=True)
        _, said = beside.communicate(timeout=60)

    assert beside.returncode == 2
    assert f"FailedPrecondition: {root} was moved or removed while it was mirrored" in said
    expect_whole(target, 1)


def test_wrong_targets_are_refused(tmp_path: Path) -> None:
    root, other = tmp_path / "run", tmp_path / "other"
    save(root, 1)
    save(other, 7)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")

    home = run("mirror", root, tmp_path / "home", "--once")
    another = run("mirror", root, other, "--once", "--keep-last", "1")
    unknown = run("mirror", root, "ftp://host/run", "--once")
    inside = run("mirror", root, root / "mirror", "--once")
    missing = run("mirror", tmp_path / "nowhere", other, "--once")

    for refused in (home, another, unknown, inside, missing):
        assert refused.returncode == 2 and refused.stdout == "", refused
    assert "is not a directory of Cairn's checkpoints" in home.stderr
    assert f"{other} is not a copy of that root: expected the id " in another.stderr
    assert "expected a directory, s3://, gs://, az:// or rclone:REMOTE:PATH" in unknown.stderr
    expect_whole(other, 7)
    with mirror(root, tmp_path / "mirror") as first:
        first.wait_for(1)
        second = run("mirror", root, tmp_path / "mirror", "--once")
    assert second.returncode == 2
    assert f"is mirrored to {tmp_path / 'mirror'} already, by process {first.process.pid}" in second.stderr
