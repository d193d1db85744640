"""Every script says what it is, and names a word that it does not know, before it installs, builds or runs anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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
DEBIAN = "%secho installed\n"
# A Python without torch. It installs nothing, but says that it did.
PYTHON = f"""case " $* " in
  *importlib.util*) exit 1 ;;
  *" venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *" pip "*) for word; do case $word in build/python/*) mkdir -p "$word" ;; esac; done ;;
  *) exec "{sys.executable}" "$@" ;;
esac
%s"""


class Checkout:
    """A copy of the scripts, in which nothing is built, and where each command that would be started is noted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started, commands = folder / "cairn", folder / "started", folder / "commands"
        for name in ("scripts", "bench"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
        for name in ("src", "tests", "bindings", "CMakeLists.txt"):
            (self.folder / name).symlink_to(ROOT / name)
        commands.mkdir()
        for name in (*STARTERS, "python3"):
            note = f'echo "{name} $*" >> "{self.started}"\n'
            (commands / name).write_text(
                "#!/bin/sh\n" + {"python3": PYTHON, "dpkg-query": DEBIAN}.get(name, "%sexit 1\n") % note
            )
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
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def assert_nothing_was_started(checkout: Checkout) -> None:
    assert not checkout.started.exists(), checkout.started.read_text()
    assert checkout.files() == checkout.before


def test_each_script_has_a_help_with_minutes_and_exit_status(checkout: Checkout) -> None:
    def check(script: str) -> None:
        said = checkout.run(script, "--help")
        assert said.returncode == 0 and said.stderr == "", f"{script}: {said.stderr}"
        for needed in ("scripts/", "minute|second|hour", "Exit status: 0 "):
            assert re.search(needed, said.stdout), f"{script} --help lacks {needed}:\n{said.stdout}"
        assert checkout.run(script, "-h").stdout == said.stdout

    with ThreadPoolExecutor() as pool:
        list(pool.map(check, SCRIPTS))
    assert_nothing_was_started(checkout)


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
    assert_nothing_was_started(checkout)


def test_torch_is_fetched_only_for_what_links_or_imports_it(checkout: Checkout) -> None:
    def fetched(*command: str) -> str:
        checkout.started.unlink(missing_ok=True)
        shutil.rmtree(checkout.folder / ".venv", ignore_errors=True)
        checkout.run(*command)  # It fails when it builds.
        started = checkout.started.read_text()
        assert re.search("cmake|pip", started), started
        return "torch" if " torch==" in started else "a Python" if " venv " in started else "nothing"

    assert fetched("build", "release", "cairn", "cairn_cli", "bench_training") == "nothing"
    assert fetched("build", "release") == "nothing"
    assert fetched("figures", "dtfm") == "nothing"
    assert fetched("bench", "micro") == "nothing"
    assert fetched("build-python") == "a Python"
    assert fetched("wheel") == "a Python"
    assert fetched("build", "release", "cairn_train") == "torch"
    assert fetched("figures", "slack") == "torch"


def test_each_benchmark_says_how_long_it_takes() -> None:
    for name, (module, _) in {**WHAT, **FIGURES}.items():
        # Of "figure" each figure says it.
        assert name == "figure" or re.search("minute|half a minute|second|hour", module.__doc__ or ""), name
