"""The recipes among the examples, and the lines for SLURM and Kubernetes in docs/operations.md."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import ENVIRONMENT
from programs import EXAMPLES, torchrun

ROOT = Path(__file__).parents[2]


def steps(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.startswith("step=")]


class Here:
    """Runs examples within this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, name: str, *arguments: Any) -> list[str]:
        self._monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return self._capsys.readouterr().out.splitlines()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.mark.parametrize("name", ["ema.py", "compiled.py"])
def test_it_resumes_bit_exactly(here: Here, tmp_path: Path, name: str) -> None:
    backend = ["--backend", "aot_eager"] if name == "compiled.py" else []
    whole = here(name, tmp_path / "whole", "--steps", 60, *backend)
    before = here(name, tmp_path / "run", "--steps", 30, *backend)
    after = here(name, tmp_path / "run", "--steps", 60, *backend)

    assert len(steps(before)) == len(steps(after)) == 30
    assert steps(before) + after == whole


def test_what_was_compiled_resumes_without(here: Here, tmp_path: Path) -> None:
    here("compiled.py", tmp_path / "run", "--steps", 10, "--backend", "aot_eager")
    assert steps(here("compiled.py", tmp_path / "run", "--steps", 12, "--backend", "none"))[0].startswith("step=11 ")


def test_data_comes_in_order_in_mid_epoch_and_with_other_workers(here: Here, tmp_path: Path) -> None:
    whole = steps(here("data_order.py", tmp_path / "whole", "--steps", 40, "--workers", 0))
    before = steps(here("data_order.py", tmp_path / "run", "--steps", 17, "--workers", 2))
    after = steps(here("data_order.py", tmp_path / "run", "--steps", 40, "--workers", 1))

    assert before + after == whole
    rows = [int(row) for line in whole[:13] for row in re.findall(r"\d+", line.partition("rows=")[2].partition("]")[0])]
    assert sorted(rows) == list(range(50))


def read_steps(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while len(steps(lines)) < count:
        lines.append(process.stdout.readline())
        assert lines[-1]
    return lines


def rest(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines = process.stdout.readlines()
    process.wait()
    return lines


# Schedulers


def block(language: str, begin: str) -> str:
    """The block of docs/operations.md that begins like this."""
    text = (ROOT / "docs/operations.md").read_text()
    found = re.findall(rf"^```{language}\n({begin}.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


class Slurm:
    """A batch script under stand-ins for srun and scontrol. Signals go to what srun started, as SLURM's do."""

    def __init__(self, script: str, folder: Path, run: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.asked = folder / "asked"
        self._pid = folder / "pid"
        tools = {
            "python": f'exec {sys.executable} "$@"',
            "srun": f'echo $$ > {self._pid}\nexec "$@"',
            "scontrol": f'echo "$@" >> {self.asked}',
        }
        for name, does in tools.items():
            (folder / name).write_text(f"#!/bin/sh\n{does}\n")
            (folder / name).chmod(0o755)
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711", "FOLDER": str(run)}
        self.process = subprocess.Popen(
            ["bash", "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT | environment
        )

    def signal(self, number: signal.Signals) -> None:
        os.kill(int(self._pid.read_text()), number)


def test_the_job_of_slurm_and_the_one_of_kubernetes_stop_and_continue(tmp_path: Path) -> None:
    script = block("sh", "#!/bin/bash")
    whole = subprocess.Popen(
        [sys.executable, EXAMPLES / "stop_on_sigterm.py", tmp_path / "whole"],
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    run = tmp_path / "run"

    job = Slurm(script, tmp_path / "slurm", run)
    lines = read_steps(job.process, 50)
    job.signal(signal.SIGUSR1)
    lines += rest(job.process)
    assert (job.process.returncode, lines[-1], job.asked.read_text()) == (75, "stopped: SIGUSR1\n", "requeue 4711\n")

    pod = yaml.safe_load(block("yaml", "apiVersion"))["spec"]
    container = pod["template"]["spec"]["containers"][0]
    *command, grace = [
        {"python": sys.executable, "/checkpoints/run7": str(run)}.get(one, one) for one in container["command"]
    ]
    assert float(grace) < pod["template"]["spec"]["terminationGracePeriodSeconds"]
    process = subprocess.Popen([*command, grace], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)
    lines += read_steps(process, 50)
    process.terminate()
    lines += rest(process)
    assert process.returncode in pod["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert lines[-1] == "stopped: SIGTERM\n"

    job = Slurm(script, tmp_path / "slurm", run)
    lines += rest(job.process)
    assert (job.process.returncode, job.asked.read_text()) == (0, "requeue 4711\n")
    expected = rest(whole)
    assert steps(lines) == steps(expected) and lines[-1] == expected[-1]


# DDP


def resize(ranks: int, folder: Path, count: int) -> subprocess.Popen[str]:
    return torchrun(ranks, EXAMPLES / "ddp_resize.py", folder, "--steps", count)


def test_ddp_goes_from_two_ranks_to_one_and_back(tmp_path: Path) -> None:
    first = resize(2, tmp_path, 10**6)
    lines = read_steps(first, 5)
    first.terminate()
    lines += rest(first)
    assert first.returncode != 0
    stopped_at = len(steps(lines))
    for ranks, count in ((1, stopped_at + 5), (2, stopped_at + 10)):
        begin, at_begin, *more = rest(resize(ranks, tmp_path, count))
        assert begin == f"{ranks} ranks, resumed from step {count - 5}\n"
        assert at_begin == lines[-1] and at_begin.startswith("digest=")
        lines += more
    numbers = [int(step.split()[0].removeprefix("step=")) for step in steps(lines)]
    assert numbers == list(range(1, stopped_at + 11))
