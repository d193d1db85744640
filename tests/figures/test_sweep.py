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


def test_rows_of_a_sweep_are_no_figures() -> None:
    rows = [{"what": "sweep"}, {"what": ""}, {"what": 5.0}, {"strategy": "none"}]

    assert figures_of(rows) == rows[1:]
