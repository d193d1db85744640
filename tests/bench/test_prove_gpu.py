"""scripts/prove-gpu: every step runs without a GPU, on the driver's test double and the CPU; what it keeps and judges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cairn_bench.gpu import contact, copies, correct, cost, experiments
from cairn_bench.gpu.__main__ import STEPS
from cairn_bench.gpu.context import Context, Failed, OutOfTime
from cairn_bench.gpu.programs.ways import KINDS, STAGED, STRIDED_BLOCKS, THEN
from cairn_bench.gpu.record import Record, finished, never_ran

ROOT = Path(__file__).parents[2]
ABOUT = {
    "date": "2026-11-24 20:00 UTC", "command": "scripts/prove-gpu", "commit": "abc", "source": "0123",
    "device": "1 x H100", "driver": "580", "machine": "16 cores", "dry_run": False, "short": False,
}  # fmt: skip
# Runs what it is given, as compute-sanitizer does.
SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; case $1 in --*|*/*) ;; *) shift ;; esac; done
"$@" && echo "========= ERROR SUMMARY: 0 errors"
"""


def prove(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "cairn_bench.gpu", *words]
    environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = f"{ROOT / 'bench'}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def record(**about: Any) -> Record:
    return Record("B", "copies", ABOUT | about)


def test_every_step_runs_without_a_gpu_says_that_it_proves_nothing_and_is_kept(tmp_path: Path) -> None:
    sanitizer, results = tmp_path / "compute-sanitizer", tmp_path / "results"
    sanitizer.write_text(SANITIZER)
    sanitizer.chmod(0o755)
    words = ("--dry-run", "--dir", str(tmp_path), "--results", str(results))

    ran = prove(*words, path=str(tmp_path))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    for step in STEPS:
        found = json.loads((results / f"gpu-{step}.json").read_text())
        assert found["dry_run"] and found["complete"]
        assert not [line for line in found["lines"] if line["verdict"] in ("missed", "not run", "not resolved")]
        assert "proves nothing about a GPU" in (results / f"gpu-{step}.md").read_text()

    again = prove(*words)

    assert again.returncode == 0 and again.stdout.count("(kept, of ") == len(STEPS), again.stdout


def test_without_a_gpu_nothing_is_claimed(tmp_path: Path) -> None:
    ran = prove("A", "--dir", str(tmp_path), "--results", str(tmp_path), path=str(tmp_path))

    assert ran.returncode == 1 and "finds no GPU" in ran.stderr
    assert not list(tmp_path.glob("gpu-*"))


def context_of(build: Path, directory: Path, programs: dict[str, str]) -> Context:
    """Of a build that has these shell scripts."""
    (build / "bin").mkdir(parents=True)
    for name, script in programs.items():
        path = build / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    context = Context(str(directory), sys.executable, True)
    context.build = str(build)
    context.no_torch = "not asked"
    return context


@pytest.mark.parametrize(
    ("printed", "told"),
    [("", "no line of JSON"), ("echo nothing to say", "no line of JSON: nothing to say"), ("echo '{'", "is no JSON")],
)
def test_a_program_that_prints_no_json_fails_its_line(tmp_path: Path, printed: str, told: str) -> None:
    context = context_of(tmp_path / "build", tmp_path, {"bench_gpu": printed})
    step = record()

    copies.run(context, step)

    verdicts = {line["line"]: (line["verdict"], line["found"]) for line in step.lines if "measured" in line["line"]}
    assert set(verdicts) >= {"link: measured", "sums: measured", "pieces: measured", "launches: measured"}
    assert all(verdict == "missed" and told in found for verdict, found in verdicts.values()), verdicts


@pytest.mark.parametrize(
    "found", ["[]", "", '[{"name": "cuda:0 events", "value": true, "state": "ok", "found": "yes"}]']
)
def test_a_doctor_that_proves_nothing_fails_its_line(tmp_path: Path, found: str) -> None:
    context = context_of(tmp_path / "build", tmp_path, {"cairn": f"echo '{found}'"})
    step = record()

    contact.doctor(context, step)

    assert step.lines[0]["verdict"] == "missed" and "not proven: " in step.lines[0]["found"]


