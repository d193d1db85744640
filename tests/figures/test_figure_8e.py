"""Figure 8e's table: what two nodes lose, and which strategy is in bold."""

from __future__ import annotations

from typing import Any

import pytest
from cairn_bench.figures.pipeline import published_slowdown
from cairn_bench.results.figures import pipeline


def rows(**rates: list[float]) -> list[dict[str, Any]]:
    """Runs at every 10, by strategy, of a training that makes 10 iterations a second without checkpoints."""
    return [
        {"model": "opt-2.7b", "interval": 10.0, "repetition": float(number), "strategy": name,
         "dilation": 4.0, "iterations_per_second": rate}
        for name, of in {"none": [10.0] * 5, **rates}.items() for number, rate in enumerate(of)
    ]  # fmt: skip


def test_the_least_loss_is_bold_if_no_other_range_reaches_it() -> None:
    five = [8.0, 8.05, 8.05, 8.05, 8.1]
    apart = pipeline(rows(cairn=five, pccheck=[5.0, 6.0]))
    overlapping = pipeline(rows(cairn=five, pccheck=[5.0, 8.05]))

    assert "| Cairn | **24.2 (23.5 to 25.0)** |" in apart
    assert "| PCcheck | 83.3 (66.7 to 100) | 23.5 |" in apart
    assert "**" not in overlapping


def test_published_losses_are_those_of_the_artifact() -> None:
    assert 100 * (published_slowdown("pccheck") - 1) == pytest.approx(23.5, abs=0.05)
    assert 100 * (published_slowdown("gemini") - 1) == pytest.approx(65.4, abs=0.05)
