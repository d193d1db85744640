"""A job of four ranks that changes its layout: pipeline, tensor and data parallelism together, real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")

from cairn_bench.reconfigure.layout import LAYOUTS, SEGMENTS, BadLayout, Layout
from cairn_bench.reconfigure.replay import Run, replay
from cairn_bench.reconfigure.sizes import SIZES
from cairn_bench.reconfigure.train import Settings

ROOT = Path(__file__).parents[2]
# Each of the three dimensions shrinks and grows.
PARTS = [(Layout(2, 2, 1), 2), (Layout(1, 2, 2), 2), (Layout(2, 1, 2), 2), (Layout(1, 2, 1), 1)]
STEPS = sum(steps for _, steps in PARTS)


def settings(root: Path, **given: Any) -> Settings:
    return Settings(str(root), PARTS[0][0], 0, batch=4, host_memory="32MiB", timeout=60, **given)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return replay(settings(tmp_path_factory.mktemp("replay") / "run"), PARTS, seconds=120)


def test_each_restore_under_another_layout_gives_every_tensor_as_it_was(replayed: Run) -> None:
    changes = replayed.reconfigurations

    assert [(one.before, one.after) for one in changes] == [(a, b) for (a, _), (b, _) in pairwise(PARTS)]
    assert [one.step for one in changes] == [2, 4, 6]
    # Of four layers, embeddings and head: 53 weights, each with two moments and a count of steps.
    assert [one.tensors for one in changes] == [4 * 53] * 3
    assert all(min(one.save, one.start, one.plan, one.read) > 0 for one in changes)


def test_the_loss_is_that_of_a_run_that_never_changes_its_layout(replayed: Run, tmp_path: Path) -> None:
    steady = replay(settings(tmp_path / "run"), [(PARTS[0][0], STEPS)], seconds=120)

    assert list(steady.losses) == list(replayed.losses) == [*range(1, STEPS + 1)]
    assert steady.losses[STEPS] < steady.losses[1]
    # The order of summation differs by layout: a few units in the last place of a float32 near 4.
    assert [replayed.losses[step] for step in steady.losses] == pytest.approx(list(steady.losses.values()), abs=5e-6)


def test_torchrun_goes_on_under_another_layout_as_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs/integrations.md").read_text()
    lines = re.findall(r"^torchrun .*reconfigure\.train.*", page, re.MULTILINE)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    more = ["--data-parallel=fully_shard", "--host-memory=32MiB"]
    given = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    given["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    said = []

    for line, steps in zip(lines, (2, 3), strict=True):
        words = line.replace("/mnt/nvme", str(tmp_path)).split()[1:]
        command = [*run, *words, *more, f"--steps={steps}"]
        ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | given, timeout=240, check=False)
        assert ran.returncode == 0, ran.stderr
        said.append([" ".join(words.split()[:3]) for words in ran.stdout.splitlines()])

    assert said == [
        ["step 1 loss", "step 2 loss", "step 2 durable"],
        ["step 2 restored", "step 3 loss", "step 3 durable"],
    ]


def test_the_schedule_is_tenplex_s() -> None:
    assert sum(minutes for minutes, _ in SEGMENTS) == 538
    assert [gpus for _, gpus in SEGMENTS] == [16, 8, 4, 8] * 4
    assert {gpus: layout.world for gpus, layout in LAYOUTS.items()} == {gpus: gpus for gpus in LAYOUTS}


@pytest.mark.parametrize(
    ("layout", "said"),
    [("4,2", "expected pipeline"), ("1,3,1", "heads that 3 divides, found 4"), ("5,1,1", "at least 5 layers, found 4"),
     ("2,1,3", "batch that 3 divides, found 8"), ("4,1,4", "at least 4 micro-batches")],
)  # fmt: skip
def test_a_layout_that_does_not_fit_says_which_number(layout: str, said: str) -> None:
    with pytest.raises(BadLayout, match=said):
        Layout.parse(layout).check(SIZES["tiny"], 8, 1)
