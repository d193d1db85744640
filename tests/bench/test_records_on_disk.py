"""The files of a recorded pipeline: which run they are of, when a disk fills, and what stays as it was; real processes."""

from __future__ import annotations

import csv
import dataclasses
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")

import torch.distributed as dist
from cairn_bench.reconfigure import train as program
from cairn_bench.reconfigure.jobs import Failed, Job
from cairn_bench.reconfigure.layout import Layout
from cairn_bench.reconfigure.records import Recording
from cairn_bench.reconfigure.train import Settings, train

SETTINGS = Settings("", Layout(1, 1, 2), 2, host_memory="32MiB", timeout=60)


def ran(root: Path, records: Path | None, **changed: Any) -> Job:
    """The job in that root; recorded into that folder, if there is one."""
    folder = str(records) if records else ""
    settings = dataclasses.replace(SETTINGS, root=str(root), export_timing_csv=folder, **changed)
    with Job(settings.layout.world, train, settings) as job:
        return job.finish(120)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_of_fewer_ranks_leaves_no_file_of_an_earlier_run(tmp_path: Path) -> None:
    records = tmp_path / "records"
    ran(tmp_path / "first", records)
    for other in ("instructions-.csv", "instructions-7.csv.old", "my-instructions-7.csv", "time-energy-0.json"):
        (records / other).write_text("not ours")
    before = contents(records)

    ran(tmp_path / "second", records, layout=Layout(1, 1, 1))

    after = contents(records)
    assert before.keys() - after.keys() == {"instructions-1.csv", "time-energy-1.csv"}
    assert not after.keys() - before.keys()
    for name in ("instructions-0.csv", "time-energy-0.csv", "trace.json"):
        assert after[name] != before[name]


def test_a_run_with_nothing_left_to_do_keeps_the_records_of_its_steps(tmp_path: Path) -> None:
    ran(tmp_path / "run", tmp_path / "records")
    before = contents(tmp_path / "records")

    job = ran(tmp_path / "run", tmp_path / "records")

    assert contents(tmp_path / "records") == before
    assert not job.all("recorded") and [told["step"] for told in job.all("nothing_recorded")] == [2, 2]


def train_until_a_file_is_full(settings: Settings, tell: Callable[..., None]) -> None:
    """Rank 1 may write 256 bytes into a file once the training is over."""
    original = Recording.write

    def write(self: Recording, *arguments: Any) -> list[str]:
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (256, resource.RLIM_INFINITY))
        return original(self, *arguments)

    Recording.write = write
    train(settings, tell)


def test_a_full_disk_of_one_rank_ends_all_at_once_and_keeps_the_earlier_records(tmp_path: Path) -> None:
    ran(tmp_path / "first", tmp_path / "records")
    before = contents(tmp_path / "records")
    settings = dataclasses.replace(SETTINGS, root=str(tmp_path / "run"), export_timing_csv=str(tmp_path / "records"))

    begun = time.monotonic()
    with Job(2, train_until_a_file_is_full, settings) as job:
        with pytest.raises(Failed):
            job.finish(120)
        while job.running:
            assert job.hear(begun + 120), "a rank waits for the one that failed"

    assert time.monotonic() - begun < SETTINGS.timeout
    for rank in job.ranks:
        assert "File too large" in rank.all("error")[0]["text"]
    assert contents(tmp_path / "records") == before


def test_a_folder_that_cannot_be_written_is_a_clear_word_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a file")
    monkeypatch.setattr(program, "train", lambda *_: pytest.fail("it trained"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    for folder, said in (("file", "File exists"), ("file/below", "Not a directory")):
        given = ["--root", str(tmp_path / "run"), "--layout", "1,1,1", "--steps", "1"]
        monkeypatch.setattr(sys, "argv", ["train", *given, "--export-timing-csv", str(tmp_path / folder)])

        with pytest.raises(SystemExit) as refused:
            program.main()

        assert refused.value.code == 2
        assert f"--export-timing-csv: {tmp_path / folder}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layout", "data_parallel"), [(Layout(2, 2, 1), "replicate"), (Layout(2, 1, 2), "fully_shard")]
)
def test_a_recorded_job_trains_the_same_bit_by_bit(tmp_path: Path, layout: Layout, data_parallel: str) -> None:
    recorded, plain = (
        ran(tmp_path / name, records, layout=layout, data_parallel=data_parallel, save_every=1, digests=True)
        for name, records in (("recorded", tmp_path / "records"), ("plain", None))
    )
    of_loss, of_state = (
        [[told[value] for told in job.all(event)] for job in (recorded, plain)]
        for event, value in (("loss", "loss"), ("saves", "digests"))
    )
    assert len(of_loss[0]) == 2 and of_loss[0] == of_loss[1]
    assert of_state[0] == of_state[1]
    for rank in range(layout.world):
        names = [row["instruction"] for row in rows_of(tmp_path / "records" / f"instructions-{rank}.csv")]
        assert names.count("forward") == names.count("backward") == 2 * 8 // layout.data
        assert names.count("all_reduce") == 2 * (layout.data > 1)
