"""The cairn command beside a job: what it exports is what torch loads, and what it pins the job keeps."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import cairn
import safetensors.torch
import torch
from jobs import COMMAND


class Tied(torch.nn.Module):
    """With a tied weight, a buffer without dimensions, and a dotted path."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.body(self.embedding(tokens))))


def test_retention_of_a_running_job_keeps_what_the_command_pins(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with cairn.Checkpointer(root, host_memory="64MiB", keep_last=1) as checkpointer:
        checkpointer.save(1, {"weight": torch.zeros(10)}).wait()
        subprocess.run([COMMAND, "pin", root, "1"], check=True)
        for step in (2, 3):
            checkpointer.save(step, {"weight": torch.zeros(10)}).wait()

    assert cairn.Checkpointer(root, read_only=True).steps() == [1, 3]


def test_what_is_not_finite_is_told_by_ls_show_and_json(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with cairn.Checkpointer(root, host_memory="64MiB", nonfinite="mark") as checkpointer:
        for step, value in enumerate([1.0, -math.inf, math.nan], start=1):
            tree = {"half": torch.full((300, 300), value, dtype=torch.bfloat16), "count": torch.full((9,), -1)}
            checkpointer.save(step, tree).wait()
        checkpointer.pin(2)

    def run(*arguments: str | Path) -> str:
        return subprocess.run([COMMAND, *arguments], check=True, capture_output=True, text=True).stdout

    lines = run("ls", root).splitlines()
    listed = json.loads(run("ls", root, "--json"))
    assert not re.search("NaN|infin", lines[1])
    assert lines[2].endswith("has infinities, pinned") and lines[3].endswith("has NaNs")
    assert [one["nonfinite"] for one in listed] == [None, "inf", "nan"]
    assert "has NaNs: shard-00000.safetensors\n" in run("show", root, "3") and "has " not in run("show", root, "1")
    assert json.loads(run("gc", root, "--keep-last", "1", "--dry-run", "--json"))["chosen"] == []


def test_load_state_dict_takes_the_exported_file_whole(tmp_path: Path) -> None:
    model, fresh = Tied(), Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([1, 2, 3])).sum().backward()
    optimizer.step()
    with cairn.Checkpointer(tmp_path / "run", host_memory="64MiB") as checkpointer:
        checkpointer.save(1, {"model": model, "optimizer": optimizer, "step": 1})
    file = tmp_path / "model.safetensors"

    subprocess.run([COMMAND, "export", tmp_path / "run", "--strip-prefix", "model/", "--out", file], check=True)
    fresh.load_state_dict(safetensors.torch.load_file(file), strict=True)

    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], tensor, rtol=0, atol=0)
    assert fresh.head.weight is fresh.embedding.weight
