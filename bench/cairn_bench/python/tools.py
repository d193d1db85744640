"""Installs the peers' packages in one folder, without dependencies, as these would bring a second torch."""

import os
import subprocess

from .processes import TOOLS


def install(python, entries):
    """{name of an entry: why its packages could not be installed}. What is installed already stays as it is."""
    reasons, tried = {}, {}
    for entry in entries:
        if entry.needs and entry.needs not in tried:
            tried[entry.needs] = _install(python, entry.needs)
        if reason := tried.get(entry.needs):
            reasons[entry.name] = reason
    return reasons


def _install(python, packages):
    stamp = os.path.join(TOOLS, f"cairn-setup-{packages[0]}")
    wanted = " ".join(packages)
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == wanted:
                return None
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    done = subprocess.run([*command, "--target", TOOLS, *packages], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        return f"not installed: {lines[-1]}"
    with open(stamp, "w") as file:
        file.write(wanted)
    return None
