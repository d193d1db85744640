"""scripts/bench compare: a new run compared with the committed one, in a temporary repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = "# 2026-11-22 04:00 UTC; scripts/bench {suite}\n# machine: 2 cores\nmeasure,pair,name,value\n"
COMMITTED = [0.50, 0.51, 0.49, 0.50, 0.52, 0.48, 0.50]


def micro(**ratios: list[float]) -> str:
    rows = [f"subject/{name},{i},ratio,{value}\n" for name, of in ratios.items() for i, value in enumerate(of)]
    return HEAD.format(suite="micro") + "".join(rows)


def times(factor: float) -> list[float]:
    return [factor * value for value in COMMITTED]


def commit(checkout: Path) -> None:
    subprocess.run(["git", "add", "."], cwd=checkout, check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, "commit", "-qm", "results"], cwd=checkout, check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the benchmarks' package and one committed result of a micro run."""
    package = "bench/cairn_bench"
    shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bench/results").mkdir()
    (tmp_path / "bench/results/micro.csv").write_text(micro(fast=COMMITTED))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


@pytest.fixture
def compare(checkout: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-B", "-m", "cairn_bench", "compare", *map(str, arguments)]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=checkout / "bench")

    return run


Compare = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("factor", "word", "code"),
    [(1.2, "worse", 1), (0.8, "better", 0), (1.0, "not resolved", 0), (1.015, "not resolved", 0)],
)
def test_a_new_run_is_judged_by_its_intervals(
    checkout: Path, compare: Compare, factor: float, word: str, code: int
) -> None:
    new = checkout / "new.csv"
    new.write_text(micro(fast=times(factor)))

    ran = compare("micro", "--run", new)

    assert ran.returncode == code, ran.stderr
    assert f"| {word} | subject/fast |" in ran.stdout


def test_a_difference_within_the_noise_is_not_resolved_for_any_medians(checkout: Path, compare: Compare) -> None:
    new = checkout / "new.csv"
    new.write_text(micro(fast=[0.3, 0.4, 0.45, 0.6, 0.7, 0.8, 0.9]))

    ran = compare("micro", "--run", new)

    assert ran.returncode == 0, ran.stderr
    assert "| not resolved | subject/fast |" in ran.stdout


def test_differences_under_two_percent_are_ignored_even_without_noise(checkout: Path, compare: Compare) -> None:
    (checkout / "bench/results/micro.csv").write_text(micro(fast=[0.5] * 5))
    commit(checkout)
    new = checkout / "new.csv"
    new.write_text(micro(fast=[0.509] * 5))

    ran = compare("micro", "--run", new)

    assert ran.returncode == 0, ran.stderr
    assert "0 worse, 1 not resolved, 0 better" in ran.stdout


def test_without_a_name_the_new_results_are_compared(checkout: Path, compare: Compare) -> None:
    new = checkout / "build/results"
    new.mkdir(parents=True)
    (new / "micro.csv").write_text(micro(fast=times(1.5), other=COMMITTED))
    (new / "roofline.csv").write_text("of another commit")

    ran = compare()

    assert ran.returncode == 1, ran.stderr
    assert "1 worse, 0 not resolved, 0 better" in ran.stdout
    assert "not in the committed one: subject/other" in ran.stdout


def test_ratios_are_per_pair_and_more_may_be_better(checkout: Path, compare: Compare) -> None:
    def roofline(share: float) -> str:
        rows = [
            f'"write to durable, 4 GiB",{i},{who} bytes/s,{rate * 1e9 * value}\n'
            for i, value in enumerate(COMMITTED)
            for who, rate in (("fio", 2 + i), ("cairn", (2 + i) * share * value / COMMITTED[0]))
        ]
        return HEAD.format(suite="roofline") + "".join(rows)

    committed, new = checkout / "bench/results/roofline.csv", checkout / "new.csv"
    committed.write_text(roofline(0.9))
    commit(checkout)
    new.write_text(roofline(0.7))

    ran = compare("roofline", "--run", new)

    assert ran.returncode == 1, ran.stderr
    assert "| worse | write to durable, 4 GiB | 0.9 (" in ran.stdout


def test_another_machine_is_reported(checkout: Path, compare: Compare) -> None:
    new = checkout / "new.csv"
    new.write_text(micro(fast=COMMITTED).replace("2 cores", "64 cores"))

    ran = compare("micro", "--run", new)

    assert ran.returncode == 0, ran.stderr
    assert "on another machine: 64 cores" in ran.stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected the columns measure,pair,name,value, found nothing"),
        ("a,b\n1,2\n", "expected the columns measure,pair,name,value, found a,b"),
        (HEAD.format(suite="roofline") + "x/y,0,ratio,1\n", "found one of scripts/bench roofline"),
        (HEAD.format(suite="micro") + "x/y,0,seconds,1\n", "no ratio of micro in it"),
        (HEAD.format(suite="micro") + "x/y,0,ratio,fast\n", ":4: expected a number, found 'fast'"),
        (HEAD.format(suite="micro") + "x/y,0,ratio,nan\n", ":4: expected a number, found 'nan'"),
        (HEAD.format(suite="micro") + "x/y,0,ratio,0\n", "expected ratios above 0, found 0"),
        (HEAD.format(suite="micro") + "x/y,0,ratio\n", ":4: expected 4 fields, found 3"),
        (HEAD.format(suite="micro") + "x/y,0,ratio,1\nx/y,0,ratio,1\n", ":5: x/y, pair 0, ratio: there twice"),
        (HEAD.format(suite="micro") + "x/y,0,ratio,1\n", "none of the ratios that HEAD:bench/results/micro.csv has"),
    ],
)
def test_a_file_of_another_format_is_refused_naming_what_was_found(
    checkout: Path, compare: Compare, text: str, why: str
) -> None:
    new = checkout / "new.csv"
    new.write_text(text)

    ran = compare("micro", "--run", new)

    assert ran.returncode == 2
    assert why in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nonsense"], "no ratios are known of nonsense; there are micro"),
        (["--run", "new.csv"], "--run wants one RESULT"),
        (["micro", "--run", "missing.csv"], "missing.csv: No such file or directory"),
        (["roofline"], "no bench/results/roofline.csv at HEAD"),
        (["micro", "--against", "nowhere"], "no bench/results/micro.csv at nowhere"),
        (["micro"], "build/results/micro.csv: No such file or directory"),
        ([], "no new run of a result of HEAD in build/results"),
    ],
)
def test_what_cannot_be_compared_is_refused(compare: Compare, arguments: list[str], why: str) -> None:
    ran = compare(*arguments)

    assert ran.returncode == 2
    assert why in ran.stderr, ran.stderr
