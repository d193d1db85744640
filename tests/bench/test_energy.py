"""Energy from the kernel's powercap, as files; and the word where there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

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


def test_what_was_used_before_the_first_sample_does_not_count(powercap: Path) -> None:
    meter = Meter(CPU, str(powercap))
    for value in (7_000_000, 7_500_000):
        (powercap / "intel-rapl:0/energy_uj").write_text(f"{value}\n")
        meter.sample()

    assert [joules for _, joules in meter.samples] == [0, 0.5]


@pytest.mark.parametrize("text", [None, "", "busy\n"])
def test_a_counter_that_fails_in_the_middle_ends_the_energy_but_not_the_training(
    powercap: Path, text: str | None
) -> None:
    counter = powercap / "intel-rapl:1/energy_uj"
    meter = Meter(CPU, str(powercap))
    meter.sample()
    counter.unlink() if text is None else counter.write_text(text)
    meter.sample()
    meter.sample()

    assert [joules for _, joules in meter.samples] == [0, None, None]
    why = "No such file or directory" if text is None else f"expected a number, found {text.strip()!r}"
    assert meter.source == f"RAPL: package-0, package-1 of the whole host; then no RAPL: {counter}: {why}"


def test_a_gpu_that_no_longer_answers_nvml_ends_the_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    answers = [2000, 2000, 3500, NVMLError("GPU is lost")]  # Millijoules.

    def read(handle: str) -> int:
        answer = answers.pop(0)
        if isinstance(answer, NVMLError):
            raise answer
        return answer

    nvml = SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=str,
                           nvmlDeviceGetTotalEnergyConsumption=read)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0"))
    meter = Meter(torch.device("cuda"))
    for _ in range(3):
        meter.sample()

    assert [joules for _, joules in meter.samples] == [0, 1.5, None]
    assert meter.source == "NVML: GPU 0; then no NVML: GPU 0: GPU is lost"


def test_a_counter_that_wraps_goes_on(powercap: Path) -> None:
    counter = powercap / "intel-rapl:0/energy_uj"
    counter.write_text(f"{MOST - 1_000_000}\n")
    meter = Meter(CPU, str(powercap))
    for value in (MOST - 500_000, 250_000, 750_000):
        counter.write_text(f"{value}\n")
        meter.sample()

    assert [joules for _, joules in meter.samples] == pytest.approx([0, 0.75, 1.25])


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
