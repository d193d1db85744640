"""The example of Hugging Face's Trainer under torchrun: two processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from huggingface_trainer import assert_exact_resume
from test_examples import finish, losses, read_until, start


def test_a_hugging_face_job_of_two_ranks_loses_one_and_resumes_bit_exactly(tmp_path: Path) -> None:
    def start_job(folder: Path) -> subprocess.Popen[str]:
        runner = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--monitor-interval", "0.1"]
        return start("huggingface_text.py", folder, "--steps", 16, before=runner)

    job = start_job(tmp_path / "killed")
    before = [line.rstrip("\n") for line in read_until(job, 3, tmp_path / "killed", "cairn/step-*")]
    workers = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    before = losses(before) + losses(job.communicate()[0].splitlines())
    assert job.returncode != 0

    resumed, whole = (losses(finish(start_job(tmp_path / folder))) for folder in ("killed", "whole"))
    assert_exact_resume(before, resumed, whole)
