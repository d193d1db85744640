"""The plugs for other frameworks say what to install where that is missing. tests/peers has the rest of their tests."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "megatron", "ray", "torchft", "torchtitan"])
def test_it_tells_what_to_install(framework: str) -> None:
    script = f"import sys; sys.modules['{framework}'] = None; import cairn.{framework}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"cairn.{framework} needs {framework}" in ran.stderr.splitlines()[-1]
