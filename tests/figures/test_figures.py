"""scripts/bench figure: invalid arguments, interrupted runs, and a complete small figure."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cairn_bench.figures import runs
from cairn_bench.figures.sweep import RESOLUTION
from cairn_bench.shared import filesystems

ROOT = Path(__file__).parents[2]
ONCE = ("--repetitions", "1", "--dilation", "4")
SMALL = ("--scale", "0.01", "--models", "bert", "--strategies", "sync,cairn", "--intervals", "5", "--dilation", "4")

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.skipif(not (ROOT / "build/release/bin/bench_training").exists(), reason="no bench_training")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-B", "-m", "cairn_bench", "figure", *map(str, arguments)]


def figures(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), check=False, text=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("10",), "invalid choice: '10' (choose from "),
        ((), "expected a NAME, of 8, 8e, "),
        (
            ("8", "--strategies", "cairn,slow"),
            "unknown slow; there are sync, torch-save, checkfreq, gpm, gemini, pccheck, cairn",
        ),
        (("8", "--models", "gpt"), "unknown gpt; there are vgg16"),
        (("8", "--intervals", "0,10"), "expected numbers of at least 1, found 0,10"),
        (("8", "--scale", "-1"), "expected more than 0, found -1"),
        (("8", "--models", "bert", "--scale", "1,2"), "--scale: expected 1 number or 1, one for each model; found 2"),
        (("8", "--repetitions", "0"), "expected more than 0, found 0"),
        (("age", "--interval", "300"), "--interval 300: expected at most the 250 iterations"),
        (("8", "--draw", "--output", "nowhere/figure"), "nowhere/figure.csv: No such file or directory"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: tuple[str, ...], why: str) -> None:
    ran = figures(*arguments)
    assert ran.returncode != 0 and why in ran.stderr, ran.stderr


def test_too_large_a_scale_is_refused_naming_one_that_fits(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    ran = figures("8", *SMALL, "--scale", "100000", "--dir", tmp_path, "--output", output)
    assert ran.returncode == 2 and "would fit" in ran.stderr, ran.stderr
    assert "1/" not in ran.stdout and not list(tmp_path.iterdir())


def test_an_interrupted_figure_keeps_its_rows_and_says_so(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    arguments = ("8", *SMALL, "--repetitions", 9, "--dir", tmp_path, "--output", output)
    pipe = subprocess.PIPE
    with subprocess.Popen(command(*arguments), text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("3/27"):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()

    assert process.returncode == 130 and "interrupted after 2 of 27 runs" in said, said
    lines = (tmp_path / "figure.csv").read_text().splitlines()
    assert "# partial: 2 of 27 runs" in lines
    assert len([line for line in lines if not line.startswith("#")]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["figure.csv"], "something of the run is left behind"


def test_a_figure_is_a_picture_and_a_table_that_names_what_is_emulated(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    ran = figures("8", *SMALL, *ONCE, "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    head = [line for line in (tmp_path / "figure.csv").read_text().splitlines() if line.startswith("#")]
    assert head[-1] == "# complete" and any("emulated: GPU (host memory" in line for line in head)
    assert "scripts/bench figure 8" in head[0] and "commit" in head[1] and str(ROOT) not in "".join(head)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "cairn      slowdown" in ran.stdout


def test_a_disk_in_memory_is_named_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    try:
        with filesystems.in_memory(str(tmp_path), 0.5):
            pass
    except filesystems.Unavailable as reason:
        pytest.skip(str(reason))
    output, before = tmp_path / "figure", set(os.listdir(filesystems.MEMORY))
    ran = figures("8", *SMALL, *ONCE, "--disk-in-memory", "0.5", "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    head, rows = runs.read_table(tmp_path / "figure.csv")
    assert "; ext4 with a journal (data=ordered), on a loop device in a file on tmpfs; commit " in head[1]
    assert head[-1] == "complete" and [row["strategy"] for row in rows] == ["none", "sync", "cairn"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.csv", "figure.png"]
    left = set(os.listdir(filesystems.MEMORY)) - before
    assert not [name for name in left if name.startswith("filesystem-")]


def test_pccheck_is_swept_at_each_point_and_the_sweep_is_in_the_table(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    small = ("--scale", "0.01", "--models", "bert", "--strategies", "pccheck", "--intervals", "5", *ONCE)
    ran = figures("8", *small, "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    table = (line for line in (tmp_path / "figure.csv").read_text().splitlines() if not line.startswith("#"))
    rows = list(csv.DictReader(table))
    swept = [row for row in rows if row["what"] == "sweep"]
    settings = [(float(row["in_flight"]), float(row["writers"])) for row in swept]
    assert settings == [(n, p) for n in (1, 2, 4) for p in (1, 2)]
    rates = [float(row["iterations_per_second"]) for row in swept]
    best = next(row for row, rate in zip(swept, rates, strict=True) if rate >= (1 - RESOLUTION) * max(rates))
    assert [(row["strategy"], row["what"]) for row in rows if row not in swept] == [("none", ""), ("pccheck", "")]
    assert all(rows[-1][name] == best[name] for name in ("in_flight", "writers"))
    assert ran.stdout.count("pccheck    slowdown") == 1


def test_every_point_is_measured_at_each_dilation_beside_a_neighbour_without_checkpoints(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    small = ("--scale", "0.01", "--models", "bert", "--strategies", "cairn", "--intervals", "5", "--repetitions", "1")
    ran = figures("8", *small, "--dilation", "4,8", "--update-seconds", "0.02", "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    table = (line for line in (tmp_path / "figure.csv").read_text().splitlines() if not line.startswith("#"))
    rows = [(row["strategy"], float(row["dilation"]), float(row["update_seconds"])) for row in csv.DictReader(table)]
    each = [(strategy, at, pytest.approx(0.02 * 0.01 * at)) for at in (4, 8) for strategy in ("none", "cairn")]
    assert rows == each


def test_where_the_machine_cannot_keep_the_pace_a_larger_dilation_is_chosen_and_named(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    shape = ("--strategies", "cairn", "--scale", "0.01", "--interval", "5", "--iterations", "10")
    ran = figures("age", *shape, "--dilation", "0.001", "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "figure.csv").read_text().splitlines()
    (note,) = [line for line in lines if "instead of 0.001" in line]
    chosen = float(note.split()[2])
    (row,) = csv.DictReader(line for line in lines if not line.startswith("#"))
    assert float(row["dilation"]) == chosen >= 0.002
    assert "an update takes half of an iteration here" in note and note.removeprefix("# ") in ran.stdout


@pytest.mark.parametrize("name", ["age", "stalls", "memory"])
def test_timelines_are_drawn_from_the_journal(tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    shape = ("--strategies", "sync,cairn", "--scale", "0.01", "--interval", "5", "--iterations", "30")
    ran = figures(name, *shape, "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / f"{name}.png").exists()
    assert figures(name, "--draw", "--output", output).returncode == 0


def test_the_time_of_one_checkpoint_sets_the_distance_of_pairs(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    shape = ("--scale", "0.05", "--intervals", "40", "--in-flight", "2", "--disk-bytes-per-second", "300000000")
    ran = figures("12", *shape, "--strategies", "cairn", "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    assert "cairn    pairs, 2 in flight: age / (Tw + interval)" in ran.stdout


@pytest.mark.skipif(not (ROOT / "build/release/bin/bench_pipeline").exists(), reason="no bench_pipeline")
def test_two_nodes_make_a_figure(tmp_path: Path) -> None:
    output = tmp_path / "figure"
    small = ("--scale", "0.0005", "--strategies", "sync,cairn", "--intervals", "5", "--repetitions", 1)
    ran = figures("8e", *small, "--network", "loopback", "--dir", tmp_path, "--output", output)

    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "figure.csv").read_text().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert [row.split(",")[2] for row in rows[1:]] == ["none", "sync", "cairn"]
    assert "# complete" in lines and any("two nodes (processes of this machine" in line for line in lines)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
