"""PCcheck's setting at each point of a figure: the best of a sweep, which is in the CSV and is no figure."""

from __future__ import annotations

from typing import Any

from cairn_bench.figures.runs import planned
from cairn_bench.figures.sweep import Sweeping, figures_of, with_sweep


def plan() -> list[dict[str, Any]]:
    entries = []
    for repetition in range(2):
        for every in (1, 10):
            for strategy in ("none", "pccheck", "cairn"):
                options = {"model": "bert", "every": every, "in_flight": 2}
                entries.append(planned(strategy, options, repetition=repetition, interval=every))
    return with_sweep(entries)


def test_each_point_is_swept_once_before_its_first_run() -> None:
    entries = plan()

    swept = [entry for entry in entries if entry["labels"].get("what") == "sweep"]
    settings = [(e["options"]["every"], e["options"]["in_flight"], e["options"]["writers"]) for e in swept]
    assert settings == [(every, n, p) for every in (1, 10) for n in (1, 2, 4) for p in (1, 2)]
    assert [entry["strategy"] for entry in entries[:9]] == ["none", *["pccheck"] * 7, "cairn"]
    assert len(entries) == 12 + 12


def test_the_best_setting_of_a_point_is_used_there_and_others_keep_theirs() -> None:
    made: list[dict[str, Any]] = []

    def one(_: object, entry: dict[str, Any]) -> dict[str, Any]:
        made.append(entry)
        return {}

    def sweep(_: object, entry: dict[str, Any]) -> dict[str, Any]:
        every, in_flight, writers = (entry["options"][name] for name in ("every", "in_flight", "writers"))
        best = (4, 1) if every == 1 else (1, 2)
        return {"iterations_per_second": 9.0 if (in_flight, writers) == best else 5.0}

    runner = Sweeping(one, sweep=sweep)
    for entry in plan():
        runner(None, entry)

    used = {(e["strategy"], e["options"]["every"]): e["options"] for e in made}
    assert (used["pccheck", 1]["in_flight"], used["pccheck", 1]["writers"]) == (4, 1)
    assert (used["pccheck", 10]["in_flight"], used["pccheck", 10]["writers"]) == (1, 2)
    assert used["cairn", 1]["in_flight"] == 2 and "writers" not in used["cairn", 1]
    assert len(made) == 12


def test_of_settings_that_equal_runs_would_not_tell_apart_the_one_with_the_least_in_flight_is_used() -> None:
    used: list[int] = []
    rates = {1: 9.9, 2: 9.96, 4: 10.0}

    def one(_: object, entry: dict[str, Any]) -> dict[str, Any]:
        used.append(entry["options"]["in_flight"])
        return {}

    runner = Sweeping(one, sweep=lambda _, entry: {"iterations_per_second": rates[entry["options"]["in_flight"]]})
    for entry in plan():
        if entry["strategy"] == "pccheck":
            runner(None, entry)

    assert used == [2] * 4


def test_a_size_is_swept_on_each_filesystem() -> None:
    of = [(size, place) for size in (10, 100) for place in ("ext4", "xfs")]
    entries = [
        planned("pccheck", {"state_bytes": size, "every": 1}, megabytes=size, filesystem=place)
        for _ in range(2) for size, place in of
    ]  # fmt: skip
    threads = [{"in_flight": 1, "writers": writers} for writers in (1, 2, 4)]

    swept = [entry for entry in with_sweep(entries, settings=threads) if entry["labels"].get("what") == "sweep"]

    found = [(e["options"]["state_bytes"], e["labels"]["filesystem"], e["options"]["writers"]) for e in swept]
    assert found == [(*point, writers) for point in of for writers in (1, 2, 4)]


def test_rows_of_a_sweep_are_no_figures() -> None:
    rows = [{"what": "sweep"}, {"what": ""}, {"what": 5.0}, {"strategy": "none"}]

    assert figures_of(rows) == rows[1:]
