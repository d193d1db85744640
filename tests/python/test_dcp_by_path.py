"""cairn.dcp in place of torch.distributed.checkpoint: the same calls, with a path. test_docs.py has it with ranks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch

pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
from cairn import dcp
from cairn._dcp import by_path

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SMALL: Any = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, "worker_threads": 1}


def uploaded(response: Any) -> None:
    getattr(response, "upload_completion", response).result(60)  # Before torch 2.9 it is that future itself.


def test_a_path_is_saved_and_loaded_by_each_call(root: Path) -> None:
    checkpointer = dcp.checkpointer_for(root / "step-1", **SMALL)
    dcp.save({"w": torch.ones(3), "n": 1}, checkpoint_id=root / "step-1")
    uploaded(dcp.async_save({"w": torch.full((3,), 2.0), "n": 2}, checkpoint_id=f"{root}/step-2"))
    assert dcp.checkpointer_for(f"{root}/3/") is checkpointer
    assert checkpointer.steps() == [1, 2]

    for step in (1, 2):
        got = {"w": torch.zeros(3), "n": 0}
        dcp.load(got, checkpoint_id=str(root / f"step-{step}"))
        assert got["w"].tolist() == [step] * 3 and got["n"] == step  # type: ignore[union-attr]

    dcp.save({"w": torch.full((3,), 5.0), "n": 5}, checkpoint_id=root / "step-2")  # DCP replaces, too.
    got = {"n": 0}
    dcp.load(got, checkpoint_id=root / "step-2")
    assert got == {"n": 5}
    checkpointer.close()


def test_a_save_after_a_load_continues_from_it(root: Path) -> None:
    first = dcp.checkpointer_for(root / "step-1", **SMALL)
    for step in (1, 2, 3):
        dcp.save({"n": step}, checkpoint_id=root / f"step-{step}")
    first.close()  # As the end of its process.

    dcp.load({"n": 0}, checkpoint_id=root / "step-1")
    dcp.checkpointer_for(root / "step-1", **SMALL)
    dcp.save({"n": 22}, checkpoint_id=root / "step-2")

    got = {"n": 0}
    dcp.load(got, checkpoint_id=root / "step-2")
    assert got == {"n": 22}
    with pytest.raises(cairn.InvalidArgument, match="is open already: options count at the first call only"):
        dcp.checkpointer_for(root / "step-1", **SMALL)
    dcp.checkpointer_for(root / "step-1").close()


class Pickled:
    """Says so when it is pickled."""

    def __reduce__(self) -> Any:
        raise AssertionError("pickled")


def test_a_root_that_nobody_uses_is_closed_before_the_next_one_opens(root: Path) -> None:
    asked_for = dcp.checkpointer_for(root / "asked-1", **SMALL)
    responses = []
    for epoch in range(3):
        dcp.save({"n": epoch}, checkpoint_id=root / f"epoch-{epoch}-step-1")
        responses.append(dcp.async_save({"n": epoch}, checkpoint_id=root / f"epoch-{epoch}-step-2"))
    for response in responses:
        uploaded(response)
    dcp.save({"n": 3}, checkpoint_id=root / "epoch-3-step-1")

    opened = [known.checkpointer for known in by_path._roots.values() if known.checkpointer is not None]
    assert [Path(one.root).name for one in opened if not one._engine.closed] == ["asked-", "epoch-3-step-"]
    for epoch in range(3):
        for step in (1, 2):
            got = {"n": -1}
            dcp.load(got, checkpoint_id=root / f"epoch-{epoch}-step-{step}")
            assert got == {"n": epoch}
    dcp.save({"n": 9}, checkpoint_id=root / "epoch-0-step-3")
    asked_for.close()


def test_one_root_by_two_names_and_a_root_that_was_removed(root: Path) -> None:
    (root / "real").mkdir(parents=True)
    (root / "link").symlink_to(root / "real")
    dcp.save({"n": 1}, checkpoint_id=root / "real/step-1")
    dcp.save({"n": 2}, checkpoint_id=root / "link/step-2")
    got = {"n": 0}
    dcp.load(got, checkpoint_id=root / "real/step-2")
    assert got == {"n": 2}

    shutil.rmtree(root / "real")
    dcp.save({"n": 3}, checkpoint_id=root / "real/step-1")
    dcp.load(got, checkpoint_id=root / "real/step-1")
    assert got == {"n": 3}


def test_a_load_right_after_async_save_reads_what_it_saves(root: Path) -> None:
    got = {"w": torch.zeros(1_000_000), "n": 0}
    for value in (1, 2):
        response = dcp.async_save(
            {"w": torch.full((1_000_000,), float(value)), "n": value}, checkpoint_id=root / "step-1"
        )
        dcp.load(got, checkpoint_id=root / "step-1")
        assert got["n"] == value and bool((got["w"] == value).all())
        uploaded(response)
    dcp.checkpointer_for(root / "step-1").close()


def test_what_cannot_be_kept_is_refused_before_anything_is_pickled(root: Path) -> None:
    checkpointer = dcp.checkpointer_for(root / "step-1", **SMALL)
    for save in (dcp.save, dcp.async_save):
        with pytest.raises(BaseException, match="odd: a value of type .*Pickled cannot be kept"):
            uploaded(save({"odd": Pickled()}, checkpoint_id=root / "step-1"))
    assert checkpointer.steps() == []
    checkpointer.close()


@pytest.mark.parametrize(
    ("path", "root", "step"),
    [
        ("/runs/a/step-1000", "/runs/a", 1000),
        ("/runs/a/1000/", "/runs/a", 1000),
        ("/runs/a/step-0007", "/runs/a", 7),
        ("/runs/a/step_7", "/runs/a/step_", 7),
        ("/runs/a/epoch-3", "/runs/a/epoch-", 3),
        ("/runs/a/epoch_3", "/runs/a/epoch_", 3),
        ("/runs/a/epoch=3-step=900", "/runs/a/epoch=3-step=", 900),
        ("/runs/a-1", "/runs/a-", 1),
        ("file:///runs/a/step-1", "/runs/a", 1),
        ("~/step-1", os.path.expanduser("~"), 1),
    ],
)
def test_the_number_at_the_end_of_a_path_is_the_step(path: str, root: str, step: int) -> None:
    from cairn._dcp.by_path import parse_path

    assert parse_path(path) == (root, step)


@pytest.mark.parametrize(
    "path", ["/runs/last", "", None, 7, "/7", "/step-7", "/runs/a1", "/runs/lr0.001", "/runs/epoch-3.5", "/runs/-5"]
)
@pytest.mark.parametrize("call", [dcp.save, dcp.async_save, dcp.load])
def test_a_path_that_is_no_step_for_certain_is_refused(path: Any, call: Any) -> None:
    with pytest.raises(
        cairn.InvalidArgument, match='a path that ends with the step, such as "runs/a/step-1000", found'
    ):
        call({"w": torch.ones(1)}, checkpoint_id=path)


@pytest.mark.parametrize(
    "call", [dcp.save, dcp.async_save, dcp.load, lambda _, checkpoint_id: dcp.checkpointer_for(checkpoint_id)]
)
def test_a_url_is_refused(call: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cairn.Unsupported, match="s3://bucket/a/step-1: Cairn saves to mounted filesystems only"):
        call({"w": torch.ones(1)}, checkpoint_id="s3://bucket/a/step-1")
    assert list(tmp_path.iterdir()) == []


def test_a_path_beside_a_writer_or_reader_goes_to_that(make: Any, root: Path, tmp_path: Path) -> None:
    """As with DCP's own call: the writer takes it as its checkpoint_id, or refuses it."""
    checkpointer = make()
    elsewhere = tmp_path / "elsewhere" / "step-1"
    for call in (dcp.save, dcp.async_save):
        with pytest.raises(
            cairn.InvalidArgument, match="checkpoint_id: expected the step, a number of 0 or more, found"
        ):
            uploaded(
                call(
                    {"w": torch.ones(3)},
                    checkpoint_id=str(elsewhere),
                    storage_writer=dcp.StorageWriter(checkpointer, 7),
                )
            )
    dcp.save({"w": torch.ones(3)}, checkpoint_id="8", storage_writer=dcp.StorageWriter(checkpointer))
    assert checkpointer.steps() == [8] and not elsewhere.parent.exists()

    with pytest.raises(cairn.InvalidArgument, match="checkpoint_id: expected the step"):
        dcp.load({"w": torch.zeros(3)}, checkpoint_id=elsewhere, storage_reader=dcp.StorageReader(checkpointer))
    got = {"w": torch.zeros(3)}
    dcp.load(got, checkpoint_id="8", storage_reader=dcp.StorageReader(checkpointer, 1))
    assert got["w"].tolist() == [1.0] * 3
