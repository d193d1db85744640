"""docs/recipes.md, the recipes among the examples, and the lines for SLURM and Kubernetes in docs/operations.md."""

from __future__ import annotations

import logging
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
import yaml
from jobs import COMMAND, ENVIRONMENT
from pages import ROOT, blocks, run_block
from programs import EXAMPLES, torchrun
from safetensors.torch import load_file


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


def layers(*names: str) -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in names})


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([*model.named_parameters()], lr=0.1)


def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 100)


def test_the_page_of_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "cairn")
    run7, older, newer, changed, share, archive, archived = tmp_path / "run7", *blocks("docs/recipes.md", "python")
    trained = layers("kept", "old")
    optimizer = optimizer_of(trained)
    writer = cairn.Checkpointer(run7, host_memory="64MiB", keep_last=2)
    for step in (60, 70):
        optimizer.zero_grad()
        sum(one.sum() for one in trained.parameters()).backward()  # type: ignore[union-attr]
        optimizer.step()
        tree = {"model": trained, "optimizer": optimizer, "scheduler": scheduler_of(optimizer), "rng": cairn.RngState()}
        tree["step"] = step
        writer.save(step, tree, metrics={"loss": step / 100}).wait()
    of_60 = cairn.load(run7, step=60)["model"]["kept.weight"]
    evaluated: list[float] = []

    def run(code: str, *names: str) -> dict[str, Any]:
        model = layers(*names)
        more: dict[str, Any] = {"evaluate": lambda model: evaluated.append(model["kept"].weight.sum().item())}
        optimizer = optimizer_of(model)
        more |= {"optimizer": optimizer, "scheduler": scheduler_of(optimizer)}
        used = {"root": str(run7), "model": model, "checkpointer": writer, **more}
        return run_block(code, "recipes.md", used)

    run(older, "kept", "old")
    run(newer, "kept", "old")
    assert evaluated == [of_60.sum(), of_60.sum(), trained["kept"].weight.sum()]

    caplog.clear()
    after = run(changed.replace("strict=False", "step=60, strict=False"), "kept", "new")
    assert after["tree"]["step"] == 60 and torch.equal(after["model"]["kept"].weight, of_60)
    (printed,) = blocks("docs/recipes.md", "text")
    said = [one.getMessage().replace(str(run7), "/mnt/nvme/run7") for one in caplog.records if one.name == "cairn"]
    assert said == printed.splitlines()
    assert len(after["optimizer"].state) == 2  # What is new has none before its first step.

    assert torch.equal(run(share, "kept", "old")["model"]["kept"].weight, of_60)
    (command,) = re.findall(r"`cairn (export ROOT [^`]*--out .*?)`", (ROOT / "docs/recipes.md").read_text())
    Path("model.safetensors").unlink()
    subprocess.run([COMMAND, *command.replace("ROOT", str(run7)).replace("'", "").split()], check=True)
    assert torch.equal(load_file("model.safetensors")["kept.weight"], of_60)

    run(archive, "kept")
    assert not any(one.pinned for one in writer.checkpoints())
    for step in (80, 90):
        writer.save(step, tree).wait()
    writer.drain()
    assert 60 not in writer.steps()
    subprocess.run([COMMAND, "verify", "archive/run7-60"], check=True, capture_output=True)
    after = run(archived, "kept", "old")
    assert after["tree"]["step"] == 60 and torch.equal(after["model"]["kept"].weight, of_60)
    writer.close()


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
    (found,) = [one for one in blocks("docs/operations.md", language) if re.match(begin, one)]
    return found


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
