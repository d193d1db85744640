"""Each Python example runs as its head says. tests/consumer builds and runs the one in C++."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs import ENVIRONMENT
from programs import EXAMPLES, TEXT, Job


def start(name: str, *arguments: Any, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *before, EXAMPLES / name, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.splitlines()


def read_until(process: subprocess.Popen[str], lines: int, checkpoint: Path, pattern: str) -> list[str]:
    """Its lines, once it has printed so many and a checkpoint is there."""
    assert process.stdout is not None and process.stderr is not None
    seen: list[str] = []
    while len(seen) < lines or not any(checkpoint.glob(pattern)):
        seen.append(process.stdout.readline())
        assert seen[-1], process.stderr.read()
    return seen


def kill_after(process: subprocess.Popen[str], lines: int, checkpoint: Path, pattern: str) -> list[str]:
    """Kills it once it has printed so many lines and a checkpoint is there; its lines, without one that is cut."""
    seen = read_until(process, lines, checkpoint, pattern)
    assert process.stdout is not None
    process.kill()
    seen += process.stdout.readlines()
    process.communicate()
    return [line.rstrip("\n") for line in seen if line.endswith("\n")]


def stop_after(process: subprocess.Popen[str], lines: int) -> list[str]:
    """Sends it SIGTERM once it has printed so many lines, and lets it end; its lines."""
    assert process.stdout is not None and process.stderr is not None
    seen = []
    for _ in range(lines):
        seen.append(process.stdout.readline())
        assert seen[-1], process.stderr.read()
    process.terminate()
    seen += process.stdout.readlines()
    process.communicate()
    assert process.returncode == 0
    return [line.rstrip("\n") for line in seen]


def losses(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("step=", "{", "digest="))]


@pytest.mark.parametrize(
    ("name", "needs", "lines", "pattern", "stop"),
    [
        ("plain_pytorch.py", "torch", 20, "step-*", 0),
        ("huggingface_text.py", "transformers", 8, "cairn/step-*", 5),
        ("lightning_text.py", "lightning", 20, "last.ckpt", 33),
        ("accelerate_text.py", "accelerate", 25, "checkpoints/checkpoint_*", 0),
    ],
)
def test_it_is_killed_and_resumes_bit_exactly(
    tmp_path: Path, name: str, needs: str, lines: int, pattern: str, stop: int
) -> None:
    """With `stop`, the resumed run gets a SIGTERM after so many lines. It saves and ends, and no step is repeated."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    if needs != "torch" and not TEXT.exists():
        pytest.skip(f"no text to train on: {TEXT}")
    before = losses(kill_after(start(name, tmp_path / "killed"), lines, tmp_path / "killed", pattern))

    runs = start(name, tmp_path / "killed"), start(name, tmp_path / "whole")
    resumed = losses(stop_after(runs[0], stop)) if stop else []
    if stop:
        assert 0 < len(resumed) and not list((tmp_path / "killed").glob("checkpoint-*"))
        resumed = [line for line in resumed if not line.startswith("digest=")]
    resumed += losses(finish(start(name, tmp_path / "killed") if stop else runs[0]))
    whole = losses(finish(runs[1]))

    assert whole[-1].startswith("digest=") and len(before) < len(whole) - 1
    assert before == whole[: len(before)]
    assert resumed == whole[-len(resumed) :]
    assert 0 < len(whole) - len(resumed) <= len(before)


def test_rows_and_losses_are_the_same_after_a_kill_in_mid_epoch_and_with_other_workers(tmp_path: Path) -> None:
    """An epoch has 13 steps, and every fifth is saved."""
    name = "data_order.py"
    killed = start(name, tmp_path / "killed", "--steps", 10**6, "--workers", 0)
    before = losses(kill_after(killed, 17, tmp_path / "killed", "step-*"))
    count = len(before) + 20
    runs = [
        start(name, tmp_path / folder, "--steps", count, "--workers", workers)
        for folder, workers in (("killed", 1), ("whole", 2))
    ]
    (said, *resumed), (_, *whole) = map(finish, runs)

    at = int(said.removeprefix("resumed from step "))
    assert 0 < at <= len(before) and len(whole) == count
    assert before == whole[: len(before)] and resumed == whole[at:]
    rows = [int(row) for line in whole[:13] for row in re.findall(r"\d+", line.partition("rows=")[2].partition("]")[0])]
    assert sorted(rows) == list(range(50))


def test_a_frozen_base_is_on_the_disk_once(tmp_path: Path) -> None:
    *_, said = finish(start("frozen_base.py", tmp_path, "--steps", 4, "--width", 512))

    found = re.fullmatch(r"checkpoints=4 disk=(\d+) each_its_own=(\d+)", said)
    assert found and 2 * int(found[1]) < int(found[2]), said


def test_the_hugging_face_example_exports_what_from_pretrained_reads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if not TEXT.exists():
        pytest.skip(f"no text to train on: {TEXT}")
    exported = tmp_path / "exported"
    finish(start("huggingface_text.py", tmp_path / "run", "--steps", 8, "--export", exported))

    assert transformers.AutoModelForCausalLM.from_pretrained(exported).config.n_embd == 32
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    text = "Redistribution, with or without"
    assert tokenizer.decode(tokenizer(text)["input_ids"]).strip() == text


def test_a_training_that_is_killed_at_a_random_moment_passes() -> None:
    lines = finish(start("kill_and_resume.py"))

    assert lines[-1] == "PASS", lines


def test_fsdp2_goes_on_with_its_optimizer_on_fewer_ranks(tmp_path: Path) -> None:
    """Each digest is of the weights and the moments; a loss of another number of ranks differs in its last bits alone."""
    killed = Job(EXAMPLES / "fsdp2.py", tmp_path, world=4).kill_after(25, tmp_path)
    first, *resumed = Job(EXAMPLES / "fsdp2.py", tmp_path, "--steps", 40, world=2).finish()

    assert killed[0] == "4 ranks, from the beginning"
    at = int(first.removeprefix("2 ranks, resumed from step "))
    assert resumed[0] in killed and resumed[0].endswith(f" step={at}")

    def losses_by_step(lines: list[str]) -> dict[str, float]:
        return {step: float(loss) for step, _, loss in (line.partition(" loss=") for line in lines if " loss=" in line)}

    before, after = losses_by_step(killed), losses_by_step(resumed)
    assert [*after] == [f"step={step}" for step in range(at + 1, 41)]
    both = before.keys() & after.keys()
    assert [after[step] for step in both] == pytest.approx([before[step] for step in both], rel=1e-4)
