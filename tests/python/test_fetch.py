"""The way back from a mirror, and what an object store has, by the command: `cairn fetch`, `ls`, `show`, `verify`.

The store is a folder, through rclone's `local` backend; tests/stores has servers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
from jobs import COMMAND, expect_whole

RCLONE = shutil.which("rclone")
pytestmark = pytest.mark.skipif(RCLONE is None, reason="rclone is not installed")
Run = Callable[..., subprocess.CompletedProcess[str]]

# Stands in for rclone in PATH: notes what each call is told, and does it.
NOTING = """#!/bin/sh
printf '%s\\n' "$*" >>"$RCLONE_CALLS"
exec "$RCLONE" "$@"
"""


def runner(folder: Path) -> Run:
    """Runs the command where rclone knows the remote `disk`; its calls are noted in folder/calls."""
    program = folder / "bin" / "rclone"
    program.parent.mkdir()
    program.write_text(NOTING)
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "RCLONE": str(RCLONE),
        "RCLONE_CALLS": str(folder / "calls"),
        "RCLONE_CONFIG_DISK_TYPE": "local",
    }

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([COMMAND, *arguments], env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runner(tmp_path)


def tree(step: int) -> dict[str, Any]:
    generator = np.random.default_rng(step)
    # The list is a value that is too long for a header.
    return {"weight": generator.random((700, 1000), np.float32), "seen": list(range(step, 40_000)), "step": step}


def save(root: Path, *steps: int) -> None:
    with cairn.Checkpointer(root, host_memory="16MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        for step in steps:
            checkpointer.save(step, tree(step), metrics={"loss": 1 / step}).wait()


def timeless(text: str) -> Any:
    """What the command says in JSON, without when and where."""
    found = json.loads(text)
    for one in found if isinstance(found, list) else [found]:
        del one["time"], one["path"]
    return found


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    save(folder / "run", 1, 2)
    done = runner(folder)("mirror", folder / "run", f"rclone:disk:{folder}/store", "--once")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder / "run/.mirrors")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> str:
    """The store tmp_path/store, which has steps 1 and 2 of tmp_path/run."""
    for name in ("run", "store"):
        shutil.copytree(made / name, tmp_path / name)
    return f"rclone:disk:{tmp_path}/store"


def test_a_store_is_listed_and_shown_as_the_root_is_from_ranges(run: Run, place: str, tmp_path: Path) -> None:
    root = tmp_path / "run"

    listed, shown = run("ls", place, "--json"), run("show", place, "--json")
    table, first, folder = run("ls", place), run("show", place, "1"), run("show", f"{place}/step-1")

    assert timeless(listed.stdout) == timeless(run("ls", root, "--json").stdout), listed.stderr
    assert [one["metrics"]["loss"] for one in json.loads(listed.stdout)] == [1, 0.5]
    assert timeless(shown.stdout) == timeless(run("show", root, "--json").stdout), shown.stderr
    assert len(json.loads(shown.stdout)["values"]) == 1
    assert table.stdout.splitlines()[0].split() == ["STEP", "TIME", "SIZE", "RANKS", "METRICS"]
    assert first.stdout.startswith("step 1  2") and first.stdout == folder.stdout
    attempt = json.loads(listed.stdout)[0]["path"]
    assert run("show", attempt).stdout == first.stdout
    counts = [
        int(word.partition("=")[2])
        for call in (tmp_path / "calls").read_text().splitlines()
        for word in call.split()
        if word.startswith("--count")
    ]
    assert len(counts) >= 8 and max(counts) < 300_000  # A shard has 2.8 MB.


def test_what_is_not_there_is_named(run: Run, place: str) -> None:
    no_step = run("show", place, "7")
    no_folder = run("verify", f"{place}/step-7")
    both = run("show", f"{place}/step-1", "1")
    a_folder = run("ls", f"{place}/step-{1:020}")
    empty = run("ls", f"{place}/nothing")
    compared = run("diff", place, place)

    for refused in (no_step, no_folder, both, a_folder, compared):
        assert refused.returncode == 2 and refused.stdout == "", refused
    assert f"NotFound: there is no step 7 under {place}; there are 1, 2" in no_step.stderr
    assert f"NotFound: there is no step 7 under {place}; there are 1, 2" in no_folder.stderr
    assert "a checkpoint's folder takes no step" in both.stderr
    assert "expected a place of checkpoints, found a checkpoint's folder" in a_folder.stderr
    assert empty.stdout == f"there is no checkpoint under {place}/nothing\n"
    assert f"{place}: expected a directory; `cairn fetch` brings one from an object store" in compared.stderr


def test_verify_names_the_object_and_the_tensor(run: Run, place: str, tmp_path: Path) -> None:
    good = run("verify", place)
    (shard,) = (tmp_path / "store").glob(f"step-{2:020}.*/shard-00000.safetensors")
    content = bytearray(shard.read_bytes())
    content[1_000_000] ^= 1
    shard.write_bytes(content)

    bad, one = run("verify", place), run("verify", place, "1")
    shard.write_bytes(content[:-1])
    short, listed = run("verify", place, "--step", "2"), run("ls", place)

    assert good.returncode == 0 and good.stdout.count(": ok\n") == 2, good.stderr
    assert bad.returncode == 1 and one.returncode == 0
    name = f"{place}/{shard.parent.name}/{shard.name}"
    assert f"Corrupt: {name}: CRC32C of data bytes" in bad.stderr and 'of tensor "weight"' in bad.stderr
    assert f"Corrupt: {name}: expected {len(content)} bytes, found {len(content) - 1}" in short.stderr
    assert short.returncode == listed.returncode == 1
    assert f"Corrupt: {name}" in listed.stdout


@pytest.mark.parametrize("kind", ["store", "directory"])
def test_fetch_brings_back_what_the_mirror_has_newest_first(kind: str, run: Run, place: str, tmp_path: Path) -> None:
    root, target = tmp_path / "run", place
    if kind == "directory":
        target = str(tmp_path / "mirror")
        assert run("mirror", root, target, "--once").returncode == 0
    shutil.rmtree(root)

    newest = run("fetch", target, root, "--keep-last", "1")
    expect_whole(root, 2)
    rest = run("fetch", target, root, "--bandwidth", "1GB")

    assert newest.returncode == rest.returncode == 0, newest.stderr + rest.stderr
    assert newest.stdout.startswith("copied step 2, ") and rest.stdout.startswith("copied step 1, ")
    expect_whole(root, 1, 2)
    with cairn.Checkpointer(root, read_only=True) as reader:
        found = reader.restore(tree(0) | {"weight": np.zeros((700, 1000), np.float32)})
    assert np.array_equal(found["weight"], tree(2)["weight"]) and found["seen"] == tree(2)["seen"]


def test_one_way_leads_there_and_one_back(run: Run, place: str, tmp_path: Path) -> None:
    by_mirror = run("mirror", place, tmp_path / "back", "--once")
    to_a_store = run("fetch", tmp_path / "run", place)
    from_nothing = run("fetch", tmp_path / "nowhere", tmp_path / "back")
    no_rate = run("fetch", place, tmp_path / "back", "--bandwidth", "0")

    for refused in (by_mirror, to_a_store, from_nothing, no_rate):
        assert refused.returncode == 2 and refused.stdout == "", refused
    assert "expected a directory; `cairn fetch` brings back what an object store has" in by_mirror.stderr
    assert f"{place}: expected a directory, to which {tmp_path / 'run'} is brought back" in to_a_store.stderr
    assert f"NotFound: {tmp_path / 'nowhere'}" in from_nothing.stderr
    assert "--bandwidth: expected at least 1 byte, found 0" in no_rate.stderr
    assert not (tmp_path / "back").exists()


def test_what_is_damaged_there_is_passed_over(run: Run, place: str, tmp_path: Path) -> None:
    (shard,) = (tmp_path / "store").glob(f"step-{2:020}.*/shard-00000.safetensors")
    flip_a_bit(shard)

    back = run("fetch", place, tmp_path / "back", "--keep-last", "1")
    for manifest in (tmp_path / "store").glob("*/manifest.json"):
        manifest.write_text("{}")
    nothing = run("fetch", place, tmp_path / "nothing")

    assert back.returncode == 1
    assert f"Corrupt: {place}/{shard.parent.name}/{shard.name}: CRC32C of data bytes" in back.stderr
    expect_whole(tmp_path / "back", 1)
    assert nothing.returncode == 1 and nothing.stdout == ""
    assert nothing.stderr.count("manifest.json: digest: expected 8 digits") == 2


def test_a_parent_that_ignores_how_children_end(tmp_path: Path) -> None:
    ignoring = ["sh", "-c", 'trap \'\' CHLD; exec "$0" "$@"', COMMAND]

    done = subprocess.run([*ignoring, "ls", "rclone:unknown:x"], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "IoError: listing rclone:unknown:x: rclone ended with exit code 1: " in done.stderr


def test_a_root_that_may_only_be_read_is_copied(tmp_path: Path) -> None:
    root, read_only, back = tmp_path / "run", tmp_path / "read-only", tmp_path / "back"
    save(root, 1, 2)
    read_only.mkdir()
    inside = ["unshare", "--mount", "sh", "-c"]
    mount = f"mount --bind {root} {read_only} && mount -o remount,bind,ro {read_only}"
    tried = subprocess.run([*inside, mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a read-only mount: {tried.stderr}")

    program = f'{mount} && exec "$0" fetch {read_only} {back}'
    done = subprocess.run([*inside, program, str(COMMAND)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "its checkpoints are locked while they are copied" in done.stderr
    expect_whole(back, 1, 2)
    assert not (root / ".mirrors").exists()


def test_a_filesystems_own_root_is_a_target(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "run", 1)
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)

    done = run("mirror", tmp_path / "run", tmp_path / "disk", "--once")

    assert done.returncode == 0, done.stderr
    expect_whole(tmp_path / "disk", 1)


def test_errors_name_files_as_they_are_in_the_root(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    save(root, 1)
    shard = root / f"step-{1:020}" / "shard-00000.safetensors"
    flip_a_bit(shard)

    done = run("mirror", root, tmp_path / "mirror", "--once")

    assert done.returncode == 1
    assert f"Corrupt: {shard}: CRC32C of data bytes" in done.stderr
    (record,) = root.glob(".mirrors/*.json")
    assert json.loads(record.read_text())["error"].startswith(f"Corrupt: {shard}: ")
