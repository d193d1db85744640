"""The picture of profiles, and the job that is profiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cairn_bench.figures import profile, training_job

FULL = 1 << 30


def sample(cores: float, throughput: float, memory: int = FULL, predicted: float = 0.0) -> dict[str, Any]:
    return {"cores": cores, "memory_bytes": memory, "throughput": throughput, "predicted": predicted or throughput}


def written(folder: Path, name: str, **changed: Any) -> Path:
    """As `cairn profile` writes it, of a job that needs both cores and 256 MiB."""
    content = {
        "knee": {"cores": 1.8, "memory_bytes": 1 << 28},
        "full": {"cores": 2, "memory_bytes": FULL, "peak_bytes": 1 << 29},
        "advice": {"worker_threads": 1, "host_memory_bytes": FULL - (1 << 28)},
        "samples": [sample(2, 10), sample(1, 5), sample(2, 10, 1 << 28), sample(2, 4, 1 << 27)],
        "checks": [sample(1.5, 7, predicted=7.5)],
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content | changed))
    return path


def figures(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "cairn_bench", "figure", "profile", *map(str, arguments)]
    return subprocess.run(command, check=False, text=True, capture_output=True)


def test_it_draws_profiles(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cores_only = [sample(2, 10, 0), sample(1, 5, 0)]
    paths = [written(tmp_path, "mine"), written(tmp_path, "yours", samples=cores_only, checks=[])]

    ran = figures("--output", tmp_path / "figure", "--profiles", *paths)

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    rows = profile.rows_of(paths[0], "mine")
    assert [row["what"] for row in rows] == ["samples"] * 4 + ["checks"]
    assert profile.errors(rows) == [pytest.approx(0.5 / 7)]
    assert len(profile.axes_of(rows)["memory_bytes"]) == 3


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"knee": 1}'])
def test_it_refuses_what_is_no_profile(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)

    ran = figures("--output", tmp_path / "figure", "--profiles", path)

    assert ran.returncode == 2 and f"{path}: expected a profile.json" in ran.stderr
    assert figures("--profiles", tmp_path / "none.json", "--output", tmp_path / "figure").returncode == 2


def test_the_job_trains_and_says_how_long_each_step_took(tmp_path: Path) -> None:
    data = tmp_path / "data"
    training_job.write_data(str(data), 1 << 20)

    ran = subprocess.run(
        [*profile.job_command("compute", str(data)), "--steps", "8", "--warm-up", "3"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "step=1" and len(lines) == 9
    assert len(json.loads(lines[-1])) == 5
