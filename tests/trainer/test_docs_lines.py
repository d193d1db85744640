"""The lines of docs/trainer.md for training on text, and with several ranks, work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from models import run_docs_lines

DATA_AND_SIZES = {  # The data, and sizes that make the model small.
    "opt-125m": ("/data/licences", "hidden=48 heads=4 ffn=96 vocabulary=8192"),
    "bloom-560m": ("/data/licences", "hidden=48 heads=4 vocabulary=8192"),
    "transformer-xl-base": ("/data/words", "hidden=48 heads=4 head_size=12 ffn=96 vocabulary=20001"),
    "bert-base": ("/data/pieces", "hidden=48 heads=4 intermediate=96 vocabulary=8192"),
}


@pytest.mark.cases
@pytest.mark.parametrize("model", DATA_AND_SIZES)
def test_the_docs_lines_train_on_real_text(tmp_path: Path, model: str) -> None:
    data, sizes = DATA_AND_SIZES[model]
    small = f" --steps 60 --size layers=1 {sizes} --host-memory 64MiB --report {tmp_path / 'report.json'}"

    lines = run_docs_lines(
        f"prepare-data text .* {data}( |$)|--model {model} --data {data} ",
        {"/data": tmp_path, "/mnt/nvme": tmp_path},
        small,
    )

    assert len(lines) == 2
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["last_loss"] < report["first_loss"]


def test_the_docs_lines_train_on_two_ranks_and_resume_on_one(tmp_path: Path) -> None:
    small = " --size width=2 --batch 4 --host-memory 64MiB"
    launcher = f"{sys.executable} -m torch.distributed.run"

    lines = run_docs_lines("^torchrun ", {"/mnt/nvme": tmp_path, "torchrun": launcher}, small)

    assert len(lines) == 2