def test_tests_that_were_skipped_prove_nothing_to_the_sanitizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = {"testsuites": [{"testsuite": [{"name": "Copies", "status": "RUN", "result": "SKIPPED"}]}]}
    script = (
        f"for word; do case $word in --gtest_output=json:*) echo '{json.dumps(skipped)}' > ${{word#*:}} ;; esac; done"
    )
    context = context_of(tmp_path / "build", tmp_path, {"test_fake_cuda": script, "compute-sanitizer": SANITIZER})
    monkeypatch.setenv("PATH", f"{tmp_path / 'build' / 'bin'}:{os.environ['PATH']}")
    step = record()

    contact.sanitizer(context, step)

    assert step.lines[0]["verdict"] == "missed" and "1 skipped" in step.lines[0]["found"], step.lines


def test_what_a_program_leaves_out_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(tmp_path / "build", tmp_path, {})
    lines = [{"way": "pool", "torn": 0, "saves": 2, "staged": 0, "late": 1}]
    monkeypatch.setattr(context, "worker", lambda *_words, **_named: lines)
    step = record()

    correct.torn(context, step)

    assert not step.proven
    assert "nothing was said of small, staged, unfenced, found" in [line["found"] for line in step.lines]


@pytest.mark.parametrize(("late", "verdict"), [(199, "met"), (149, "missed")])
def test_saves_whose_values_were_written_before_the_call_prove_nothing_of_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, verdict: str
) -> None:
    context = context_of(tmp_path / "build", tmp_path, {})
    lines = [{"way": "pool", "torn": 0, "saves": 600, "staged": 0, "late": late}]
    monkeypatch.setattr(context, "worker", lambda *_words, **_named: lines)
    step = record()

    correct.torn(context, step)

    assert [line["verdict"] for line in step.lines if "before their values were written" in line["line"]] == [verdict]


# One part that is broken each: what must notice it.
@pytest.mark.parametrize(("broken", "line"), [("copies", "cuda:0 round trip"), ("kernels", "cuda:0 strides")])
def test_a_dry_run_notices_a_driver_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, line: str
) -> None:
    monkeypatch.setenv("FAKE_CUDA_BROKEN", broken)
    step = record(dry_run=True)

    contact.doctor(Context(str(tmp_path), sys.executable, True), step)

    assert {"cairn doctor --gpu", line} <= {one["line"] for one in step.lines if one["verdict"] == "missed"}


def test_a_dry_run_without_kernels_proves_no_strides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_KERNELS", "0")
    step = record(dry_run=True)

    contact.doctor(Context(str(tmp_path), sys.executable, True), step)

    assert "not proven: strides" in step.lines[0]["found"] and not step.proven


def test_an_unknown_step_is_refused_before_anything_is_built() -> None:
    ran = prove("--check-arguments", "A", "Z")

    assert ran.returncode == 2 and "unknown Z" in ran.stderr


def test_figures_are_judged_by_their_interval() -> None:
    judged = record()

    judged.judge("fast", [0.95, 0.96, 0.97], 0.9, more_is_better=True)
    judged.judge("slow", [0.5, 0.51, 0.52], 0.9, more_is_better=True)
    judged.judge("unclear", [0.8, 0.9, 1.0, 0.85, 0.97], 0.9, more_is_better=True)
    judged.most("longest", 150, 200)
    judged.most("too long", 250, 200)

    assert [line["verdict"] for line in judged.lines] == ["met", "missed", "not resolved", "met", "missed"]
    assert not judged.proven


@pytest.mark.parametrize(("word", "proven"), [("fact", True), ("not_run", False), ("not_resolved", False)])
def test_a_line_that_was_not_run_or_resolved_proves_nothing(word: str, proven: bool) -> None:
    step = record()
    step.require("one", True, "yes")
    getattr(step, word)("another", "why")

    assert step.proven is proven


def test_a_dry_run_judges_no_figure() -> None:
    step = record(dry_run=True)

    step.judge("slow", [0.1], 0.9, more_is_better=True)

    assert step.lines[0]["verdict"] == "dry run" and step.proven


@pytest.mark.parametrize("changed", ["source", "device", "driver", "dry_run", "short", "complete"])
def test_a_step_runs_again_if_what_it_depends_on_has_changed(tmp_path: Path, changed: str) -> None:
    step = record()
    step.require("one", True, "yes")
    step.complete = changed != "complete"
    step.write(str(tmp_path))

    kept = finished(str(tmp_path), "B", ABOUT | ({changed: "other"} if changed != "complete" else {}))

    assert kept is None
    assert changed == "complete" or finished(str(tmp_path), "B", ABOUT | {"commit": "later"}) is not None


