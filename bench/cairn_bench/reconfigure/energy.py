"""The energy of a rank's GPU by NVML, or of its host's processors by RAPL, or the reason why there is neither.

NVML needs the package nvidia-ml-py. RAPL is read through the kernel's powercap; since 2020 only root may. Both count in
hardware, and a sample costs microseconds.
"""

import os
import time

POWERCAP = "/sys/class/powercap"


class NoMeter(Exception):
    """Why energy cannot be read."""


class Nvml:
    """One GPU, by the UUID that torch knows. On a real one nobody has run it."""

    def __init__(self, uuid):
        try:
            import pynvml
        except ImportError:
            raise NoMeter("no NVML: the package nvidia-ml-py is not installed") from None
        self._nvml, self._uuid = pynvml, uuid
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            raise NoMeter(f"no NVML: GPU {uuid}: {error}") from None
        self.joules()
        self.source = f"NVML: GPU {uuid}"

    def joules(self):
        try:
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
        except self._nvml.NVMLError as error:
            raise NoMeter(f"no NVML: GPU {self._uuid}: {error}") from None


class Rapl:
    """All processor packages of the host, which its ranks share."""

    def __init__(self, root=POWERCAP):
        try:
            zones = sorted(name for name in os.listdir(root) if name.startswith("intel-rapl:") and name.count(":") == 1)
        except OSError as error:
            raise NoMeter(f"no RAPL: {root}: {error.strerror}") from None
        # [folder, what its counter is limited to, the last value, the sum]
        self._packages = []
        names = []
        for folder in (os.path.join(root, zone) for zone in zones):
            name = self._text(folder, "name")
            if name.startswith("package"):
                most, now = (self._number(folder, file) for file in ("max_energy_range_uj", "energy_uj"))
                self._packages.append([folder, most, now, 0])
                names.append(name)
        if not names:
            raise NoMeter(f"no RAPL: {root}: expected zones intel-rapl:N of packages, found none")
        self.source = f"RAPL: {', '.join(names)} of the whole host"

    @staticmethod
    def _text(folder, name):
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="ascii") as file:
                return file.read().strip()
        except PermissionError:
            raise NoMeter(f"no RAPL: {path}: no permission; root may read it, or whom its mode allows") from None
        except OSError as error:
            raise NoMeter(f"no RAPL: {path}: {error.strerror}") from None

    def _number(self, folder, name):
        text = self._text(folder, name)
        if not (text.isascii() and text.isdigit()):
            raise NoMeter(f"no RAPL: {os.path.join(folder, name)}: expected a number, found {text!r}")
        return int(text)

    def joules(self):
        for package in self._packages:
            folder, most, last, _ = package
            now = self._number(folder, "energy_uj")
            package[2], package[3] = now, package[3] + (now - last if now >= last else now + most - last)
        return sum(package[3] for package in self._packages) / 1e6


class Meter:
    """Samples of the cumulative energy since the first sample, and where they come from.

    Without NVML and RAPL the samples have no energy, and `source` says why. So it is after one that fails.
    """

    def __init__(self, device, powercap=POWERCAP):
        self.samples = []  # (seconds of time.monotonic, joules or None)
        try:
            self._counter = _counter(device, powercap)
        except NoMeter as reason:
            self._counter, self.source = None, str(reason)
        else:
            self.source = self._counter.source
        self._zero = None

    def sample(self):
        at = time.monotonic()
        self.samples.append((at, self._joules() if self._counter else None))

    def _joules(self):
        try:
            joules = self._counter.joules()
        except NoMeter as reason:
            self._counter, self.source = None, f"{self.source}; then {reason}"
            return None
        if self._zero is None:
            self._zero = joules
        return joules - self._zero


def _counter(device, powercap):
    if device.type != "cuda":
        return Rapl(powercap)
    import torch

    return Nvml(torch.cuda.get_device_properties(device).uuid)
