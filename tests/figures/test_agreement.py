"""What figure 8 publishes, and what is called ahead."""

from __future__ import annotations

from typing import Any

import pytest
from cairn_bench.figures.throughput import agreed, slowdowns
from cairn_bench.results.figures import leaders, throughput


def rows(cairn: dict[int, list[float]], sync: dict[int, list[float]]) -> list[dict[str, Any]]:
    """Runs of two strategies by dilation, as slowdowns."""
    found = []
    for strategy, runs in (
        ("none", {at: [1.0] * len(of) for at, of in cairn.items()}),
        ("cairn", cairn),
        ("sync", sync),
    ):
        for at, of in runs.items():
            for repetition, slowdown in enumerate(of):
                found.append({"model": "bert", "interval": 1, "strategy": strategy, "repetition": repetition,
                              "dilation": at, "iterations_per_second": 1 / slowdown})  # fmt: skip
    return found


def test_a_run_is_compared_with_its_neighbour_at_the_same_dilation() -> None:
    made = rows({4: [2.0], 8: [3.0]}, {4: [4.0], 8: [5.0]})
    for row in made:
        row["iterations_per_second"] *= 4 / row["dilation"]

    found = slowdowns(made)

    assert found["bert", 1, "cairn"] == {4: [pytest.approx(2.0)], 8: [pytest.approx(3.0)]}


@pytest.mark.parametrize(
    ("here", "there", "kept"),
    [
        ([1.5, 1.7], [1.4, 1.6], True),
        ([1.5, 1.7], [1.708, 1.9], True),
        ([1.5, 1.7], [1.709, 1.9], False),
        ([4.2, 4.3], [4.321, 4.4], True),
        ([4.2, 4.3], [4.322, 4.4], False),
    ],
)
def test_a_point_is_published_if_its_ranges_overlap_but_for_what_equal_runs_differ_by(
    here: list[float], there: list[float], kept: bool
) -> None:
    point = ("bert", 1, "cairn")

    published, others = agreed({point: {4: here, 8: there}})

    assert published == ({point: [*here, *there]} if kept else {})
    assert others == ([] if kept else [point])


def test_what_differs_between_dilations_is_not_in_the_table_and_nobody_leads_there() -> None:
    text = throughput(rows({4: [1.5, 1.5, 1.5], 8: [1.5, 1.5, 1.5]}, {4: [2.0, 2.0, 2.0], 8: [2.5, 2.5, 2.5]}))

    assert "| 1 | Cairn | 50.0 |" in text and "| 1 | plain write + fsync | - |" in text
    assert text.endswith("1 of 2 points differ between the dilations and were left out (-).")


def test_who_is_ahead_is_bold() -> None:
    text = throughput(rows({4: [1.5, 1.6, 1.5], 8: [1.5, 1.6, 1.5]}, {4: [2.0, 2.1, 2.0], 8: [2.0, 2.1, 2.0]}))

    assert "| **50.0 (50.0 to 60.0)** |" in text and "| 100 (100 to 110) |" in text


@pytest.mark.parametrize(
    ("mine", "ahead"), [([1.0] * 5, True), ([1.0] * 4, False), ([1.0] * 4 + [2.0], False), ([3.0] * 5, False)]
)
def test_ahead_takes_five_runs_that_no_other_reaches(mine: list[float], ahead: bool) -> None:
    values = {"every 1": {"cairn": mine, "sync": [2.0, 2.5]}}

    assert leaders(values) == ({"every 1": "cairn"} if ahead else {})
    assert leaders(values, unknown=["every 1"]) == {}
    negated = {column: {name: [-one for one in of] for name, of in each.items()} for column, each in values.items()}
    assert leaders(negated, best=max) == leaders(values)


def test_who_is_alone_is_not_ahead() -> None:
    assert leaders({"every 1": {"cairn": [1.0] * 5}}) == {}
