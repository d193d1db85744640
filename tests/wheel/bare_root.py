"""A root for chroot that has a Python, the libraries that this Python loads, libstdc++ and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy

PYTHON = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]


def libraries(files: list[Path]) -> set[Path]:
    """What the dynamic loader loads for these files, and the loader."""
    found: set[Path] = set()
    for file in files:
        text = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        found |= {Path(path) for path in re.findall(r"(/\S+) \(0x", text)}
    return found


class BareRoot:
    """Has a virtual environment with pip and numpy. `run` executes programs of that, without this machine's variables."""

    def __init__(self, root: Path) -> None:
        self.root = root
        stdlib = Path(sysconfig.get_path("stdlib"))
        omitted = shutil.ignore_patterns(
            "site-packages", "dist-packages", "test", "tests", "idlelib", "config-*", "__pycache__"
        )
        shutil.copytree(stdlib, self._inside(stdlib), ignore=omitted, symlinks=True)
        wheels = Path("/usr/share/python-wheels")  # Where Debian keeps ensurepip's.
        if wheels.exists():
            shutil.copytree(wheels, self._inside(wheels))
        self._copy(PYTHON)
        of_numpy = Path(numpy.__file__).parent
        for library in libraries([PYTHON, *stdlib.glob("lib-dynload/*.so"), *of_numpy.glob("_core/*.so")]):
            if "numpy" not in str(library):
                self._copy(library)
        for folder in ("proc", "tmp"):
            (root / folder).mkdir()
        made = self._enter(PYTHON, "-m", "venv", "/env")
        assert made.returncode == 0, made.stdout + made.stderr
        self.packages = next((root / "env/lib").glob("python3*/site-packages"))
        for folder in (of_numpy, of_numpy.parent / "numpy.libs"):
            if folder.exists():
                shutil.copytree(folder, self.packages / folder.name, ignore=omitted)

    def _inside(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def _copy(self, file: Path) -> None:
        target = self._inside(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)

    def names(self) -> set[str]:
        return {path.name for path in self.root.rglob("*")}

    def add(self, file: Path) -> Path:
        """Copies the file in. Returns its path there."""
        shutil.copy(file, self.root / file.name)
        return Path("/") / file.name

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment."""
        return self._enter(f"/env/bin/{program}", *arguments)

    def _enter(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        # The loader finds a program's own folder through /proc.
        mount = 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
        into = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", mount]
        environment = {"PATH": "/env/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}
        return subprocess.run(
            [*into, self.root, *command], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
