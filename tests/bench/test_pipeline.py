"""The hooks that pause copies for PyTorch's pipelines, as scripts/bench pipeline uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def test_pipelines_train_and_save_with_each_hook(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = f"""
import json
from cairn_bench.python import pipeline_processes
if __name__ == "__main__":
    print(json.dumps(list(pipeline_processes.measure({str(tmp_path)!r}, 1, (4, 64, 1)))))
"""
    program = tmp_path / "program.py"
    program.write_text(code)

    ran = subprocess.run([sys.executable, "-B", program], check=True, capture_output=True, text=True, cwd=BENCH,
                         env={"PYTHONPATH": f"{BENCH}:{':'.join(sys.path)}"})  # fmt: skip

    assert {way for _, way, _ in json.loads(ran.stdout)} == {"none", "as-is", "gaps", "bubbles"}
    assert max(path.name for path in (tmp_path / "paused").glob("step-*")).endswith("018")
