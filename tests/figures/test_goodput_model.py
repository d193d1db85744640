"""The models of goodput compared with numbers computed by hand, and with each other."""

from __future__ import annotations

import math
import random

import pytest
from cairn_bench.figures import goodput_model as model

# An iteration takes 0.5 s, 0.8 s with checkpoints: one every 8 s (5 s without). A write takes 3 s, 2 s of them after
# Save returns.
COSTS = model.Costs(every=10, ideal_iteration=0.5, iteration=0.8, write=3, exposed=2, restart=1, in_flight=4)
FAILURES, END = [20.0, 40.0], 50.0


@pytest.mark.parametrize(
    ("strategy", "redo"),
    [("checkfreq", 5), ("gemini", 5), ("gpm", 2.5), ("sync", 2.5), ("pccheck", 2.5 + 1.5), ("cairn", 2.5 + 1.5)],
)
def test_the_published_model_matches_the_artifact(strategy: str, redo: float) -> None:
    expected = (50 - 2 * (redo + 1)) / 0.8 / 50

    assert model.published(strategy, COSTS, FAILURES, END) == pytest.approx(expected)


def test_the_published_model_limits_writes_by_the_slots_in_flight() -> None:
    slow = COSTS._replace(write=1000.0, in_flight=2)

    assert model.published("cairn", slow, FAILURES, END) == pytest.approx((50 - 2 * (2.5 + 5 + 1)) / 0.8 / 50)


def test_the_published_model_is_never_negative_and_requires_checkpoints() -> None:
    assert model.published("gpm", COSTS._replace(restart=100), FAILURES, END) == 0
    assert model.published("none", COSTS, FAILURES, END) is None


def test_the_exact_model_loses_half_an_interval_the_exposed_time_and_the_restart_per_failure() -> None:
    # Training time until the failures: 20 and 19 s, of which 8 / 2 + 2 s each are lost; then 9 s without loss.
    assert model.exact(COSTS, FAILURES, END) == pytest.approx((14 + 13 + 9) / 0.8 / 50)


def test_the_walk_counts_the_checkpoints_durable_at_each_failure() -> None:
    # After 20 s, the checkpoints of 8 and 16 s are durable, the latter since 18 s. After 19 s, the same two.
    assert model.walked(COSTS, FAILURES, END) == pytest.approx((16 + 16 + 9) / 0.8 / 50)
    # At 17 s the second is not durable yet.
    assert model.walked(COSTS, [17.0], 18.0) == pytest.approx((8 + 0) / 0.8 / 18)


def test_without_failures_everything_counts() -> None:
    for told in (model.exact(COSTS, [], END), model.walked(COSTS, [], END), model.published("cairn", COSTS, [], END)):
        assert told == pytest.approx(1 / 0.8)
    assert model.ideal(COSTS, [], END) == pytest.approx(1 / 0.5)


def test_without_checkpoints_only_what_follows_the_last_failure_counts() -> None:
    nothing = COSTS._replace(write=math.inf, exposed=math.inf)

    assert model.exact(nothing, FAILURES, END) == model.walked(nothing, FAILURES, END) == pytest.approx(9 / 0.8 / 50)


def test_failures_during_a_restart_cost_the_time_until_they_came() -> None:
    slow = COSTS._replace(restart=5)
    # Four seconds of a restart are wasted, then another begins; then 21 s are left, without loss.
    assert model.exact(slow, [20.0, 24.0], END) == pytest.approx((14 + 21) / 0.8 / 50)
    assert model.walked(slow, [20.0, 24.0], END) == pytest.approx((16 + 21) / 0.8 / 50)


def test_a_run_that_ends_during_a_restart_keeps_what_was_durable() -> None:
    assert model.exact(COSTS, [20.0], 20.5) == pytest.approx(14 / 0.8 / 20.5)
    assert model.walked(COSTS, [20.0], 20.5) == pytest.approx(16 / 0.8 / 20.5)


def test_the_ideal_loses_half_an_interval_and_nothing_else() -> None:
    assert model.ideal(COSTS, FAILURES, END) == pytest.approx((17.5 + 17.5 + 10) / 0.5 / 50)


def test_the_exact_model_is_the_mean_of_the_walk_over_random_failures() -> None:
    draw = random.Random(1)
    walked = exact = 0.0
    for _ in range(2000):
        failures = [draw.uniform(100, 200), draw.uniform(300, 400)]
        walked += model.walked(COSTS, failures, 500)
        exact += model.exact(COSTS, failures, 500)

    assert walked / exact == pytest.approx(1, abs=0.001)
    # The published model differs: CheckFreq's is the worst case, and Cairn's includes half of the write.
    assert model.published("sync", COSTS, [150.0, 350.0], 500) > model.exact(COSTS, [150.0, 350.0], 500)
