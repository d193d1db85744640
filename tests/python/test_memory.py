"""Tensors whose storage was freed or shrunk: refused by name, where reading them would read what is no memory of theirs.

In processes of their own, because a mistake here ends the process.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from cairn._memory import cloned, shortage

# Each makes `tensor` and then, by spoil(), takes memory away from it.
SPOILT = {
    "freed": ("base = tensor = torch.ones(300_000)", 0),
    "freed, at an offset": ("base = torch.ones(300_000); tensor = base[100:]", 0),
    "freed, small, at an offset": ("base = torch.ones(1000); tensor = base[100:200]", 0),
    "freed parameter": ("base = torch.ones(300_000); tensor = torch.nn.Parameter(base[100:])", 0),
    "shrunk": ("base = tensor = torch.ones(3_000_000)", 4096),
    "shrunk, small": ("base = tensor = torch.ones(10)", 8),
    "shrunk by one": ("base = tensor = torch.ones(1000)", 3996),
    "shrunk before its offset": ("base = torch.ones(1000); tensor = base[500:]", 400),
    "shrunk and strided": ("base = torch.ones(1000, 100); tensor = base[:, ::2]", 4 * 99_990),
    "shrunk and conjugated": ("base = torch.ones(1000, dtype=torch.complex64); tensor = base.conj()", 4096),
    "shrunk and kept as bytes": ("base = tensor = torch.ones(1000, dtype=torch.complex128)", 4096),
    "shrunk and expanded": ("base = torch.ones(1000, 1); tensor = base.expand(1000, 3)", 4 * 900),
}
USES = {
    "a save": 'checkpointer.save(2, {"a": {"w": tensor}})',
    "a save of more than a dict": 'checkpointer.save(2, {"a": {"w": [tensor]}})',
    "a restore": 'checkpointer.restore({"a": {"w": tensor}})',
    "a save of a module": """
        module = torch.nn.Module()
        module.register_buffer("w", tensor)
        checkpointer.save(2, {"a": module})
    """,
    "a save through DCP": 'dcp.save({"a": {"w": tensor}}, storage_writer=StorageWriter(checkpointer, 2), no_dist=True)',
    "an async save through DCP": """
        dcp.async_save({"a": {"w": tensor}}, storage_writer=StorageWriter(checkpointer, 2), no_dist=True)
    """,
    "a load through DCP": """
        with cairn.Checkpointer(checkpointer.root + "-dcp", host_memory="8MiB", chunk="1MiB", queue_depth=2) as other:
            dcp.save({"a": {"w": intact}}, storage_writer=StorageWriter(other, 1), no_dist=True)
            dcp.load({"a": {"w": tensor}}, storage_reader=StorageReader(other), no_dist=True)
    """,
}
PROGRAM = """
import sys, traceback, warnings
import torch, cairn
import torch.distributed.checkpoint as dcp
from cairn.dcp import StorageReader, StorageWriter

warnings.simplefilter("ignore")
uses = {uses!r}
for what, (make, left) in {spoilt!r}.items():
    for use, code in uses.items():
        with cairn.Checkpointer(f"{{sys.argv[1]}}/{{hash(what + use)}}", host_memory="8MiB", chunk="1MiB", queue_depth=2) \\
                as checkpointer:
            exec(make)
            intact = tensor.detach().resolve_conj().clone()
            checkpointer.save(1, {{"a": {{"w": intact}}}}).wait()
            base.untyped_storage().resize_(left)
            try:
                exec(code)
                said = "nothing was raised"
            except BaseException:
                said = traceback.format_exc()
            print(f"{{what}}; {{use}}; {{checkpointer.steps()}};", said.replace("\\n", " "), flush=True)
"""


@pytest.mark.cases
@pytest.mark.parametrize("use", USES)
def test_what_lies_beyond_a_storage_is_neither_saved_nor_restored_into(tmp_path: Path, use: str) -> None:
    program = PROGRAM.format(uses={use: textwrap.dedent(USES[use])}, spoilt=SPOILT)

    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert [line.split(";")[0] for line in lines] == [*SPOILT]
    for line in lines:
        assert "[1]" in line.split(";")[2], line
        assert re.search(
            r'InvalidArgument.*w[^"]*": its storage was freed or shrunk: expected at least \d+ bytes', line
        ), line


def test_what_needs_no_memory_is_kept(tmp_path: Path) -> None:
    base = torch.ones(10)
    empty, part = base[5:5], base[:2]
    base.untyped_storage().resize_(8)  # All of `part`, which is now somewhere else.

    with cairn.Checkpointer(tmp_path, host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        checkpointer.save(1, {"empty": empty, "part": part}).wait()
        loaded: Any = checkpointer.load()

    assert loaded["empty"].shape == (0,) and torch.equal(loaded["part"], torch.ones(2))


def test_a_copy_is_made_only_of_what_is_there() -> None:
    base = torch.ones(1000)
    tensor = base[10:]
    assert torch.equal(cloned(tensor), tensor) and cloned(tensor).data_ptr() != tensor.data_ptr()

    base.untyped_storage().resize_(3996)

    assert shortage(tensor) == (4000, 3996)
    assert cloned(tensor).data_ptr() == tensor.data_ptr()