def test_each_line_is_in_the_files_as_soon_as_it_is_found(tmp_path: Path) -> None:
    step = Record("B", "copies", ABOUT, str(tmp_path))

    step.require("one", True, "yes")

    assert json.loads((tmp_path / "gpu-B.json").read_text())["lines"] == step.lines
    assert "did not end" in (tmp_path / "gpu-B.md").read_text()
    assert finished(str(tmp_path), "B", ABOUT) is None


def test_what_never_ran_is_listed(tmp_path: Path) -> None:
    step = Record("B", "copies", ABOUT, str(tmp_path))
    step.require("one", True, "yes")
    step.not_run("another", "no torch")

    assert never_ran(str(tmp_path), "B", "copies") == [
        "B another: no torch", "B copies: what comes after its last line"
    ]  # fmt: skip
    assert never_ran(str(tmp_path), "C", "correctness") == ["C correctness"]
    step.complete = True
    step.write(str(tmp_path))
    assert never_ran(str(tmp_path), "B", "copies") == ["B another: no torch"]


def test_parts_run_beside_each_other_and_one_that_fails_is_not_lost(tmp_path: Path) -> None:
    done: list[int] = []

    def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Context(str(tmp_path), sys.executable, False).together([lambda: done.append(1), broken, lambda: done.append(2)])

    assert sorted(done) == [1, 2]


def test_a_short_run_takes_a_state_that_the_disk_writes_within_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(str(tmp_path), sys.executable, False, short=True)
    context.__dict__["no_torch"] = None
    monkeypatch.setattr(cost, "rates_of", lambda *_: RATES | {"write, fresh file": 2e9})
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(context, "worker", lambda *words, **_named: asked.append(words) or [])
    step = record(short=True)

    cost.run(context, step)

    assert len(asked) == len(cost.SHORT_RUNS)
    gigabytes = {float(words[words.index("--gigabytes") + 1]) for words in asked}
    seconds = cost.SHORT_TURN * cost.SHORT_STEP
    assert all(0.5 * seconds < size * 1e9 / 2e9 < seconds for size in gigabytes), gigabytes


def besides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **answers: list[dict[str, Any]]) -> Context:
    """A context whose programs/beside.py answers so."""
    context = context_of(tmp_path / "build", tmp_path, {"libbench_beside.so": ""})

    def worker(_name: str, *words: str, **_named: Any) -> list[dict[str, Any]]:
        return answers[words[words.index("--what") + 1].replace("-", "_")]

    monkeypatch.setattr(context, "worker", worker)
    return context


def rounds(ways: Sequence[Any], seconds: float) -> list[dict[str, Any]]:
    """Of copies of 3.2 GB that take so many seconds on an idle GPU, and from the products beside them."""
    about = {"alone": 0.09, "copied": 0.06, "idle": seconds, "bytes": 3.2e9}
    return [about | {"way": way, "beside": 0.09 + seconds * part} for way in ways for part in (0.9, 1, 1.1)]


@pytest.mark.parametrize(("seconds", "verdict"), [(0.0005, "met"), (0.005, "missed")])
def test_copies_are_judged_by_what_they_take_from_the_products_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, verdict: str
) -> None:
    answers = {"to_host": rounds(THEN, seconds), "staging": rounds(STAGED, seconds)}
    context = besides(monkeypatch, tmp_path, **answers)
    step = record()

    experiments.ends(context, step)
    experiments.staging(context, step)

    assert [line["verdict"] for line in step.lines if line["goal"]] == 5 * [verdict]


@pytest.mark.parametrize(("taken", "longest", "verdict"), [(10_000, 1e-5, "met"), (640, 1e-3, "missed")])
def test_a_launch_queue_that_takes_less_than_a_lane_has_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, longest: float, verdict: str
) -> None:
    lines = [{"way": kind, "taken": taken, "longest": longest} for kind in KINDS for _ in range(2)]
    step = record()

    experiments.launch_queue(besides(monkeypatch, tmp_path, queue=lines), step)

    assert [line["verdict"] for line in step.lines if line["verdict"]] == 6 * [verdict]


