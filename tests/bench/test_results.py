"""scripts/bench results: the tables in the documents are generated from the committed files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/results.md")


def results(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "cairn_bench", "results", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=checkout / "bench")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("bench/cairn_bench", "bench/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    for document in DOCUMENTS:
        shutil.copy(ROOT / document, tmp_path / document)
    return tmp_path


def test_the_documents_agree_with_the_files() -> None:
    ran = results(ROOT, "--check")

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_wrong_number_is_named_and_then_corrected(checkout: Path) -> None:
    document = checkout / "docs/results.md"
    whole = document.read_text()
    block = "<!-- begin figure-12 -->"
    document.write_text(whole.replace(block, block + "\n| typed by hand |", 1))

    checked = results(checkout, "--check")
    unchanged = document.read_text()
    written = results(checkout)

    assert checked.returncode == 1 and "docs/results.md: figure-12 differs from the files" in checked.stdout
    assert "typed by hand" in unchanged
    assert written.returncode == 0 and document.read_text() == whole


def test_a_document_without_a_block_is_refused(checkout: Path) -> None:
    document = checkout / "docs/results.md"
    document.write_text(document.read_text().replace("<!-- begin tuner -->\n", ""))

    ran = results(checkout, "--check")

    assert ran.returncode == 2 and "docs/results.md: expected the blocks" in ran.stderr, ran.stderr


def test_every_result_is_named_in_the_documents() -> None:
    told = "".join((ROOT / document).read_text() for document in DOCUMENTS)

    assert not [file.name for file in (ROOT / "bench/results").iterdir() if file.stem not in told]
