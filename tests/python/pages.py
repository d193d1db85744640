"""The blocks of code that the documentation prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cairn
import torch

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def run_block(code: str, where: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs it, with a small pool; what it leaves behind."""
    names = {"cairn": cairn, "torch": torch} | names
    exec(compile(code.replace("4GiB", "64MiB"), where, "exec"), names)  # noqa: S102
    return names
