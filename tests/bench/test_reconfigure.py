"""A job of four ranks that changes its layout: pipeline, tensor and data parallelism together, real processes."""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import os
import signal
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")

from cairn_bench.figures import tenplex
from cairn_bench.figures.runs import read_table
from cairn_bench.reconfigure import faults, measure
from cairn_bench.reconfigure.jobs import Failed, Job
from cairn_bench.reconfigure.layout import LAYOUTS, SEGMENTS, BadLayout, Layout
from cairn_bench.reconfigure.sizes import SIZES
from cairn_bench.reconfigure.train import Settings, main, train
from cairn_bench.shared.report import Report

# Each of the three dimensions shrinks and grows.
FEW = [(2, Layout(2, 2, 1)), (2, Layout(1, 2, 2)), (2, Layout(2, 1, 2)), (1, Layout(1, 2, 1))]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The figure of a shorter schedule, in float64, without .csv and .png."""
    folder = tmp_path_factory.mktemp("figure")
    parser = argparse.ArgumentParser()
    tenplex.add_arguments(parser)
    parser.set_defaults(output=str(folder / "small"))
    arguments = parser.parse_args(["--dir", str(folder), "--timeout", "120"])
    few = {tenplex.CHANGING: (True, {"dtype": "float64"}), tenplex.STEADY: (False, {"dtype": "float64"})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tenplex, "SEGMENTS", [(steps, number) for number, (steps, _) in enumerate(FEW)])
        patch.setattr(tenplex, "LAYOUTS", {number: layout for number, (_, layout) in enumerate(FEW)})
        patch.setattr(tenplex, "RUNS", few)
        assert tenplex.measure(arguments) == 0
    return folder / "small"


def rows_of(figure: Path) -> list[dict[str, Any]]:
    head, rows = read_table(f"{figure}.csv")
    assert head[-1] == "complete"
    return rows


def test_the_loss_is_that_of_a_run_that_never_changes_its_layout(replayed: Path) -> None:
    rows = rows_of(replayed)
    (apart,) = tenplex.differences(rows).values()
    losses = tenplex.losses(rows)[tenplex.CHANGING]

    assert list(losses) == list(apart) == [*range(1, 8)]
    assert losses[7] < losses[1]
    assert max(apart.values()) < 1e-13  # In float64; another order of summation is another rounding.


def test_the_figure_is_drawn_from_its_csv(replayed: Path) -> None:
    pytest.importorskip("matplotlib")
    from cairn_bench.figures import plots

    head, rows = read_table(f"{replayed}.csv")
    picture, title = tenplex.draw(plots, None, rows)
    plots.save(picture, f"{replayed}.png", title, head)

    assert "7 steps, 3 changes" in title and Path(f"{replayed}.png").stat().st_size > 10_000


def test_all_systems_that_are_compared_read_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    measure.add_arguments(parser)
    given = ["--dir", str(tmp_path), "--model", "tiny", "--host-memory", "32MiB"]
    report = Report({})
    monkeypatch.setattr(measure, "CHAIN", [Layout(2, 2, 1), Layout(1, 1, 2), Layout(2, 1, 1)])

    measure.go_through(parser.parse_args(given), report, 0)  # Raises Failed if a digest differs.
    report.judge(measure.MEASURES)

    assert dict.fromkeys(change for change, _, _ in report.values) == {"2,2,1 to 1,1,2": None, "1,1,2 to 2,1,1": None}
    assert len(report.rows) == len(measure.MEASURES) and "| 2,2,1 to 1,1,2 |" in measure.seconds(report.values)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_the_checkpoint_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    tiny = Settings(str(tmp_path / "run"), Layout(1, 1, 1), 1, host_memory="32MiB", timeout=60)
    with Job(1, train, tiny) as job:
        job.finish(120)

    # Two layers more, and wider ones.
    small = dataclasses.replace(tiny, model="small", layout=Layout(2, 1, 1))
    with Job(2, train, small) as job, pytest.raises(Failed) as refused:
        job.finish(120)

    said = str(refused.value)
    assert "Missing key in checkpoint state_dict: model.layers.4.input_norm.weight, " in said
    assert "Size mismatch: model.tokens.weight (saved [64, 32], current [64, 48]), " in said


def test_a_rank_that_hangs_ends_the_others_at_the_timeout(tmp_path: Path) -> None:
    """Also in the sends and receives of the pipeline, whose connections stay open."""
    settings = Settings(str(tmp_path / "run"), Layout(2, 1, 1), 10_000, host_memory="32MiB", timeout=5)
    with Job(2, train, settings) as job:
        first, last = job.ranks
        while not last.all("loss"):
            assert job.hear(time.monotonic() + 120)
        os.kill(last.process.pid, signal.SIGSTOP)
        while first.code is None:
            assert job.hear(time.monotonic() + 90), "rank 0 waits for a rank that hangs"

        assert first.code == 1 and "imed out" in first.all("error")[0]["text"]


def tell_much(tell: Any) -> None:
    tell("much", text="x" * (1 << 20))  # More than a pipe holds.


def _waiting(pipe: Any) -> int:
    """How many bytes can be read."""
    return int.from_bytes(fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_rank_that_is_killed_while_it_tells_has_ended() -> None:
    with Job(1, tell_much) as job:
        (rank,) = job.ranks
        while _waiting(rank.pipe) <= 1 << 15:  # It has written a part, and waits for room.
            os.sched_yield()
        rank.process.kill()
        rank.process.join()

        assert job.hear(time.monotonic() + 60) == (rank, "end", {"code": -9})
        assert job.running == []


def told(*events: tuple[str, dict[str, Any]]) -> Any:
    """What a job would have told."""
    return SimpleNamespace(all=lambda event: [{"at": 0.0} | values for name, values in events if name == event])


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([("restored", {"step": 5}), ("restored", {"step": 4})], "different steps"),
        ([("restored", {"step": 4})], "step 5 was durable, restored step 4"),
        ([("holds", {"step": 5, "digests": {"a": "1", "b": "2"}})], "that no job saved together"),
    ],
)
def test_a_ledger_finds_a_broken_promise(events: list[tuple[str, dict[str, Any]]], broken: str) -> None:
    ledger = faults.Ledger()
    for both in ({"a": "1", "b": "1"}, {"a": "2", "b": "2"}):
        ledger.learn(told(("saves", {"step": 5, "digests": both}), ("durable", {"step": 5})))

    with pytest.raises(faults.Broken, match=broken):
        ledger.learn(told(*events))


@pytest.mark.parametrize(
    ("world", "given", "said"),
    [({}, "--layout=2,1,1", "expected 2 ranks, as of torchrun --nproc-per-node 2 -m cairn_bench.reconfigure.train; found none"),
     ({"WORLD_SIZE": "4"}, "--layout=2,1,1", "layout 2,1,1: expected 2 ranks, as of torchrun"),
     ({}, "--micro-batch=0", "argument --micro-batch: expected more than 0")],
)  # fmt: skip
def test_a_rank_that_torchrun_did_not_start_says_how(
    world: dict[str, str], given: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["train", "--root=x", "--steps=1", "--layout=1,1,1", given])

    with pytest.raises(SystemExit):
        main()

    assert said in " ".join(capsys.readouterr().err.split())


def test_the_schedule_is_tenplex_s() -> None:
    assert sum(minutes for minutes, _ in SEGMENTS) == 538
    assert [gpus for _, gpus in SEGMENTS] == [16, 8, 4, 8] * 4
    assert {gpus: layout.world for gpus, layout in LAYOUTS.items()} == {gpus: gpus for gpus in LAYOUTS}


@pytest.mark.parametrize(
    ("layout", "said"),
    [("4,2", "expected pipeline"), ("1,3,1", "heads that 3 divides, found 4"),
     ("2,1,3", "batch that 3 divides, found 8"), ("4,1,4", "at least 4 micro-batches")],
)  # fmt: skip
def test_a_layout_that_does_not_fit_says_which_number(layout: str, said: str) -> None:
    with pytest.raises(BadLayout, match=said):
        Layout.parse(layout).check(SIZES["tiny"], 8, 1)
