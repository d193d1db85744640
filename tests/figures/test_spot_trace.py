"""The spot cluster's trace: what counts as a failure, and that a trace with a gap is refused."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from cairn_bench.figures import goodput_figure, spot_trace

SPOT_GPUS = Path(spot_trace.SPOT_GPUS)


def a_trace(folder: Path, *rows: str, header: str = ",Time,GPUs") -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join([header, *rows]))
    return path


def refused(why: str, path: Path) -> None:
    with pytest.raises(spot_trace.BadTrace, match=re.escape(why)):
        spot_trace.read(path)


def test_every_drop_is_one_failure_but_not_growth_or_the_first_sample(tmp_path: Path) -> None:
    path = a_trace(tmp_path, "0,1000.5,0", "1,1060.5,56", "2,1120.5,55", "3,1180.5,55", "4,1240.5,60", "5,1300.5,0")

    trace = spot_trace.read(path)

    assert trace.seconds == [0, 60, 120, 180, 240, 300]
    assert trace.gpus == [0, 56, 55, 55, 60, 0]
    assert spot_trace.failures(trace) == [120, 300]


def test_a_failure_is_drawn_from_the_period_before_its_sample(tmp_path: Path) -> None:
    trace = spot_trace.read(a_trace(tmp_path, "0,0,9", "1,60,8", "2,120,7", "3,180,7", "4,240,1"))

    draws = [spot_trace.failures(trace, random.Random(seed)) for seed in range(200)]

    assert draws[0] == spot_trace.failures(trace, random.Random(0)) != draws[1]
    for begin, drawn in zip([0, 60, 180], zip(*draws)):
        assert begin <= min(drawn) < begin + 5 and begin + 55 < max(drawn) <= begin + 60


def test_each_repetition_has_the_same_failures_at_other_instants() -> None:
    trace = spot_trace.Trace([0, 60, 120, 180, 240], [9, 8, 7, 7, 1])
    args = SimpleNamespace(limit=150, compress=2, repetitions=3, trace="trace.csv")

    replays = goodput_figure.Replays(args, trace)
    again = goodput_figure.Replays(args, trace)

    assert replays.end == 75 and replays.failures == again.failures
    assert len({tuple(failures) for failures in replays.failures}) == 3
    assert all(0 < first <= 30 < second <= 60 for first, second in replays.failures)
    assert "2 in 150 s" in replays.emulated


def test_the_published_trace_has_the_failures_in_its_readme() -> None:
    trace = spot_trace.read(SPOT_GPUS)
    failures = spot_trace.failures(trace)
    changes = [abs(now - before) // 4 for before, now in zip([0, *trace.gpus], trace.gpus)]

    assert (len(trace.gpus), trace.seconds[-1], max(trace.gpus)) == (215, 13482, 56)
    assert (len(failures), failures[0], failures[-1]) == (26, 630, 13167)
    assert sum(changes) == 51  # The artifact's count.
    readme = (SPOT_GPUS.parent / "README.md").read_text()
    assert all(told in readme for told in ("215 samples", "There are 26, one in 519 s", "which gives 51"))


def test_a_time_that_does_not_increase_is_refused(tmp_path: Path) -> None:
    refused(":3: expected a time after 5.0, found 5.0", a_trace(tmp_path, "0,5,1", "1,5,1"))
    refused(
        ":4: expected a time after 68.0, found 5.0",
        a_trace(tmp_path, "0,5,1", "1,68,1", "2,5,1", "3,68,1", "4,131,1"),
    )


def test_a_gap_is_refused(tmp_path: Path) -> None:
    rows = ["0,0,56", "1,63,56", "2,126,56", "3,252,30", "4,315,30"]

    refused(
        ":5: expected a sample 63 s after the last one, as usual here, found a gap of 126 s", a_trace(tmp_path, *rows)
    )
    refused(":3: expected sample 1, found \"2\"", a_trace(tmp_path, "0,0,56", "2,126,56"))  # fmt: skip


@pytest.mark.parametrize("time", ["nan", "-63", "inf", "", "now"])
def test_an_invalid_time_is_refused(tmp_path: Path, time: str) -> None:
    refused(f':3: expected a time of 0 s or more, found "{time}"', a_trace(tmp_path, "0,0,56", f"1,{time},56"))


@pytest.mark.parametrize("gpus", ["nan", "-1", "1.5", "", "many", "²"])
def test_an_invalid_number_of_gpus_is_refused(tmp_path: Path, gpus: str) -> None:
    found = gpus.encode("ascii", "backslashreplace").decode() if gpus.isascii() else "\\xc2\\xb2"
    refused(f':3: expected GPUs, 0 or more, found "{found}"', a_trace(tmp_path, "0,0,56", f"1,63,{gpus}"))


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    refused(
        'trace.csv:1: expected the columns ",Time,GPUs", found ",Time,Cores"', a_trace(tmp_path, header=",Time,Cores")
    )
    refused("trace.csv:3: expected at least two samples, found 1", a_trace(tmp_path, "0,0,56"))
    refused("trace.csv:3: expected 3 cells, found 2", a_trace(tmp_path, "0,0,56", "1,63"))
    refused("nowhere.csv: expected a trace, found: No such file", tmp_path / "nowhere.csv")
