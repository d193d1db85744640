"""cairn.accelerate with DDP on gloo, in two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import expect_alone, expect_exact_resume

TEXT = Path("/usr/share/common-licenses/Apache-2.0")


def test_two_processes_are_killed_and_resume_bit_exactly_in_mid_epoch(tmp_path: Path) -> None:
    if not TEXT.exists():
        pytest.skip(f"no text to train on: {TEXT}")
    named = {"folder": "checkpoints", "pattern": "checkpoint_1"}
    expect_exact_resume("accelerate_text.py", tmp_path, "--epochs", 1, lines=25, **named)


def test_it_needs_no_other_framework() -> None:
    expect_alone("accelerate")
