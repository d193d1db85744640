"""Example programs of several ranks, as torchrun starts them: run to their end, or killed by SIGKILL and compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch.distributed
from jobs import ENVIRONMENT

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = Path("/usr/share/common-licenses/Apache-2.0")  # What the examples train on.


def host_store() -> tuple[torch.distributed.TCPStore, dict[str, str]]:
    """A store for the ranks of a job, and the environment in which they find it. Keep the store until they end."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    return store, {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCH_CPP_LOG_LEVEL": "FATAL",
    }  # fmt: skip


def torchrun(ranks: int, program: Path, *arguments: Any) -> subprocess.Popen[str]:
    """A job as torchrun itself starts it. Its stdout is a pipe."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launcher, str(program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT | {"OMP_NUM_THREADS": "1"})


class Job:
    """All ranks of one program. The test hosts their store, so no port is taken by somebody else meanwhile."""

    def __init__(self, program: Path, *arguments: Any, world: int = 2, **environment: str) -> None:
        self._store, given = host_store()
        given |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, program, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=ENVIRONMENT | given | environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world)
        ]

    def finish(self) -> list[str]:
        """Rank 0's lines, once all ranks have ended well."""
        said = [rank.communicate(timeout=300)[0] for rank in self.ranks]
        assert [rank.returncode for rank in self.ranks] == [0] * len(self.ranks), "\n".join(said)
        return said[0].splitlines()

    def kill_after(self, lines: int, folder: Path, pattern: str = "step-*") -> list[str]:
        """Kills all ranks once rank 0 has printed so many lines of progress and a checkpoint is there. Its lines."""
        out = self.ranks[0].stdout
        assert out is not None
        seen: list[str] = []
        while len(progress(seen)) < lines or not any(folder.glob(pattern)):
            seen.append(out.readline())
            assert seen[-1], "".join(seen)
        for rank in self.ranks:
            rank.kill()
        seen += out.readlines()
        for rank in self.ranks:
            rank.communicate()
        return [line.rstrip("\n") for line in seen if line.endswith("\n")]


def progress(lines: list[str]) -> list[str]:
    """The lines in which runs are compared."""
    return [line for line in lines if line.startswith(("step=", "digest="))]


def expect_exact_resume(
    program: str,
    tmp_path: Path,
    *arguments: Any,
    lines: int,
    folder: str = "",
    pattern: str = "step-*",
    **environment: str,
) -> None:
    """Kills the example after so many lines; resumed, it continues as a run that was never killed, bit by bit."""
    path = EXAMPLES / program
    job = Job(path, tmp_path / "killed", *arguments, **environment)
    before = progress(job.kill_after(lines, tmp_path / "killed" / folder, pattern))
    resumed = progress(Job(path, tmp_path / "killed", *arguments, **environment).finish())
    whole = progress(Job(path, tmp_path / "whole", *arguments, **environment).finish())

    assert whole[-1].startswith("digest=") and len(before) < len(whole) - 1
    assert before == whole[: len(before)]
    assert resumed == whole[-len(resumed) :]
    assert 0 < len(whole) - len(resumed) <= len(before)


def expect_alone(plug: str) -> None:
    """cairn.<plug> can be imported where no other framework that Cairn plugs into is installed."""
    others = {
        "accelerate", "deepspeed", "lightning", "megatron", "peft", "pytorch_lightning", "ray", "torchft", "torchtitan",
        "transformers",
    } - {plug}  # fmt: skip
    code = f"import sys; sys.modules.update(dict.fromkeys({others!r})); import cairn.{plug}"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
