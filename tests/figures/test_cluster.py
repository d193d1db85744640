"""The simulated cluster: what a node's host can give to checkpoints."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from cairn_bench.figures import cluster
from cairn_bench.figures import cluster_model as model

SERVER, MODELS = model.load()


def test_the_data_are_as_published() -> None:
    assert len(MODELS) == 12
    for one in MODELS.values():
        assert one.speed(3, 62.5) == pytest.approx(1)
        most = max(max(row) for row in one.throughput)
        assert one.speed(*one.demand) == pytest.approx(most)
        assert one.speed(2, 40) <= one.speed(3, 40) <= one.speed(3, 62.5)


def test_between_the_points_it_is_between_their_speeds() -> None:
    alexnet = MODELS["alexnet"]
    assert alexnet.speed(2.5, 62.5) == pytest.approx((0.66 + 1) / 2)
    assert alexnet.speed(0.5, 62.5) == pytest.approx(0.15)
    assert 1 / alexnet.speed(12, (62.5 + 125) / 2) == pytest.approx((1 / 2 + 1 / 2.94) / 2)


def test_an_insensitive_job_gives_all_but_one_core() -> None:
    fewest, least = MODELS["bert"].least(3, 62.5)
    assert fewest == pytest.approx(1) and least == pytest.approx(20.83)
    fewest, _ = MODELS["alexnet"].least(3, 62.5)
    assert fewest == pytest.approx(3, abs=1e-6)


@pytest.mark.parametrize("place", [model.place_proportional, model.place_tuned])
def test_nothing_is_given_twice_and_every_job_runs(place: object) -> None:
    for seed in range(20):
        jobs = model.draw_jobs(MODELS, 128, {}, seed)
        nodes = place(SERVER, jobs)  # type: ignore[operator]
        assert sorted(job[0].name for node in nodes for job in node.jobs) == sorted(job.name for job in jobs)
        for node in nodes:
            assert len(node.jobs) <= SERVER.gpus
            assert min(node.free()) >= -1e-6


def test_tuned_shares_are_never_slower_and_leave_less() -> None:
    speed = {}
    for place in (model.place_proportional, model.place_tuned):
        nodes = place(SERVER, model.draw_jobs(MODELS, 128, {}, 1))
        speeds = [one.speed(cpus, memory) for node in nodes for one, cpus, memory in node.jobs]
        speed[place] = sum(speeds)
        assert min(speeds) >= 1 - 1e-6
    assert speed[model.place_tuned] > 1.1 * speed[model.place_proportional]


def test_the_budget_slows_nobody_and_more_does() -> None:
    chance = random.Random(2)
    for _ in range(30):
        jobs = [MODELS[chance.choice(sorted(MODELS))] for _ in range(8)]
        for place in (model.place_proportional, model.place_tuned):
            node = place(SERVER, jobs)[0]
            spare, memory = model.budget(node)
            assert 0 <= spare <= SERVER.cpus and 0 <= memory <= SERVER.memory
            assert model.slowest(node, spare, profiled=True) == 1
            assert model.slowest(node, spare + 0.5, profiled=True) < 1
            assert model.slowest(node, 0.5, profiled=False) <= model.slowest(node, 0.5, profiled=True)


def test_the_figure_is_made_and_repeats(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = []
    for name in ("one", "two"):
        output = tmp_path / name
        command = [sys.executable, "-B", "-m", "cairn_bench", "figure", "cluster", "--seeds", "1", "--output", output]
        subprocess.run(command, check=True, capture_output=True)
        assert output.with_suffix(".png").stat().st_size > 10_000
        made.append([line for line in output.with_suffix(".csv").read_text().splitlines() if line[0] != "#"])
    assert made[0] == made[1] and len(made[0]) == 1 + 3 * 2 * cluster.NODES
