"""The cairn command beside a job: what it exports is what torch loads, and what it pins the job keeps."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
from collections import Counter, OrderedDict, deque, namedtuple
from pathlib import Path
from typing import Any

import cairn
import pytest
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


class Wrapped(torch.nn.Module):
    """As DistributedDataParallel's names are."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


@dataclasses.dataclass
class Held:
    one: Any


Pair = namedtuple("Pair", ["first", "second"])
KEYS = ("0", "-7", "12", "True", "None", "", "x/y", "~t", "01", "-0", 0, -7, 2**63, -(2**70), True, None)


def exported(tmp_path: Path, model: Any) -> tuple[int, dict[str, Any], str]:
    """What the command writes of it: its exit status, the tensors, and what it says."""
    root, out = tmp_path / "run", tmp_path / "model"
    shutil.rmtree(out, ignore_errors=True)
    tmp_path.joinpath("config.json").write_text("{}")
    with cairn.Checkpointer(root, host_memory="64MiB") as checkpointer:
        checkpointer.save((checkpointer.latest() or 0) + 1, {"model": model}).wait()
    ran = subprocess.run(
        [COMMAND, "export", root, "--model-folder", out, "--config-from", tmp_path],
        check=False,
        capture_output=True,
        text=True,
    )
    return ran.returncode, {} if ran.returncode else safetensors.torch.load_file(out / "model.safetensors"), ran.stderr


def test_what_is_kept_as_bytes_is_no_weight_of_a_model_folder_wherever_it_is(tmp_path: Path) -> None:
    odd, even = torch.ones(2, dtype=torch.complex128), torch.ones(2)
    models = [
        {"inner": [even, Pair(even, {"first": deque([even, odd])})]},
        torch.nn.ParameterList([torch.nn.Parameter(odd)]),
        Counter({"key": odd}),
        (even, Held(OrderedDict(key=odd))),
        odd,
    ] + [{key: odd} for key in KEYS]  # fmt: skip
    for model in models:
        code, _, said = exported(tmp_path, model)
        assert code == 2 and "has the dtype complex128, which safetensors files do not have" in said, (model, said)


def test_a_model_folder_has_torchs_names(tmp_path: Path) -> None:
    listed = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(3))])
    compiled: Any = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.compile(torch.nn.Linear(2, 1))))
    plain = ["0.bias", "0.weight", "1.bias", "1.weight"]
    for model, names in ((listed, ["0", "1"]), (compiled, plain), (Wrapped(listed), ["module.0", "module.1"])):
        code, tensors, said = exported(tmp_path, model)
        assert code == 0 and sorted(tensors) == names, said
        assert ("--strip-prefix model/module. leaves it out" in said) == (names[0] == "module.0")
    code, tensors, said = exported(tmp_path, torch.compile(Wrapped(listed)))
    assert code == 0 and sorted(tensors) == ["module.0", "module.1"]
    assert 'all names begin with "module."' in said and "--strip-prefix model/_orig_mod.module. leaves it out" in said


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


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_streams_that_cannot_be_written_end_no_command_before_its_exit_code(tmp_path: Path, redirected: str) -> None:
    root = tmp_path / "run"
    with cairn.Checkpointer(root, host_memory="64MiB") as checkpointer:
        checkpointer.save(1, {"weight": torch.zeros(10)}).wait()

    def run(*arguments: str | Path) -> int:
        shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", COMMAND, *arguments]
        return subprocess.run(shell, check=False, stdout=subprocess.DEVNULL).returncode

    assert run("show", tmp_path / "none") == 2
    assert run("no-such-command") == 2
    assert run("ls", root) == (2 if " " in redirected else 0)  # stdout, too
    assert run("gc", root, "--keep-last", "1") in (0, 2)
    assert cairn.Checkpointer(root, read_only=True).steps() == [1]