def test_an_experiment_answers_yes_or_no_or_is_not_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = record()
    experiments.answer(step, "more", [0.1, 0.2, 0.3])
    experiments.answer(step, "less", [-0.1, -0.2, -0.3])
    experiments.answer(step, "as much", [-0.1, 0, 0.2])
    slower = {8: 0.5, 16: 0.95, 32: 1, 64: 1}
    lines = [one | {"copied": 0.06 / slower[one["way"]]} for one in rounds(STRIDED_BLOCKS, 0.001)]

    experiments.blocks(besides(monkeypatch, tmp_path, strided=lines), step)

    assert [line["found"].split(":")[0] for line in step.lines[:2]] == ["yes", "no"]
    assert step.lines[2]["verdict"] == "not resolved"
    assert step.lines[-2]["found"].startswith("yes") and "16 blocks copy at" in step.lines[-2]["line"]
    assert step.lines[-1]["verdict"] == "not resolved", "they cost as much as each other"


def test_what_an_experiment_leaves_out_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = besides(monkeypatch, tmp_path, to_host=rounds(THEN[:3], 0.001))

    with pytest.raises(Failed, match="nothing was said of threads"):
        experiments.ends(context, record())


def test_what_there_is_no_time_for_is_listed_and_loses_no_earlier_record(tmp_path: Path) -> None:
    earlier = Record("X", "experiments", ABOUT, str(tmp_path))
    earlier.require("one", True, "yes")

    ran = prove("X", "A", "--dry-run", "--minutes", "0.000001", "--dir", str(tmp_path), "--results", str(tmp_path))

    assert ran.returncode == 1 and "\n- A first contact" in ran.stdout, ran.stdout + ran.stderr
    assert json.loads((tmp_path / "gpu-X.json").read_text())["lines"] == earlier.lines


def test_a_program_that_the_time_cuts_short_has_not_failed(tmp_path: Path) -> None:
    context = Context(str(tmp_path), sys.executable, True, seconds=0.2)

    with pytest.raises(OutOfTime):
        context.run(["sleep", "60"], 30)
    with pytest.raises(Failed, match=r"not done after 0.1 s"):
        Context(str(tmp_path), sys.executable, True).run(["sleep", "60"], 0.1)


RATES = {"cuda:0 one copy to the host": 50e9, "cuda:0 one copy from the host": 50e9, "read": 4e9}


def test_captures_and_restores_are_judged_by_what_link_and_disk_give() -> None:
    saves = [
        {"bytes": 10e9, "captured": seconds, "durable": 3.0, "staged": False, "fenced": 0.0} for seconds in (0.21, 0.22)
    ]
    lines = [{"what": "training", "bytes": 10e9}, *({"what": "restore", "seconds": seconds} for seconds in (2.6, 2.7))]
    step = record()

    cost.captures(step, "Cairn", saves, RATES)
    cost.captures(step, "Cairn", [save | {"captured": 0.3} for save in saves], RATES)
    cost.captures(step, "Cairn, staging", [save | {"fenced": 0.01} for save in saves], RATES)
    cost.restores(step, "Cairn", lines, RATES)

    verdicts = [(line["line"].split(": ")[1], line["verdict"]) for line in step.lines if line["verdict"]]
    assert verdicts == [
        ("captured, of the link's time for its bytes", "met"),
        ("captured, of the link's time for its bytes", "missed"),
        ("each save was staged", "missed"),
        ("fence on an idle GPU", "met"),
        ("restore, of the slower of disk and link", "met"),
    ]


def test_a_captured_gigabyte_is_judged_by_what_it_takes_from_the_training() -> None:
    # A save of 4 GB at the first and the eleventh of 20 steps.
    turns = [{"quiet": [0.4] * 20, "busy": [0.4] * 18 + [0.4 + seconds] * 2} for seconds in (0.0019, 0.0018)]
    step = record()

    cost.gpu_time(step, "Cairn", turns, 10, 4e9, judged=True)
    cost.gpu_time(step, "Cairn", [turn | {"quiet": [0.399] * 20} for turn in turns], 10, 4e9, judged=True)
    cost.gpu_time(step, "Cairn", turns, 10, 4e9, judged=False)

    assert [line["verdict"] for line in step.lines] == ["met", "missed", ""]
    assert step.lines[0]["values"] == pytest.approx([0.475, 0.45])


def test_a_slowdown_is_not_held_against_cairn_if_the_disk_is_too_slow_for_any_save() -> None:
    turns = [{"quiet": [0.4] * 20, "busy": [0.44] * 20}] * 3
    step = record()

    cost.slowdown(step, "Cairn", turns, 1, held_up=False)
    cost.slowdown(step, "Cairn", turns, 1, held_up=True)
    cost.slowdown(step, "torch.save", turns, None, held_up=False)

    assert [line["verdict"] for line in step.lines] == ["", "missed", "", "not resolved", "", ""]
