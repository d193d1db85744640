"""The figure of DT-FM's networks: golden costs and published efficiencies hold, and a wrong one ends it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cairn_bench.figures import networks
from cairn_bench.figures.runs import Refused

ROOT = Path(__file__).parents[2]
needs_cairn = pytest.mark.skipif(not Path(networks.PROGRAM).exists(), reason="no cairn")


@pytest.fixture
def args(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(dir=str(tmp_path), orders=1, evaluations=300)


@needs_cairn
def test_the_figure_holds_every_golden_cost_and_every_published_efficiency(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-B", "-m", "cairn_bench", "figure", "dtfm", "--orders", "1", "--evaluations", "300"]
    command += ["--dir", str(tmp_path), "--output", str(tmp_path / "figure")]

    ran = subprocess.run(command, check=False, text=True, capture_output=True)

    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "figure.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    golden = [row for row in rows if row["golden_seconds"]]
    assert len(golden) == 15
    assert all(abs(float(row["total_seconds"]) - float(row["golden_seconds"])) < 1e-9 for row in golden)
    cells = [row for row in rows if row["setting"]]
    assert len(cells) == 171 and all(row["published"] == row["recomputed"] for row in cells)
    assert sum(row["order"] == "found" for row in rows) == sum(row["order"] == "random" for row in rows) == 5
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.csv", "figure.png"]


@needs_cairn
@pytest.mark.parametrize("order", ["contiguous", "one_per_block", "scrambled"])
def test_a_golden_cost_that_differs_is_named(args: SimpleNamespace, order: str) -> None:
    known = networks.published("dtfm.json")
    known["cases"] = known["cases"][:1]
    wrong = next(one for one in known["golden"] if one[:2] == [1, order])
    wrong[3] += 1e-6

    with pytest.raises(Refused, match=f"network 1, {order}, pipeline_seconds: expected .*, found"):
        list(networks.prices(args, known))


@needs_cairn
def test_both_forms_of_a_network_cost_the_same(args: SimpleNamespace) -> None:
    known = networks.published("dtfm.json")
    case, parameters = known["cases"][4], known["parameters"]
    mixed = networks.by_device(case, parameters, seed=3)
    present = networks.by_location(case, parameters)["current"]

    placed = networks.place(args, {**mixed, "current": present})

    golden = next(one for one in known["golden"] if one[:2] == [5, "scrambled"])
    assert placed["current"]["total_seconds"] == pytest.approx(golden[4], abs=1e-9)
    assert placed["contiguous"]["total_seconds"] > 80  # The order of the list is random.


@needs_cairn
def test_what_the_command_refuses_ends_the_figure(args: SimpleNamespace) -> None:
    known = networks.published("dtfm.json")
    known["cases"][0]["across"]["bandwidth_gbps"] = -1

    with pytest.raises(Refused, match=r"across\.bandwidth_gbps: expected a number from 0"):
        list(networks.prices(args, known))


def test_a_search_that_is_worse_than_a_simple_order_is_named() -> None:
    costs = {"contiguous": 3.0, "one_per_block": 2.0, "found": 2.5}

    with pytest.raises(Refused, match="network 9: expected a placement of at most 2.0 s, found 2.5"):
        networks.check_search({"case": 9}, {name: {"total_seconds": value} for name, value in costs.items()})


def test_an_efficiency_that_its_time_does_not_give_is_named() -> None:
    times = networks.published("dtfm-published.json")
    times["cases"][1]["efficiency"][0]["value"][3] += 0.001

    with pytest.raises(Refused, match="network 2, megatron_p8, 32 layers, batch 1024: expected an efficiency of"):
        list(networks.efficiencies(networks.published("dtfm.json"), times))


def test_every_published_efficiency_is_recomputed() -> None:
    rows = list(networks.efficiencies(networks.published("dtfm.json"), networks.published("dtfm-published.json")))

    assert len(rows) == 171
    assert all(row["published"] == row["recomputed"] for row in rows)
