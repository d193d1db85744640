"""What the tests of single models share: the programs they run, data, and models of others with weights at random.

Runs the programs in build/release/bin, or where CAIRN_BIN says.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import zlib
from array import array
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build/release/bin"))
Weights = dict[str, Any]


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / program, *map(str, arguments)], check=False, text=True, capture_output=True)


def refused(why: str, *arguments: object) -> None:
    """Training ends before its first step, saying why."""
    ran = run("cairn_train", *arguments)
    assert ran.returncode == 1 and why in ran.stderr and "step=" not in ran.stdout, ran.stderr


def relative_error(ours: Any, theirs: Any) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def saved(model: Any, folder: Path, shards: str = "1GB") -> Any:
    """The model with weights at random, as drawn for the seed 1, in files."""
    model.eval()
    torch.manual_seed(1)
    # As drawn by the model, biases are 0 and norms are 1: none would be missed in another's place.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder, max_shard_size=shards)
    return model


def write_tokens(folder: Path, count: int, vocabulary: int, first: int = 0, **more: Any) -> None:
    """Fills FOLDER as scripts/prepare-data does, with `count` tokens from the `first` of the vocabulary on."""
    tokens = array("H", random.Random(2).choices(range(first, vocabulary), k=count))
    about = {"kind": "text", "dtype": "u16", "tokens": count, "vocabulary": vocabulary, **more}
    folder.mkdir(exist_ok=True)
    (folder / "tokens.bin").write_bytes(tokens.tobytes())
    (folder / "data.json").write_text(json.dumps(about | {"checksum": f"crc32:{zlib.crc32(tokens):08x}"}))


def run_readmes_lines(pattern: str, here: dict[str, object], behind: str) -> list[str]:
    """Runs those of README.md's lines on the trainer that match, with what it names replaced and more flags at the end
    of a training. Returns them."""
    section = (ROOT / "README.md").read_text().split("\n## The trainer\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.split("```")[1].splitlines() if re.search(pattern, line)]
    script = "\n".join(line.split("  #")[0] + (behind if "cairn_train" in line else "") for line in lines)
    for printed, replaced in {"build/release/bin": BIN, **here}.items():
        assert printed in script
        script = script.replace(printed, str(replaced))
    ran = subprocess.run(["bash", "-ec", script], check=False, cwd=ROOT, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    return lines


def logits_and_loss_of(folder: Path, *arguments: object) -> tuple[Any, float]:
    out = folder.parent / "logits"
    ran = run("trainer_logits", "--init-from", folder, "--report", out, *arguments)
    assert ran.returncode == 0, ran.stderr
    loss = float(ran.stdout.split("loss=")[1])
    return torch.frombuffer(bytearray(out.read_bytes()), dtype=torch.float32), loss


def logits_of(folder: Path, *arguments: object) -> Any:
    return logits_and_loss_of(folder, *arguments)[0]
