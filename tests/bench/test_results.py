"""scripts/bench results: the tables in README.md and in the pages of bench/results are generated from the CSVs."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cairn_bench import figures
from cairn_bench.__main__ import WHAT
from cairn_bench.python.measures import Samples
from cairn_bench.python.tables import about, side_by_side
from cairn_bench.shared import NEW_RESULTS
from cairn_bench.shared.report import Report

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench/results"


def results(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "cairn_bench", "results", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=checkout / "bench")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("bench/cairn_bench", "bench/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_the_pages_agree_with_the_files() -> None:
    ran = results(ROOT, "--check")

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_wrong_number_is_named_and_then_corrected(checkout: Path) -> None:
    page = checkout / "bench/results/figure-12.md"
    whole = page.read_text()
    block = "<!-- begin figure-12 -->"
    page.write_text(whole.replace(block, block + "\n| typed by hand |", 1))

    checked = results(checkout, "--check")
    unchanged = page.read_text()
    written = results(checkout)

    assert checked.returncode == 1
    assert "bench/results/figure-12.md: figure-12 differs from the files" in checked.stdout
    assert "typed by hand" in unchanged
    assert written.returncode == 0 and page.read_text() == whole


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        ("", "block tuner: expected once in README.md and bench/results/*.md"),
        ("<!-- begin records -->\n<!-- end records -->\n<!-- begin tuner -->\n", "block records: expected once"),
        ("<!-- begin weather -->\n<!-- end weather -->\n<!-- begin tuner -->\n", "unknown block weather"),
    ],
)
def test_a_block_that_is_missing_doubled_or_unknown_is_refused(checkout: Path, begin: str, why: str) -> None:
    page = checkout / "bench/results/tuner.md"
    page.write_text(page.read_text().replace("<!-- begin tuner -->\n", begin))

    ran = results(checkout, "--check")

    assert ran.returncode == 2 and why in ran.stderr, ran.stderr


def test_a_csv_s_head_says_what_python_s_table_needs_beside_the_values() -> None:
    samples = Samples("C", Report())
    samples.facts = {name: {"tensors": 1000, "bytes": 2e9, "version": "1.2"} for name in ("cairn", "torch.save")}
    samples.failures = {"torch.save": "save 1: OSError:\n no | room", "safetensors": "not installed"}
    samples.add("cairn", "steady blocked s", 0.0015)

    lines = side_by_side(about(samples), samples.report.values).splitlines()

    assert about(samples)[0] == "state C: 1,000 tensors, 2.00 GB"
    assert lines[2:] == [
        "| cairn 1.2 |  | 1.5 |",
        "| torch.save + 1.2 | failed: save 1: OSError: no / room |  |",
        "| safetensors + | failed: not installed |  |",
    ]


def test_every_file_is_named_by_a_page_every_picture_shown_and_every_page_linked() -> None:
    pages = "".join(page.read_text() for page in RESULTS.glob("*.md"))
    named = {
        ".csv": set(re.findall(r"\]\(([\w-]+\.csv)\)", pages)),
        ".png": set(re.findall(r"!\[[^]]+\]\(([\w-]+\.png)\)", pages)),
        ".svg": set(re.findall(r"!\[[^]]+\]\(([\w-]+\.svg)\)", pages)),
        ".md": set(re.findall(r"\]\(\.\./bench/results/([\w-]+\.md)\)", (ROOT / "docs/results.md").read_text())),
    }

    assert not [file.name for file in RESULTS.iterdir() if file.name not in named.get(file.suffix, ())]


def parsed(module: object, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.set_defaults(error=parser.error)
    module.add_arguments(parser)  # type: ignore[attr-defined]
    return parser.parse_args(given)


def test_only_record_writes_over_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def output(*given: str) -> str:
        args = parsed(figures, *given)
        figures.check(args)
        return str(args.output)

    monkeypatch.chdir(ROOT)
    for name in figures.FIGURES:
        assert output(name) == f"{NEW_RESULTS}/figure-{name}"
    assert output("dtfm", "--record") == f"{RESULTS}/figure-dtfm"
    assert output("11", "--output", "bench/results/figure-11-memory") == f"{NEW_RESULTS}/figure-11-memory"
    assert output("11", "--record", "--output", "bench/results/figure-11-memory") == f"{RESULTS}/figure-11-memory"
    assert output("11", "--output", "elsewhere/figure") == "elsewhere/figure"
    with pytest.raises(SystemExit):
        output("11", "--record", "--output", "elsewhere/figure")
    for what in WHAT.keys() - {"figure", "compare", "results", "fall-back", "unfenced"}:
        args = ["--source", "."] if what == "pccheck" else []
        assert parsed(WHAT[what][0], *args).folder == NEW_RESULTS, what
        assert parsed(WHAT[what][0], *args, "--record").folder == str(RESULTS), what
