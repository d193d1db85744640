"""What README's table says of torch.save, of DCP's async_save and of Cairn, tried on all three.

The rows are in bench/cairn_bench/results/front_page.py. Its other rows are measured, or tested where it says.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import cairn
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

# Each saves a state to a folder.
SAVES = {
    "torch.save": 'torch.save(state, folder / "last.pt")',
    "dcp.async_save": 'dcp.async_save(state, checkpoint_id=folder / f"step-{step}").result()',
    "cairn": 'cairn.Checkpointer(folder, host_memory="32MiB", exist_ok=True).save(step, state).wait()',
}

# The kernel kills the process at the write that makes a file larger than 1 MiB.
KILLED = """
import pathlib, resource, signal, sys, torch, torch.distributed.checkpoint as dcp, cairn
folder = pathlib.Path(sys.argv[1])
for step in 1, 2:
    state = {"w": torch.full((1 << 20,), float(step))}
    if step == 2:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
"""


def by_dcp(folder: Path) -> torch.Tensor:
    state = {"w": torch.zeros(1 << 20)}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state["w"]


def test_a_process_is_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    programs = {}
    for how, save in SAVES.items():
        (tmp_path / how).mkdir()
        command = [sys.executable, "-W", "ignore", "-c", f"{KILLED}    {save}", str(tmp_path / how)]
        programs[how] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    ended = {how: program.wait() for how, program in programs.items()}

    assert ended["torch.save"] == ended["dcp.async_save"] == -signal.SIGXFSZ
    assert ended["cairn"] != 0  # Writes through io_uring end with an error instead of the signal.
    assert cairn.load(tmp_path / "cairn")["w"].eq(1).all()
    assert by_dcp(tmp_path / "dcp.async_save/step-1").eq(1).all()
    with pytest.raises(dcp.api.CheckpointException):
        by_dcp(tmp_path / "dcp.async_save/step-2")
    with pytest.raises(RuntimeError):
        torch.load(tmp_path / "torch.save/last.pt")


def flip(path: Path) -> None:
    """One bit in the middle of the tensor, which is most of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.filterwarnings("ignore")
def test_a_bit_is_flipped_in_a_file(tmp_path: Path) -> None:
    state = {"w": torch.full((1 << 20,), 1.0)}
    torch.save(state, tmp_path / "last.pt")
    dcp.async_save(state, checkpoint_id=tmp_path / "step-1").result()
    with cairn.Checkpointer(tmp_path / "root", host_memory="32MiB") as checkpointer:
        checkpointer.save(1, state)
    (shard,) = (tmp_path / "root").glob("step-*/*.safetensors")
    assert safetensors.torch.load_file(shard)["w"].eq(1).all()

    flip(tmp_path / "last.pt")
    flip(next(tmp_path.glob("step-1/*.distcp")))
    flip(shard)

    assert torch.load(tmp_path / "last.pt")["w"].ne(1).sum() == 1
    assert by_dcp(tmp_path / "step-1").ne(1).sum() == 1
    with pytest.raises(cairn.Corrupt, match="CRC32C of data bytes"):
        cairn.load(tmp_path / "root")
