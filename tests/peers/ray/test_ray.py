"""cairn.ray in a local Ray cluster: Ray Train with two workers over gloo on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import EXAMPLES, expect_alone, progress

TEXT = Path("/usr/share/common-licenses/Apache-2.0")


def run(folder: Path, *arguments: Any) -> list[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, EXAMPLES / "ray_text.py", folder, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_worker_is_killed_and_the_run_continues_bit_exactly(tmp_path: Path) -> None:
    if not TEXT.exists():
        pytest.skip(f"no text to train on: {TEXT}")
    killed = run(tmp_path / "killed", "--steps", 20, "--die-at", 12)
    whole = run(tmp_path / "whole", "--steps", 20)

    assert (tmp_path / "killed" / "died").exists()
    losses = progress(killed)
    steps = [line.partition(" ")[0] for line in losses]
    assert steps.count("step=1") == 1 and steps.count("step=11") == 2  # It continued from step 10.
    assert losses[-11:] == progress(whole)[-11:] and losses[-1].startswith("digest=")
    # Ray Train has what is durable, and keeps two of it, where each is one checkpoint of both workers.
    assert killed[-1] == whole[-1] == "checkpoint=checkpoint_000000000020"
    run_folder = tmp_path / "killed" / "run"
    assert sorted(one.name for one in run_folder.glob("checkpoint_0*")) == [
        "checkpoint_000000000015",
        "checkpoint_000000000020",
    ]
    assert len([*(run_folder / "checkpoint_000000000020").glob("*.safetensors")]) == 2


def test_it_needs_no_other_framework() -> None:
    expect_alone("ray")
