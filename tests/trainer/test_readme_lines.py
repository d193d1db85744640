"""The README's lines for training on text do what they say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from models import BIN, ROOT

SECTION = (ROOT / "README.md").read_text().split("\n## The trainer\n", 1)[1].split("\n## ", 1)[0]
SMALL = {  # Of the model, what makes it so.
    "opt-125m": "layers=1 hidden=48 heads=4 ffn=96 vocabulary=8192",
    "bloom-560m": "layers=1 hidden=48 heads=4 vocabulary=8192",
    "transformer-xl-base": "layers=1 hidden=48 heads=4 head_size=12 ffn=96 vocabulary=20001",
}


@pytest.mark.parametrize("model", SMALL)
def test_the_readmes_lines_train_on_real_text(tmp_path: Path, model: str) -> None:
    lines = SECTION.splitlines()
    [train] = [line for line in lines if f"--model {model} " in line]
    data = train.split("--data ")[1].split()[0]
    [prepare] = [line for line in lines if line.startswith("scripts/prepare-data") and f" {data} " in line]
    script = f"{prepare.split('  #')[0]} && {train}"
    for printed, here in {"/data": tmp_path, "/mnt/nvme": tmp_path, "build/release/bin": BIN}.items():
        assert printed in script
        script = script.replace(printed, str(here))

    small = f" --size {SMALL[model]} --host-memory 64MiB --report {tmp_path / 'report.json'}"
    ran = subprocess.run(["bash", "-c", script + small], check=False, cwd=ROOT, text=True, capture_output=True)

    assert ran.returncode == 0, ran.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["last_loss"] < report["first_loss"]
