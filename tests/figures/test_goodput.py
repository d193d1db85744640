"""Goodput with real kills: bench_training is killed and resumed, and leaves nothing behind."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cairn_bench.figures import goodput, goodput_figure, goodput_model

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "build/release/bin/bench_training"
STATE = ["--state-bytes", "16777216", "--tensors", "5", "--pcie-bytes-per-second", "1e9"]
PACE = ["--iteration-seconds", "0.01", "--update-seconds", "0.002"]
EVERY = 5

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no bench_training")


def training(strategy: str, iterations: int = 10_000) -> list[str]:
    settings = ["--strategy", strategy, "--every", str(EVERY), "--iterations", str(iterations)]
    return [str(PROGRAM), *settings, *STATE, *PACE]


def test_what_a_save_takes_in_the_sweep_is_the_mean_of_those_that_are_counted() -> None:
    early = ";".join(["9.0"] * 12)
    row = {"to_durable_each_s": f"{early};0.1;0.1;0.1;0.5;0.1;0.1;overtaken;0.1"}

    assert goodput_figure.to_durable(row) == pytest.approx(1.1 / 7)


def processes_in(folder: Path) -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # The process has ended.
    return [line for line in lines if str(folder) in line and "bench_training" in line]


@pytest.mark.parametrize("strategy", ["sync", "cairn", "cairn-memory"])
def test_durable_steps_count_and_lost_steps_do_not(tmp_path: Path, strategy: str) -> None:
    outcome = goodput.replay(training(strategy), str(tmp_path), [1.0, 2.5], 4.0)
    costs = goodput.costs(outcome, EVERY, 0.01, 2)

    assert len(outcome.lives) == 3 and len(outcome.restarts) == 2 and outcome.killed_starting == 0
    assert outcome.seconds == pytest.approx(4.0, abs=0.2)
    computed = sum(life.reached - life.first for life in outcome.lives)
    assert outcome.reached == computed - sum(outcome.lost)
    for before, after in zip(outcome.lives, outcome.lives[1:]):
        assert max(before.durable, default=0) <= after.first <= before.reached
        assert after.first % EVERY == 0
    assert outcome.lives[-1].first > 0
    assert (costs.exposed < 0.001) == (strategy == "sync")
    exact = goodput_model.exact(costs, outcome.failures, outcome.seconds)
    assert outcome.goodput == pytest.approx(exact, rel=0.15)
    assert list(tmp_path.iterdir()) == [] and not processes_in(tmp_path)


def test_without_checkpoints_only_what_follows_the_last_failure_counts(tmp_path: Path) -> None:
    outcome = goodput.replay(training("none"), str(tmp_path), [1.5], 2.8)

    first, last = outcome.lives
    assert last.first == 0 and outcome.lost == [first.reached]
    assert outcome.reached == last.reached
    assert goodput.costs(outcome, EVERY, 0.01, 2).exposed == math.inf


def test_a_failure_during_a_restart_kills_the_process_that_starts(tmp_path: Path) -> None:
    outcome = goodput.replay(training("cairn"), str(tmp_path), [1.0, 1.001], 3.0)

    assert outcome.killed_starting == 1 and outcome.lives[1].began == math.inf
    assert len(outcome.restarts) == len(outcome.lost) == 1
    assert outcome.lives[2].first >= max(outcome.lives[0].durable)


def test_a_run_that_ends_during_a_restart_keeps_what_was_durable(tmp_path: Path) -> None:
    outcome = goodput.replay(training("cairn"), str(tmp_path), [1.0], 1.001)

    assert outcome.lives[1].began == math.inf
    assert outcome.reached == max(outcome.lives[0].durable)


def test_losing_a_durable_step_is_an_error(tmp_path: Path) -> None:
    forgetful = tmp_path / "forgetful"
    forgetful.write_text(
        '#!/bin/sh\n[ "$1" = --dir ] && rm -rf "$2"/* && exec ' + " ".join(training("sync")) + ' "$@"\n'
    )
    forgetful.chmod(0o755)
    (tmp_path / "runs").mkdir()

    with pytest.raises(goodput.Failed, match=r"went on from step 0; expected [1-9]\d*, which was durable"):
        goodput.replay([str(forgetful)], str(tmp_path / "runs"), [1.0], 3.0)

    assert list((tmp_path / "runs").iterdir()) == []


def test_a_training_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(goodput.Failed, match="ended by itself with 0"):
        goodput.replay(training("sync", iterations=10), str(tmp_path), [5.0], 6.0)
    with pytest.raises(goodput.Failed, match="ended by itself with 2: .*--every: expected 1 to the 3 iterations"):
        goodput.replay(training("sync", iterations=3), str(tmp_path), [5.0], 6.0)

    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_it_at_once_at_any_moment(tmp_path: Path) -> None:
    for seconds in [
        0.3,
        *(0.0002 * i for i in range(1, 41)),
    ]:  # Everything is created and started in the first milliseconds.
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
            goodput.replay(training("sync"), str(tmp_path), [60.0], 61.0)
        assert time.monotonic() - begun < 60, "it went on to its end"
        assert list(tmp_path.iterdir()) == [] and not processes_in(tmp_path), seconds

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def figure(folder: Path, *more: str) -> list[str]:
    """Figure 9 with two runs of 2.25 s each, with a failure between 0.75 and 1.5 s."""
    trace = folder / "trace.csv"
    trace.write_text(",Time,GPUs\n0,0,8\n1,60,8\n2,120,4\n3,180,4\n")
    (folder / "runs").mkdir()
    what = ["9", "--model", "transformer-xl", "--scale", "0.0078125", "--intervals", "25", "--strategies", "sync,cairn"]
    where = ["--trace", str(trace), "--dir", str(folder / "runs"), "--output", str(folder / "figure-9")]
    return [sys.executable, "-B", "-m", "cairn_bench", "figure", *what, *where, "--compress", "80", *more]


def lines_of(folder: Path) -> tuple[list[str], list[dict[str, Any]]]:
    lines = (folder / "figure-9.csv").read_text().splitlines()
    head = [line for line in lines if line.startswith("# ")]
    return head, list(csv.DictReader(lines[len(head) :]))


def test_figure_9_has_measurements_and_model_predictions(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = subprocess.run(figure(tmp_path), check=False, text=True, capture_output=True)

    assert ran.returncode == 0, ran.stderr
    head, rows = lines_of(tmp_path)
    assert head[-1] == "# complete"
    assert any("emulated: GPU" in line and "trace.csv: 1 in 180 s, which are 2.25" in line for line in head)
    assert [row["strategy"] for row in rows] == ["sync", "cairn"]
    for row in rows:
        assert float(row["goodput"]) == pytest.approx(float(row["reached"]) / float(row["seconds"]), rel=1e-4)
        # A busy machine may make no progress between failures.
        assert 0 <= float(row["goodput"]) < 1 / float(row["iteration_seconds"])
        assert all(float(row[model]) > 0 for model in ("ideal", "published", "exact", "walked"))
    assert (tmp_path / "figure-9.png").read_bytes().startswith(b"\x89PNG")
    assert "Cairn's of it" in ran.stdout and list((tmp_path / "runs").iterdir()) == []


def test_an_interrupted_figure_9_keeps_complete_runs_and_is_marked_partial(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(figure(tmp_path), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("2/2"):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()

    assert process.returncode == 130 and "interrupted after 1 of 2 runs" in errors, errors
    head, rows = lines_of(tmp_path)
    assert head[-1] == "# partial: 1 of 2 runs" and [row["strategy"] for row in rows] == ["sync"]
    assert list((tmp_path / "runs").iterdir()) == [] and not processes_in(tmp_path)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--strategies", "sync,nosuch"], "unknown nosuch; there are none, sync"),
        (["--model", "nosuch"], 'unknown model "nosuch"'),
        (["--scale", "1e4"], r"needs \d+ bytes of disk and \d+ of memory, .*--scale \S+ would fit"),
        (["--limit", "60"], "--limit 60: expected a failure in these seconds"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv: expected a trace"),
        (["--compress", "nan"], "expected more than 0, found nan"),
    ],
)
def test_figure_9_refuses_impossible_arguments_before_any_run(tmp_path: Path, more: list[str], why: str) -> None:
    ran = subprocess.run(figure(tmp_path, *more), check=False, text=True, capture_output=True)

    assert ran.returncode == 2 and re.search(why, ran.stderr), ran.stderr
    assert not (tmp_path / "figure-9.csv").exists() and list((tmp_path / "runs").iterdir()) == []
