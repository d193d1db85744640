"""What scripts/bench keeps of an interrupted run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cairn_bench.shared import report as reports


@pytest.mark.parametrize(
    ("reason", "said"), [(KeyboardInterrupt(), "interrupted"), (SystemExit("the disk\nis full"), "the disk")]
)
def test_an_interrupted_run_keeps_its_measurements_and_is_marked(
    tmp_path: Path, reason: BaseException, said: str
) -> None:
    report = reports.Report(str(tmp_path))

    with pytest.raises(type(reason)), report.kept("roofline", ["commit abc"]):
        report.single("write", 0, "fio bytes/s", 3e9)
        raise reason

    lines = (tmp_path / "roofline.partial.csv").read_text().splitlines()
    assert lines[:2] == ["# commit abc", f"# partial: {said}"]
    assert lines[-1] == "write,0,fio bytes/s,3e+09"
    assert os.listdir(tmp_path) == ["roofline.partial.csv"]


def test_a_complete_or_empty_run_leaves_no_partial_file(tmp_path: Path) -> None:
    whole, empty = reports.Report(str(tmp_path)), reports.Report(str(tmp_path))

    with whole.kept("roofline", []):
        whole.single("write", 0, "fio bytes/s", 3e9)
    with pytest.raises(KeyboardInterrupt), empty.kept("roofline", []):
        raise KeyboardInterrupt

    assert os.listdir(tmp_path) == []
