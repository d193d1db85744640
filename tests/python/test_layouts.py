"""A job goes on under another layout of pipeline, tensor and data parallelism: real processes, PyTorch's own parallelism.

The job is the one of docs/integrations.md. tests/bench tests it further.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")

from cairn_bench.figures import tenplex
from cairn_bench.figures.runs import read_table
from cairn_bench.reconfigure import faults
from cairn_bench.reconfigure.layout import Layout

ROOT = Path(__file__).parents[2]


def test_each_restore_under_another_layout_gives_every_tensor_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [(2, Layout(2, 2, 1)), (2, Layout(1, 2, 2)), (2, Layout(2, 1, 2))]
    monkeypatch.setattr(tenplex, "SEGMENTS", [(steps, number) for number, (steps, _) in enumerate(few)])
    monkeypatch.setattr(tenplex, "LAYOUTS", {number: layout for number, (_, layout) in enumerate(few)})
    monkeypatch.setattr(tenplex, "RUNS", {tenplex.CHANGING: (True, {"dtype": "float64"})})
    parser = argparse.ArgumentParser()
    tenplex.add_arguments(parser)
    parser.set_defaults(output=str(tmp_path / "small"))

    measured = tenplex.measure(parser.parse_args(["--dir", str(tmp_path), "--timeout", "120"]))

    changes = tenplex.changes(read_table(f"{tmp_path}/small.csv")[1])
    assert measured == 0  # A tensor whose digest differs ends it.
    assert [(row["step"], row["before"], row["after"]) for row in changes] == [
        (2, "2,2,1", "1,2,2"), (4, "1,2,2", "2,1,2"),
    ]  # fmt: skip
    # Of four layers, embeddings and head: 53 weights, each with two moments and a count of steps.
    assert [row["tensors"] for row in changes] == [4 * 53] * 2


def test_ranks_that_are_killed_leave_no_mixed_step_and_no_rank_that_hangs(tmp_path: Path) -> None:
    worlds = [Layout(2, 2, 1), Layout(1, 2, 2), Layout(4, 1, 1)]

    ledger = faults.run(str(tmp_path / "run"), 2, seed=1, worlds=worlds, patience=5)  # Raises Broken.

    assert ledger.kills == {"save": 1, "restore": 1}
    assert ledger.restored > 0 and ledger.durable > 0


def test_torchrun_goes_on_under_another_layout_as_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs/integrations.md").read_text()
    lines = re.findall(r"^torchrun .*reconfigure\.train.*", page, re.MULTILINE)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    more = ["--data-parallel=fully_shard", "--host-memory=32MiB"]
    given = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
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
