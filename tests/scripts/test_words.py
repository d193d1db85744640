"""Every script says what it is, and names a word that it does not know, before it installs, builds or runs anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cairn_bench.__main__ import WHAT
from cairn_bench.figures import FIGURES

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)
# Whatever installs, configures, compiles or runs.
STARTERS = ("apt-get", "c++", "cc", "ccache", "clang++", "clang-format", "clang-tidy", "cmake", "ctest", "dpkg-query", "fio",
            "g++", "gcc", "git", "ninja", "pip", "pip3", "sudo")  # fmt: skip
FREE_WORD = ("wheel",)  # Its word is a folder, whatever that is called.


class Checkout:
    """A copy of the scripts, in which nothing is built, and where each command that would be started is noted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started, commands = folder / "cairn", folder / "started", folder / "commands"
        for name in ("scripts", "bench/cairn_bench", "bench/data"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("src", "tests", "bindings", "CMakeLists.txt"):
            (self.folder / name).symlink_to(ROOT / name)
        commands.mkdir()
        python = 'case " $* " in *" pip "* | *" venv "*) ;; *) exec "' + sys.executable + '" "$@" ;; esac\n'
        for name in (*STARTERS, "python3"):
            note = f'echo "{name} $*" >> "{self.started}"; exit 1\n'
            (commands / name).write_text("#!/bin/sh\n" + (python if name == "python3" else "") + note)
            (commands / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("PYTHONPATH", None)
        self.before = self.files()

    def files(self) -> list[Path]:
        return sorted(self.folder.rglob("*"))

    def run(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        # From another folder, as users may.
        command = [self.folder / "scripts" / script, *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=self.environment)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    assert not made.started.exists(), made.started.read_text()
    assert made.files() == made.before


def test_each_script_has_a_help_with_minutes_and_exit_status(checkout: Checkout) -> None:
    def check(script: str) -> None:
        said = checkout.run(script, "--help")
        assert said.returncode == 0 and said.stderr == "", f"{script}: {said.stderr}"
        for needed in ("scripts/", "minute|second|hour", "Exit status: 0 "):
            assert re.search(needed, said.stdout), f"{script} --help lacks {needed}:\n{said.stdout}"
        assert checkout.run(script, "-h").stdout == said.stdout

    with ThreadPoolExecutor() as pool:
        list(pool.map(check, SCRIPTS))


def test_each_script_names_what_it_does_not_know_and_what_it_knows(checkout: Checkout) -> None:
    def check(command: list[str]) -> None:
        said = checkout.run(*command)
        assert said.returncode == 2 and said.stdout == "", f"{command}: {said.returncode}\n{said.stdout}{said.stderr}"
        named = "nonsense.*; known: |usage: .*nonsense|expected a file, found 'nonsense'"
        assert re.search(named, said.stderr, re.DOTALL), said.stderr

    options = [[script, "--nonsense"] for script in SCRIPTS]
    words = [[script, "nonsense"] for script in SCRIPTS if script not in FREE_WORD]
    deeper = [["build", "release", "nonsense"], ["bench", "figure", "nonsense"], ["bench", "micro", "--only", "nonsense"],
              ["fuzz", "--input", "nonsense"], ["test", "lint", "nonsense"], ["wheel", "folder", "nonsense"],
              ["setup", "native", "nonsense"], ["lint", "format", "nonsense"], ["prepare-data", "text", "source", "out", "--nonsense"],
              ["test-install", "2.7.1", "nonsense"]]  # fmt: skip
    with ThreadPoolExecutor() as pool:
        list(pool.map(check, options + words + deeper))


def test_each_benchmark_says_how_long_it_takes() -> None:
    for name, (module, _) in {**WHAT, **FIGURES}.items():
        # Of "figure" each figure says it.
        assert name == "figure" or re.search("minute|half a minute|second|hour", module.__doc__ or ""), name
