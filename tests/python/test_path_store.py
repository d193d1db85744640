"""Checkpoints by path: what is there at any moment, in which order, and after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cairn
import pytest
import safetensors.torch
import torch
from cairn._path_store import PathStore, staging_of
from ranks import World

SMALL: dict[str, Any] = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}
Make = Callable[..., PathStore]


@pytest.fixture
def make() -> Iterator[Make]:
    opened: list[PathStore] = []

    def open_one(**options: Any) -> PathStore:
        opened.append(PathStore(**{**SMALL, **options}))
        return opened[-1]

    yield open_one
    for one in opened:
        try:
            one.close()
        except cairn.Error:
            pass  # The test's own.


def tree(value: float, elements: int = 10) -> dict[str, Any]:
    return {"t": torch.full((elements,), value), "value": value}


def load(store: PathStore, path: Path) -> Any:
    with store.reader(path) as reader:
        return reader.load(folder=path)


def shown_at(path: Path) -> float:
    """By a program that knows nothing of what is on its way."""
    return float(safetensors.torch.load_file(path / "shard-00000.safetensors")["t"][0])


def value_at(path: Path) -> float:
    """By another reader of this process, which waits for what is on its way."""
    loaded = load(PathStore(**SMALL), path)
    assert bool((loaded["t"] == loaded["value"]).all())
    return float(loaded["value"])


@contextmanager
def being_read(path: Path) -> Iterator[None]:
    """What replaces or removes this checkpoint waits for as long."""
    with open(path / "manifest.json", "rb") as manifest:
        fcntl.flock(manifest, fcntl.LOCK_SH)
        yield


def test_a_path_that_is_read_without_end_is_named_with_its_reader(make: Make, tmp_path: Path) -> None:
    store, path = make(full_timeout=0.1), tmp_path / "last.ckpt"
    store.save(tree(1), path).result()
    reader = f"process {os.getpid()}"

    with being_read(path):
        with pytest.raises(cairn.DeadlineExceeded, match=f"last.ckpt cannot be replaced.* {reader}"):
            store.save(tree(2), path).result(60)
        with pytest.raises(cairn.DeadlineExceeded, match="last.ckpt"):
            store.check()
        with pytest.raises(cairn.DeadlineExceeded, match=f"last.ckpt cannot be replaced or removed.* {reader}"):
            store.remove(path).result(60)

    assert value_at(path) == 1
    with pytest.raises(cairn.DeadlineExceeded):
        store.check()
    store.save(tree(3), path).result()
    assert value_at(path) == 3
    assert not [name for name in os.listdir(staging_of(str(tmp_path))) if name.startswith(("step-", ".retired-"))]


def names(folder: Path) -> set[str]:
    """Every name in the folder and in what is staged for it."""
    staged = Path(staging_of(str(folder)))
    return {entry.name for root in (folder, staged) for entry in root.iterdir()} - {".lock", ".writer"}


def test_each_path_holds_its_checkpoint(make: Make, tmp_path: Path) -> None:
    store = make()
    paths = [tmp_path / f"epoch={i}-step={i}.ckpt" for i in range(5)]
    saves = [store.save(tree(i, 300_000), path) for i, path in enumerate(paths)]
    for save in saves:
        save.result()

    assert [value_at(path) for path in paths] == [0, 1, 2, 3, 4]
    assert names(tmp_path) == {path.name for path in paths}


def test_a_folder_shows_its_checkpoints_and_nothing_else(make: Make, tmp_path: Path) -> None:
    store, folder = make(), tmp_path / "run" / "checkpoints"
    saves = [store.save(tree(i, 300_000), folder / f"{i}.ckpt") for i in range(2)]
    shown = {frozenset(os.listdir(folder)) for save in saves if save.exception() is None}
    store.remove(folder / "0.ckpt").result()
    store.close()

    assert shown <= {frozenset({"0.ckpt"}), frozenset({"0.ckpt", "1.ckpt"})}
    assert os.listdir(folder) == ["1.ckpt"]
    assert staging_of(str(folder)) == str(tmp_path / "run" / ".checkpoints.cairn")


def test_where_no_rename_from_beside_the_folder_works_it_is_inside() -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mount = next(path for path in mounts if os.path.ismount(path) and os.path.isdir(path))

    assert staging_of(mount) == os.path.join(os.path.realpath(mount), ".cairn")


def test_chunks_by_the_pool_are_read_back(make: Make, tmp_path: Path) -> None:
    store = make(chunk=0, queue_depth=2)
    store.save(tree(3), tmp_path / "a.ckpt").result()

    assert load(store, tmp_path / "a.ckpt")["value"] == 3


def test_a_checkpoint_may_be_copied_and_moved(make: Make, tmp_path: Path) -> None:
    store = make()
    store.save(tree(3), tmp_path / "a.ckpt").result()
    shutil.copytree(tmp_path / "a.ckpt", tmp_path / "copy")
    (tmp_path / "elsewhere").mkdir()
    os.rename(tmp_path / "a.ckpt", tmp_path / "elsewhere" / "moved")

    assert value_at(tmp_path / "copy") == value_at(tmp_path / "elsewhere" / "moved") == 3


def test_what_a_path_held_stays_until_the_next_is_durable(make: Make, tmp_path: Path) -> None:
    store, last = make(), tmp_path / "last.ckpt"
    store.save(tree(1), last).result()
    with being_read(last):
        later = store.save(tree(2), last)
        with pytest.raises(TimeoutError):
            later.result(timeout=0.3)
        assert shown_at(last) == 1
        with pytest.raises(cairn.DeadlineExceeded, match=r"last.ckpt: expected this process's save .* after 0.1 s"):
            load(PathStore(**SMALL, close_timeout=0.1), last)
    later.result()

    assert value_at(last) == 2
    assert names(tmp_path) == {"last.ckpt"}


def test_load_waits_for_what_is_on_its_way(make: Make, tmp_path: Path) -> None:
    store, last = make(), tmp_path / "last.ckpt"
    (tmp_path / "linked").symlink_to(tmp_path)

    for value, read in enumerate([lambda: load(store, last), lambda: cairn.load(tmp_path / "linked" / "last.ckpt")]):
        for earlier in range(2):
            store.save(tree(earlier, 500_000), last)
        store.save(tree(value + 2, 500_000), last)
        assert read()["value"] == value + 2

    store.save(tree(1, 500_000), tmp_path / "new.ckpt")
    assert value_at(tmp_path / "new.ckpt") == 1


def test_a_removal_waits_for_the_save_before_it(make: Make, tmp_path: Path) -> None:
    store = make()
    store.save(tree(1), tmp_path / "worst.ckpt").result()
    store.save(tree(1), tmp_path / "last.ckpt").result()
    with being_read(tmp_path / "last.ckpt"):
        store.save(tree(2), tmp_path / "last.ckpt")
        removal = store.remove(tmp_path / "worst.ckpt")
        with pytest.raises(TimeoutError):
            removal.result(timeout=0.3)
        assert shown_at(tmp_path / "worst.ckpt") == 1
    removal.result()

    assert names(tmp_path) == {"last.ckpt"}


def fail_the_next(folder: Path, step: int) -> None:
    """The name that the next save commits to is taken by something else."""
    theirs = Path(staging_of(str(folder))) / f"step-{step:020}"
    theirs.mkdir()
    (theirs / "theirs").write_text("")


def test_what_a_failed_save_displaced_stays(make: Make, tmp_path: Path) -> None:
    store = make()
    store.save(tree(1), tmp_path / "old.ckpt").result()
    fail_the_next(tmp_path, 2)
    save = store.save(tree(2), tmp_path / "new.ckpt")
    store.remove(tmp_path / "old.ckpt").result()

    assert isinstance(save.exception(), cairn.Error)
    assert value_at(tmp_path / "old.ckpt") == 1
    with pytest.raises(cairn.Error, match="step 2"):
        store.check()
    store.check()
    store.remove(tmp_path / "old.ckpt").result()
    assert not (tmp_path / "old.ckpt").exists()


def test_a_failure_is_raised_by_close(make: Make, tmp_path: Path) -> None:
    store = make()
    store.save(tree(1), tmp_path / "a.ckpt").result()
    fail_the_next(tmp_path, 2)
    store.save(tree(2), tmp_path / "a.ckpt")

    with pytest.raises(cairn.Error, match="step 2"):
        store.close()
    assert value_at(tmp_path / "a.ckpt") == 1


def test_a_save_in_flight_can_be_removed(make: Make, tmp_path: Path) -> None:
    store = make()
    store.save(tree(1, 500_000), tmp_path / "a.ckpt")
    store.remove(tmp_path / "a.ckpt")
    assert not store.exists(tmp_path / "a.ckpt")
    store.close()

    assert names(tmp_path) == set()


def test_exists_tells_what_will_be(make: Make, tmp_path: Path) -> None:
    store = make(max_in_flight=4)
    store.save(tree(1), tmp_path / "a.ckpt").result()
    with being_read(tmp_path / "a.ckpt"):
        store.save(tree(2), tmp_path / "a.ckpt")
        store.save(tree(3), tmp_path / "b.ckpt")
        assert store.exists(tmp_path / "b.ckpt") and not (tmp_path / "b.ckpt").exists()
        store.remove(tmp_path / "a.ckpt")
        assert not store.exists(tmp_path / "a.ckpt") and (tmp_path / "a.ckpt").exists()
        store.save(tree(4), tmp_path / "a.ckpt")
        assert store.exists(tmp_path / "a.ckpt")
    store.close()

    assert value_at(tmp_path / "a.ckpt") == 4 and value_at(tmp_path / "b.ckpt") == 3


def test_saves_on_their_way_to_a_path_are_bounded(make: Make, tmp_path: Path) -> None:
    store = make(full_timeout=0.01)
    store.save(tree(1), tmp_path / "a.ckpt").result()
    with being_read(tmp_path / "a.ckpt"):
        saves = {value: store.save(tree(value), tmp_path / "a.ckpt") for value in (2, 3)}
        with pytest.raises(cairn.DeadlineExceeded):
            store.save(tree(4), tmp_path / "a.ckpt")
    # On a busy machine the reader outlasts full_timeout for these as well.
    at_path = [1, *(value for value, save in saves.items() if save.exception(60) is None)]
    with contextlib.nullcontext() if len(at_path) == 3 else pytest.raises(cairn.DeadlineExceeded):
        store.close()
    assert value_at(tmp_path / "a.ckpt") == at_path[-1]


def test_what_is_no_checkpoint_is_left_alone(make: Make, tmp_path: Path) -> None:
    store = make()
    (tmp_path / "file.ckpt").write_text("of torch.save")
    (tmp_path / "folder.ckpt").mkdir()
    for name in ("file.ckpt", "folder.ckpt"):
        with pytest.raises(cairn.AlreadyExists, match=name):
            store.save(tree(1), tmp_path / name)
        store.remove(tmp_path / name).result()
        assert (tmp_path / name).exists()
    with pytest.raises(cairn.InvalidArgument, match="unpickles nothing"):
        load(store, tmp_path / "file.ckpt")
    with pytest.raises(cairn.Error, match="manifest"):
        load(store, tmp_path / "folder.ckpt")
    with pytest.raises(cairn.NotFound, match="missing.ckpt"):
        load(store, tmp_path / "missing.ckpt")
    store.remove(tmp_path / "missing.ckpt").result()


def test_a_link_is_replaced_and_removed_not_followed(make: Make, tmp_path: Path) -> None:
    store, link = make(), tmp_path / "last.ckpt"
    store.save(tree(1), tmp_path / "a.ckpt").result()
    link.symlink_to("a.ckpt")
    assert value_at(link) == 1
    store.save(tree(2), link).result()
    assert value_at(link) == 2 and not link.is_symlink() and value_at(tmp_path / "a.ckpt") == 1
    (tmp_path / "other.ckpt").symlink_to("a.ckpt")
    store.remove(tmp_path / "other.ckpt").result()

    assert names(tmp_path) == {"a.ckpt", "last.ckpt"}


def test_urls_are_refused(make: Make, tmp_path: Path) -> None:
    store = make()
    with pytest.raises(cairn.Unsupported, match="s3://bucket/a.ckpt"):
        store.save(tree(1), "s3://bucket/a.ckpt")
    store.save(tree(1), f"file://{tmp_path}/a.ckpt").result()
    assert value_at(tmp_path / "a.ckpt") == 1


def test_what_a_crash_left_is_swept(make: Make, tmp_path: Path) -> None:
    first = make()
    first.save(tree(1), tmp_path / "a.ckpt").result()
    first.close()
    staging = Path(staging_of(str(tmp_path)))
    # Committed, without its path; and what an exchange left: an older step's checkpoint under a newer one's name.
    with cairn.Checkpointer(staging, **SMALL) as checkpointer:
        checkpointer.save(7, tree(7))
    shutil.copytree(tmp_path / "a.ckpt", staging / f"step-{9:020}")
    # A link that an exchange left.
    (staging / f"step-{10:020}").symlink_to("../a.ckpt")
    # Two saves that were in flight: more than the next save could be written over.
    for number in range(2):
        shutil.copytree(tmp_path / "a.ckpt", staging / f".attempt-{uuid.UUID(int=number)}")
    second = make()
    second.save(tree(2), tmp_path / "b.ckpt").result()
    second.close()

    assert names(tmp_path) == {"a.ckpt", "b.ckpt"}
    assert value_at(tmp_path / "a.ckpt") == 1 and value_at(tmp_path / "b.ckpt") == 2


def test_what_cannot_be_removed_of_a_crash_stops_no_save(make: Make, tmp_path: Path) -> None:
    first = make()
    first.save(tree(1), tmp_path / "a.ckpt").result()
    first.close()
    staging = Path(staging_of(str(tmp_path)))
    for step in (1, 2):
        shutil.copytree(tmp_path / "a.ckpt", staging / f"step-{step:020}")
    (staging / f"step-{1:020}" / "mine").mkdir()
    second = make()

    for name in ("b.ckpt", "c.ckpt"):
        second.save(tree(2), tmp_path / name).result()

    assert value_at(tmp_path / "b.ckpt") == 2 and value_at(tmp_path / "c.ckpt") == 2


def test_one_store_may_serve_several_folders(make: Make, tmp_path: Path) -> None:
    store = make()
    for name in ("one", "two"):
        store.save(tree(1), tmp_path / name / "a.ckpt").result()
        store.save(tree(2), tmp_path / name / "a.ckpt").result()
    store.remove(tmp_path / "one" / "a.ckpt").result()

    assert value_at(tmp_path / "two" / "a.ckpt") == 2
    assert names(tmp_path / "one") == set()


def test_ranks_save_on_after_a_value_that_one_rank_alone_cannot_keep(
    worlds: Callable[..., World], tmp_path: Path
) -> None:
    world, last = worlds(2), str(tmp_path / "last.ckpt")
    world.all("from cairn._path_store import PathStore")
    world.all(f"s = PathStore(**{ {**SMALL, 'group_timeout': 20}!r})")
    save = f"s.save({{'v': VALUE}}, {last!r}, group=(store, rank, world)).exception()"
    alone = world.answers(save.replace("VALUE", "object() if rank == 1 else 1"))
    assert "value" in alone[0] and alone[1]["error"] == "InvalidArgument"
    heard = world.answers(save.replace("VALUE", "2"))
    assert ["a value of type object cannot be kept" in one["message"] for one in heard] == [True, True]

    assert world.all(save.replace("VALUE", "3")) == [None, None]
    assert world.all("s.close()") == [None, None]


def test_refused_options_and_pickling(tmp_path: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match="keep_last"):
        PathStore(keep_last=3)
    with pytest.raises(cairn.InvalidArgument, match="expected a size"):
        PathStore(host_memory="much")
    copy = pickle.loads(pickle.dumps(PathStore(**SMALL)))
    copy.save(tree(1), tmp_path / "a.ckpt").result()
    copy.close()
    assert value_at(tmp_path / "a.ckpt") == 1


def test_sigkill_leaves_one_whole_and_none_older_than_acknowledged(make: Make, tmp_path: Path) -> None:
    code = """
        import itertools, sys, torch
        from cairn._path_store import PathStore
        store = PathStore(host_memory="8MiB", chunk="1MiB", queue_depth=2)
        before = None
        for value in itertools.count(1):
            save = store.save({"t": torch.full((100_000,), float(value)), "value": float(value)}, sys.argv[1])
            if before:
                before.result()
                print(value - 1, flush=True)
            before = save
    """
    last = tmp_path / "last.ckpt"
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(last)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    acknowledged = 0
    while acknowledged < 20:
        acknowledged = int(child.stdout.readline())
    child.kill()
    acknowledged = max([acknowledged] + [int(line) for line in child.stdout.read().split()])
    child.wait()

    assert value_at(last) >= acknowledged
    store = make()
    store.save(tree(0.5), tmp_path / "next.ckpt").result()
    store.close()  # What the killed one has left goes behind the save.
    assert names(tmp_path) == {"last.ckpt", "next.ckpt"}
