"""cairn export: the file of a module is what load_state_dict takes, whole."""

from __future__ import annotations

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
