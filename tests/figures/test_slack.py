"""The figure of a pipeline's slack: all published longest paths hold, a wrong one ends it, and a recorded one is drawn."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cairn_bench.figures import slack
from cairn_bench.figures.runs import Refused
from cairn_bench.results.figures import slack as table_of

pytestmark = pytest.mark.skipif(not Path(slack.PROGRAM).exists(), reason="no cairn")


@pytest.fixture
def args(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(dir=str(tmp_path))


def test_every_published_longest_path_is_computed(args: SimpleNamespace) -> None:
    rows = list(
        slack.published_rows(args, slack.published("perseus_stages.csv"), slack.published("perseus_frontiers.csv"))
    )

    assert len(slack.stages(rows)) == 16 and all(len(of) == 8 for of in slack.stages(rows).values())
    drawn = [row for row in rows if row["what"] == "path"]
    assert {row["source"] for row in drawn} == {slack.DRAWN} and len(drawn) == 8 * 24
    assert all(row["slack_s"] < 1e-9 for row in drawn if row["on_path"])
    assert "16 of 16 longest paths are the published time of the fastest iteration." in table_of(rows)


def test_a_published_time_that_differs_is_named(args: SimpleNamespace) -> None:
    frontier = slack.published("perseus_frontiers.csv")[0]
    frontier["last"] = str(int(frontier["last"]) + 1)

    with pytest.raises(Refused, match=r"gpt3-175b a100, 12: expected a longest path of 2\.819 s, found 2\.818 s"):
        list(slack.published_rows(args, slack.published("perseus_stages.csv"), [frontier]))


def test_what_the_command_refuses_ends_the_figure(tmp_path: Path) -> None:
    (tmp_path / "instructions-0.csv").write_text("time\n")

    with pytest.raises(Refused, match="expected a column instruction, found"):
        slack.slack([str(tmp_path / "instructions-0.csv")])


def test_a_recorded_pipeline_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")
    pytest.importorskip("matplotlib")
    pytest.importorskip("cairn")
    command = [sys.executable, "-B", "-m", "cairn_bench", "figure", "slack", "--steps", "2", "--micro-batch", "1"]
    command += ["--timeout", "120", "--dir", str(tmp_path), "--output", str(tmp_path / "figure")]

    ran = subprocess.run(command, check=False, text=True, capture_output=True)

    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "figure.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for method in slack.PARTITIONS:
        mine = [row for row in rows if row["source"] == f"recorded, {method}"]
        found = {what: [row for row in mine if row["what"] == what] for what in ("stage", "path", "recorded")}
        assert len(found["stage"]) == 2 and len(found["path"]) == 2 * 2 * 8
        computed = [row for row in found["recorded"] if row["instruction"] in ("forward", "backward")]
        assert len(computed) == 2 * 2 * 8
        assert max(float(row["end_s"]) for row in computed) <= 2 * float(found["stage"][0]["known_s"])
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.csv", "figure.png"]
