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
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            self._read = pynvml.nvmlDeviceGetTotalEnergyConsumption
            self._read(self._handle)
        except pynvml.NVMLError as error:
            raise NoMeter(f"no NVML: GPU {uuid}: {error}") from None
        self.source = f"NVML: GPU {uuid}"

    def joules(self):
        return self._read(self._handle) / 1e3


class Rapl:
    """All processor packages of the host, which its ranks share."""

    def __init__(self, root=POWERCAP):
        try:
            zones = sorted(name for name in os.listdir(root) if name.startswith("intel-rapl:") and name.count(":") == 1)
        except OSError as error:
            raise NoMeter(f"no RAPL: {root}: {error.strerror}") from None
        # [file, what its counter is limited to, the last value, the sum]
        self._packages = []
        names = []
        for folder in (os.path.join(root, zone) for zone in zones):
            name = self._text(folder, "name")
            if name.startswith("package"):
                path, most = os.path.join(folder, "energy_uj"), int(self._text(folder, "max_energy_range_uj"))
                self._packages.append([path, most, int(self._text(folder, "energy_uj")), 0])
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

    def joules(self):
        for package in self._packages:
            path, most, last, _ = package
            now = int(self._text(*os.path.split(path)))
            package[2], package[3] = now, package[3] + (now - last if now >= last else now + most - last)
        return sum(package[3] for package in self._packages) / 1e6


class Meter:
    """Samples of the cumulative energy since the first sample, and where they come from.

    Without NVML and RAPL the samples have no energy, and `source` says why.
    """

    def __init__(self, device, powercap=POWERCAP):
        self.samples = []  # (seconds of time.monotonic, joules or None)
        try:
            self._counter = _counter(device, powercap)
        except NoMeter as reason:
            self._counter, self.source = None, str(reason)
        else:
            self.source = self._counter.source
            self._zero = self._counter.joules()

    def sample(self):
        at = time.monotonic()
        self.samples.append((at, self._counter.joules() - self._zero if self._counter else None))


def _counter(device, powercap):
    if device.type != "cuda":
        return Rapl(powercap)
    import torch

    return Nvml(torch.cuda.get_device_properties(device).uuid)
