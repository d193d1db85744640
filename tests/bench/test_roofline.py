"""bench_roofline's rows: as Google Benchmark runs them, and one by one as scripts/bench roofline asks for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cairn_bench import roofline
from cairn_bench.shared import program

PROGRAM = program("bench_roofline")
BYTES = 4 << 20
pytestmark = pytest.mark.skipif(not Path(PROGRAM).exists(), reason="no bench_roofline")


def test_rows_are_google_benchmark_s_with_counters(tmp_path: Path) -> None:
    command = [PROGRAM, "--root", tmp_path, "--bytes", str(BYTES), "--pool", str(32 << 20)]
    command += ["--benchmark_filter=^(write|restore)", "--benchmark_format=json"]

    ran = subprocess.run(command, check=True, capture_output=True, text=True)

    rows = {row["name"].split("/")[0]: row for row in json.loads(ran.stdout)["benchmarks"]}
    assert list(rows) == ["write", "restore"]
    for row in rows.values():
        assert row["bytes"] >= 0.99 * BYTES and row["time_unit"] == "ms"
        assert row["real_time"] == pytest.approx(1e3 * row["seconds"])
        assert row["bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"])


def test_it_runs_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "BYTES", BYTES)
    with roofline.Bench(str(tmp_path), "--source", "cpu", "--pool", str(32 << 20)) as bench:
        written, restored = bench("write"), bench("restore")
        calls = [bench("call/1000")["microseconds"] for _ in range(2)]

        assert restored["bytes"] >= 0.99 * BYTES and written["bytes"] >= restored["bytes"]
        assert written["rate"] == written["bytes"] / written["seconds"] and min(calls) > 0
        with pytest.raises(SystemExit, match="bench_roofline failed at: cull"):
            bench("cull")
    assert list(tmp_path.iterdir()) == []
