"""scripts/bench micro: commits on several filesystems side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cairn_bench.__main__ import main
from cairn_bench.results import filesystems as tables
from cairn_bench.shared import filesystems
from cairn_bench.shared.measures import Values

ROOT = Path(__file__).parents[2]
NAMES = ("machine", "ext4", "xfs")
HEAD = [f"filesystem {name}: words of {name}; a flush takes {number} ms" for number, name in enumerate(NAMES, 1)]


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists(filesystems.CONTROL), reason="needs root and loop devices")
@pytest.mark.skipif(not (ROOT / "build/release/bin/bench_micro").exists(), reason="no bench_micro")
def test_commits_run_on_one_filesystem_after_the_other(tmp_path: Path) -> None:
    results = sorted(path.name for path in (ROOT / "bench/results").iterdir())

    options = ("--only", "commit", "--filesystems", ",".join(NAMES), "--pairs", "1", "--dir", tmp_path)
    command = [sys.executable, "-B", "-m", "cairn_bench", "micro", *options]
    ran = subprocess.run(command, check=False, text=True, capture_output=True)

    assert ran.returncode == 0, ran.stderr
    rows = [line.split(": ")[0] for line in ran.stdout.splitlines() if line.startswith("| commit/")]
    assert rows[:4] == [*(f"| commit/store_of_same, {name}" for name in NAMES), "| commit/library_of_same, machine"]
    assert len(rows) == 12 and "(not written: that takes the three filesystems and 15 pairs)" in ran.stdout
    assert list(tmp_path.iterdir()) == []
    assert sorted(path.name for path in (ROOT / "bench/results").iterdir()) == results


def test_the_table_of_commits_names_filesystem_and_flush() -> None:
    values = Values()
    for number, name in enumerate(NAMES, 1):
        for pair in range(3):
            values[f"commit/store_of_same, {name}", pair, "cairn s"] = number * 0.002
            values[f"commit/store_of_same, {name}", pair, "peer s"] = 0.001
            values[f"commit/store_of_same, {name}", pair, "ratio"] = 2.0 * number

    lines = tables.commit((HEAD, values)).splitlines()

    assert lines[4] == "| commit/store_of_same | xfs | 6.0 | 1.0 | 6 | 6 to 6 | 3 | 3.0 |"
    assert lines[-1] == "- *xfs*: words of xfs"


@pytest.mark.parametrize("option", [("--filesystems", "ext4"), ("--disk-in-memory", "1")])
def test_who_is_not_root_is_told_so(
    option: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    code = main(["micro", "--only", "commit", *option, "--dir", str(tmp_path)])

    assert code == 2 and "scripts/bench: a fresh ext4 filesystem needs root" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--filesystems", "ext4"), "--filesystems: expected machine alone, or --only commit"),
        (("--only", "commit", "--filesystems", "zfs"), "unknown zfs; there are machine, ext4, xfs"),
    ],
)
def test_filesystems_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], why: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--check-arguments", "micro", *options])

    assert why in capsys.readouterr().err
