"""scripts/bench figure 11 on several filesystems side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cairn_bench.__main__ import main
from cairn_bench.figures import one_checkpoint
from cairn_bench.figures.runs import read_table
from cairn_bench.results import filesystems as tables
from cairn_bench.shared import filesystems

ROOT = Path(__file__).parents[2]
NAMES = ("machine", "ext4", "xfs")
SMALL = ("--strategies", "sync", "--megabytes", "1", "--filesystems", ",".join(NAMES))

pytest.importorskip("matplotlib")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists(filesystems.CONTROL), reason="needs root and loop devices"
)
needs_training = pytest.mark.skipif(
    not (ROOT / "build/release/bin/bench_training").exists(), reason="no bench_training"
)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-B", "-m", "cairn_bench", *map(str, arguments)]


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), check=False, text=True, capture_output=True)


def loops_in(directory: Path) -> list[Path]:
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [file for file in files if file.read_text().startswith(f"{directory}/")]


@needs_root
@needs_training
def test_each_strategy_runs_on_one_filesystem_after_the_other(tmp_path: Path) -> None:
    ran = bench("figure", 11, *SMALL, "--repetitions", 2, "--dir", tmp_path, "--output", tmp_path / "figure")

    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.csv", "figure.png"] and not loops_in(tmp_path)
    head, rows = read_table(tmp_path / "figure.csv")
    assert [(row["repetition"], row["filesystem"]) for row in rows] == [(n, name) for n in (0, 1) for name in NAMES]
    took = filesystems.flushes(head)
    assert list(took) == list(NAMES) and "with a journal" in took["ext4"][0] and head[-1] == "complete"
    table = tables.one_checkpoint((head, rows)).splitlines()
    assert table[0] == "| GB/s | filesystem | 1 MB | a flush, ms |"
    assert [line.split(" | ")[1] for line in table[2:5]] == list(NAMES)


@needs_root
@needs_training
def test_an_interrupted_figure_leaves_only_its_rows(tmp_path: Path) -> None:
    arguments = ("figure", 11, *SMALL, "--repetitions", 9, "--dir", tmp_path, "--output", tmp_path / "figure")
    pipe = subprocess.PIPE
    with subprocess.Popen(command(*arguments), text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("3/27")), "")
        held = loops_in(tmp_path)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()

    assert process.returncode == 130 and "interrupted after 2 of 27 runs" in said, said
    assert "filesystem xfs" in line and len(held) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["figure.csv"] and not loops_in(tmp_path)
    assert "# partial: 2 of 27 runs" in (tmp_path / "figure.csv").read_text().splitlines()


@needs_training
def test_without_a_choice_the_figure_is_of_the_machine_alone(tmp_path: Path) -> None:
    small = ("--strategies", "sync", "--megabytes", "1", "--repetitions", 1)
    ran = bench("figure", 11, *small, "--dir", tmp_path, "--output", tmp_path / "figure")

    assert ran.returncode == 0, ran.stderr
    head, (row,) = read_table(tmp_path / "figure.csv")
    assert row["filesystem"] == "machine" and list(filesystems.flushes(head)) == ["machine"]


def test_a_slow_disk_gets_a_pace_at_which_no_save_waits_for_the_one_before() -> None:
    paces = []

    def run(_: object, entry: dict[str, dict[str, float]]) -> dict[str, float]:
        paces.append(entry["options"]["iteration_seconds"])
        seconds = 0.5 * paces[-1]  # At scale 1/2.
        return {"iteration_seconds": seconds, "to_durable_max_s": 0.3 if seconds >= 0.3 else 0.7}

    row = one_checkpoint.alone(None, {"options": {"iteration_seconds": 0.1}}, run)

    assert paces == [0.1, pytest.approx(2.8)] and row["to_durable_max_s"] < row["iteration_seconds"]


def test_who_is_not_root_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    code = main(["figure", "11", "--filesystems", "ext4", "--dir", str(tmp_path), "--output", str(tmp_path / "figure")])

    assert code == 2 and "a fresh ext4 filesystem needs root" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_slower_disk_has_no_fresh_filesystems(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--check-arguments", "figure", "11", "--disk", "pd-ssd", "--filesystems", "machine,xfs"])

    assert "--filesystems: expected machine alone with --disk pd-ssd" in capsys.readouterr().err
