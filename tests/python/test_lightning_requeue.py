"""SLURM's signals to real processes that train with Lightning: each saves, ends, and is resumed without a repeated step.

SLURM itself is played by the environment that it sets, and by a `scontrol` that notes what it is asked and ends the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import ENVIRONMENT
from programs import EXAMPLES, host_store

pytest.importorskip("lightning", reason="lightning is not installed")

import cairn.lightning

PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from lightning_text import *
torch.set_num_threads(1)
seed_everything(7, verbose=False)
class Accumulating(CharacterModel):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if os.environ.get("SLURM_NTASKS") == "1" and batch_idx == 8:
            os.kill(os.getpid(), signal.SIGUSR1)  # In the midst of a step: dropout has drawn, no gradient is there.
        return loss
    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.trainer.global_step == 4 and batch_idx % 2 and self.trainer.is_global_zero:
            print("trains", flush=True)
trainer = Trainer(
    plugins=[cairn.lightning.CheckpointIO(host_memory="32MiB", chunk="1MiB")], callbacks=[cairn.lightning.Callback()],
    default_root_dir=sys.argv[1], max_epochs=1, accumulate_grad_batches=2, accelerator="cpu", logger=False,
    enable_progress_bar=False, enable_model_summary=False, limit_train_batches=40, enable_checkpointing=False,
    num_nodes=int(os.environ.get("SLURM_NTASKS", "1")), strategy="ddp" if os.environ.get("SLURM_NTASKS") == "2" else "auto",
)
trainer.fit(Accumulating(), Windows())
print("done", trainer.global_step)
"""


def start(folder: Path, rank: int | None, world: int = 1, **environment: str) -> subprocess.Popen[str]:
    """A job alone, or as a task of SLURM. With a `scontrol` that ends the task that calls it."""
    tools = folder / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    (tools / "scontrol").write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/asked\n{"kill -TERM $PPID" if world == 1 else ""}\n'
    )
    (tools / "scontrol").chmod(0o755)
    environment |= {"PATH": f"{tools}:{os.environ['PATH']}"}
    if rank is not None:
        environment |= {
            "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": str(world), "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_NNODES": str(world), "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank),
        }  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(folder / "run"), str(EXAMPLES)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT | environment)


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines = [""]
    while not lines[-1].startswith(text):
        lines.append(process.stdout.readline())
        assert lines[-1]
    return lines


def steps(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.startswith("step=")]


def rest(process: subprocess.Popen[str]) -> list[str]:
    """Its lines that have not been read yet, once it has ended."""
    assert process.stdout is not None
    lines = process.stdout.readlines()
    process.wait()
    return lines


def finish(process: subprocess.Popen[str]) -> list[str]:
    lines = rest(process)
    assert "done 20\n" in lines
    return steps(lines)


def test_the_requeue_signal_saves_after_the_step_and_the_requeued_job_continues(tmp_path: Path) -> None:
    job, whole = start(tmp_path / "job", 0), start(tmp_path / "whole", None)
    before = rest(job)
    assert (tmp_path / "job/asked").read_text() == "requeue 4711\n"
    assert [path.name for path in (tmp_path / "job/run").glob("*.ckpt")] == ["hpc_ckpt_1.ckpt"]

    resumed = finish(start(tmp_path / "job", 0))

    assert len(steps(before)) == 10
    assert steps(before) + resumed == finish(whole)


def test_all_ranks_save_after_the_same_step_if_one_gets_the_signal(tmp_path: Path) -> None:
    _store, given = host_store()
    ranks = [start(tmp_path / "job", rank, 2, **given) for rank in range(2)]
    read_until(ranks[0], "trains")
    ranks[1].send_signal(signal.SIGUSR1)
    for rank in ranks:
        finish(rank)  # Nobody ends this job; a save that not all ranks take part in would never end.

    assert (tmp_path / "job/asked").read_text() == "requeue 4711\n"
    saved = cairn.lightning.load_checkpoint(tmp_path / "job/run/hpc_ckpt_1.ckpt")
    assert 4 <= saved["global_step"] <= 20
    assert len(saved["callbacks"]["cairn.lightning.Callback"]["rng"]) == 2
