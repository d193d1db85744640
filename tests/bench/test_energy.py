"""Energy from the kernel's powercap, as files; and the word where there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from cairn_bench.reconfigure import perfetto
from cairn_bench.reconfigure.energy import Meter, NoMeter, Nvml
from cairn_bench.reconfigure.instructions import Span

CPU = torch.device("cpu")
MOST = 262143328850


@pytest.fixture
def powercap() -> Iterator[Path]:
    """Two packages, with what is not one of them, as intel_rapl shows them; other users may look."""
    with tempfile.TemporaryDirectory(prefix="powercap-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        for zone, name in (("0", "package-0"), ("0:0", "core"), ("1", "package-1"), ("2", "psys")):
            (root / f"intel-rapl:{zone}").mkdir()
            (root / f"intel-rapl:{zone}" / "name").write_text(f"{name}\n")
            (root / f"intel-rapl:{zone}" / "max_energy_range_uj").write_text(f"{MOST}\n")
            (root / f"intel-rapl:{zone}" / "energy_uj").write_text("5000000\n")
        (root / "dtpm").mkdir()
        yield root


def test_energy_is_the_sum_of_packages_since_the_first_sample(powercap: Path) -> None:
    meter = Meter(CPU, str(powercap))
    meter.sample()
    (powercap / "intel-rapl:0/energy_uj").write_text("5500000\n")
    (powercap / "intel-rapl:1/energy_uj").write_text("7000000\n")
    (powercap / "intel-rapl:2/energy_uj").write_text("9000000\n")
    meter.sample()

    assert meter.source == "RAPL: package-0, package-1 of the whole host"
    assert [joules for _, joules in meter.samples] == [0, 2.5]


def test_a_counter_that_wraps_goes_on(powercap: Path) -> None:
    counter = powercap / "intel-rapl:0/energy_uj"
    counter.write_text(f"{MOST - 1_000_000}\n")
    meter = Meter(CPU, str(powercap))
    for value in (MOST - 500_000, 250_000, 750_000):
        counter.write_text(f"{value}\n")
        meter.sample()

    assert [joules for _, joules in meter.samples] == pytest.approx([0.5, 1.25, 1.75])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_no_permission_is_a_clear_word(powercap: Path) -> None:
    path = powercap / "intel-rapl:1/energy_uj"
    path.chmod(0o400)
    os.seteuid(65534)
    try:
        meter = Meter(CPU, str(powercap))
    finally:
        os.seteuid(0)
    meter.sample()

    assert meter.source == f"no RAPL: {path}: no permission; root may read it, or whom its mode allows"
    assert [joules for _, joules in meter.samples] == [None]


def test_a_host_without_rapl_says_so(tmp_path: Path) -> None:
    assert Meter(CPU, str(tmp_path / "absent")).source == f"no RAPL: {tmp_path}/absent: No such file or directory"
    assert Meter(CPU, str(tmp_path)).source.endswith("expected zones intel-rapl:N of packages, found none")


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is not None, reason="nvidia-ml-py is installed")
def test_no_nvml_package_is_a_clear_word() -> None:
    with pytest.raises(NoMeter, match="no NVML: the package nvidia-ml-py is not installed"):
        Nvml("0")


def test_power_is_drawn_and_another_host_is_shifted(tmp_path: Path) -> None:
    forward = [Span("forward", 100.0, 100.5, 1, 0)]
    cairn = [{"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "disk"}},
             {"ph": "X", "pid": 1, "tid": 1, "name": "write", "ts": 1e8, "dur": 5.0, "args": {}}]  # fmt: skip
    here = perfetto.RankTrace(0, 0, forward, [(100.0, 0.0), (102.0, 30.0)], cairn, "a", 1000.0)
    there = perfetto.RankTrace(1, 1, forward, [(100.0, None), (102.0, None)], cairn, "b", 1003.0)

    perfetto.write(tmp_path / "trace.json", [here, there])

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (power,) = (event for event in events if event["ph"] == "C")
    assert power["pid"] == 0 and power["ts"] == 1e8 and power["args"] == {"W": 15.0}
    assert [event["ts"] for event in events if event["ph"] == "X"] == [1e8, 1e8, 1.03e8, 1.03e8]
    assert sum(event["args"].get("name") == "cairn disk" for event in events) == 2
