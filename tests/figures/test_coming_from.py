"""docs/coming-from.md: each of its lines runs, smaller. What a figure measures is run by that figure's own tests, and lines
for two hosts by tests/bench/test_hosts.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cairn_bench import __main__ as cairn_bench

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build/release/bin"))
PAGE = (ROOT / "docs/coming-from.md").read_text()
LINES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
MEASURED = [line for line in LINES if line.startswith("scripts/")]
RUN = [line for line in LINES if not line.startswith("scripts/") and "IP1" not in line]

# Stand-ins of what the reader has.
JOB = "for step in range(10**9): print('step', step, flush=True)\n"
TOPOLOGY = """{"locations": [{"name": "a", "count": 2}, {"name": "b", "count": 2}], "stages": 2, "gradient_bytes": 1e8,
 "within": {"delay_ms": 0.1, "bandwidth_gbps": 10}, "across": {"delay_ms": 5, "bandwidth_gbps": 1}, "activation_bytes": 1e7}"""
SPEEDS = "stage,instruction,frequency_mhz,time_s,energy_j\n" + "".join(
    f"{stage},{name},{mhz},{seconds},{joules}\n"
    for stage in range(4)
    for name in ("forward", "backward")
    for mhz, seconds, joules in ((1410, 1.0, 10.0), (900, 1.3, 8.0))
)
SMALL_JOB = "--least-cores 1 --cores-only --warm-up 1 --least-time 0"
# What makes a line small: what stands instead of these words.
SMALL = {
    " --root /mnt/nvme": " --batch 4 --steps 1 --host-memory 32MiB --timeout 300 --root /mnt/nvme",
    " --scale 0.002 ": " --scale 0.0005 --iterations 8 ",
    " --job-name ": f" {SMALL_JOB} --job-name ",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("page")
    for name, text in {"train.py": JOB, "topology.json": TOPOLOGY, "speeds.csv": SPEEDS}.items():
        (folder / name).write_text(text)
    options = "--cores 1 --max-iterations 3"
    (folder / "jobs.txt").write_text(f"--job-name one {SMALL_JOB} {options} -- python train.py\n")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "bin").mkdir()
    for name, to in {"python": Path(sys.executable), "cairn": BIN / "cairn"}.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{to}" "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    yield folder


@pytest.mark.parametrize("line", MEASURED)
def test_the_benchmark_of_the_line_takes_its_options(line: str) -> None:
    line = line.removeprefix("scripts/bench ").replace("scripts/figures", "figure")

    assert cairn_bench.main(["--check-arguments", *line.split()]) == 0


@pytest.mark.parametrize("line", RUN)
def test_the_line_runs(line: str, place: Path) -> None:
    """In the page's order: cairn slack reads what the lines before it recorded."""
    if "reconfigure" in line or "slack" in line:
        pytest.importorskip("torch.distributed.pipelining")
    if line.startswith("cairn") and not (BIN / "cairn").exists():
        pytest.skip("no cairn")
    if "bench_training" in line and not (BIN / "bench_training").exists():
        pytest.skip("no bench_training")
    for words, small in SMALL.items():
        line = line.replace(words, small)
    line = line.replace("build/release/bin", str(BIN)).replace("/mnt/nvme", str(place))
    path = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=place, env=os.environ | path,
                         timeout=600, check=False)  # fmt: skip

    assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
