"""Helpers of the tests that compare the trainer's language models with transformers'.

Runs the programs in build/release/bin, or in CAIRN_BIN.
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
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build/release/bin"))
SAMPLES, LENGTH, VOCABULARY = 3, 20, 64


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / program, *map(str, arguments)], check=False, text=True, capture_output=True)


def refused(why: str, *arguments: object) -> None:
    """Expects training to end before its first step with this message."""
    ran = run("cairn_train", *arguments)
    assert ran.returncode == 1 and why in ran.stderr and "step=" not in ran.stdout, ran.stderr


def relative_error(ours: Any, theirs: Any) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def save(model: Any, folder: Path, shards: str = "1GB") -> Any:
    """Saves with random weights: initial biases are all 0 and norms all 1, which would hide a mix-up."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.eval().parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder, max_shard_size=shards)
    return model


def write_tokens(folder: Path, count: int, vocabulary: int, first: int = 0, **more: Any) -> None:
    """Fills FOLDER like scripts/prepare-data, with `count` random tokens numbered from `first` up."""
    tokens = array("H", random.Random(2).choices(range(first, vocabulary), k=count))
    about = {"kind": "text", "dtype": "u16", "tokens": count, "vocabulary": vocabulary, **more}
    folder.mkdir(exist_ok=True)
    (folder / "tokens.bin").write_bytes(tokens.tobytes())
    (folder / "data.json").write_text(json.dumps(about | {"checksum": f"crc32:{zlib.crc32(tokens):08x}"}))


def run_docs_lines(pattern: str, here: dict[str, object], behind: str) -> list[str]:
    """Runs the lines of docs/trainer.md that match, with names replaced by `here`, and with more flags for a
    training. Returns them."""
    blocks = "".join((ROOT / "docs/trainer.md").read_text().split("```")[1::2])
    lines = [line for line in blocks.splitlines() if re.search(pattern, line)]
    script = "\n".join(line.split("  #")[0] + (behind if "cairn_train" in line else "") for line in lines)
    for printed, replaced in {"build/release/bin": BIN, **here}.items():
        assert printed in script
        script = script.replace(printed, str(replaced))
    ran = subprocess.run(["bash", "-ec", script], check=False, cwd=ROOT, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    return lines


def input_ids(text: Path) -> Any:
    tokens = array("H", (text / "tokens.bin").read_bytes())
    return torch.tensor(tokens.tolist()).view(SAMPLES, LENGTH)


def their_logits(model: Any, text: Path) -> Any:
    with torch.no_grad():
        return model(input_ids(text)).logits


def logits_and_loss_of(folder: Path, *arguments: object) -> tuple[Any, float]:
    out = folder.parent / "logits"
    ran = run("trainer_logits", "--init-from", folder, "--report", out, *arguments)
    assert ran.returncode == 0, ran.stderr
    loss = float(ran.stdout.split("loss=")[1])
    return torch.frombuffer(bytearray(out.read_bytes()), dtype=torch.float32), loss


def logits_of(folder: Path, *arguments: object) -> Any:
    return logits_and_loss_of(folder, *arguments)[0]


def our_logits(name: str, folder: Path, text: Path) -> Any:
    flags = ["--model", name, "--data", text, "--sequence", LENGTH, "--batch", SAMPLES]
    return logits_of(folder, *flags).view(SAMPLES, LENGTH, VOCABULARY)


def expect_trained_and_exported(name: str, model: Any, text: Path, names: str) -> None:
    """Trains from `model`, saved in model/ beside the text. Transformers must load the checkpoint's tensors `names`,
    exported, and compute the same as the trainer."""
    at = text.parent
    ran = run(
        *("cairn_train", "--model", name, "--init-from", at / "model", "--data", text),
        *("--sequence", LENGTH, "--batch", 2, "--steps", 3, "--optimizer", "adamw", "--lr", 0.01),
        *("--checkpoint-dir", at / "run", "--host-memory", "64MiB"),
    )
    assert ran.returncode == 0, ran.stderr
    model.config.save_pretrained(at / "exported")

    out = at / "exported/model.safetensors"
    assert run("cairn", "export", at / "run", "--names", names, "--out", out).returncode == 0

    exported, report = type(model).from_pretrained(at / "exported", output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert set(safetensors.load_file(out)) == set(exported.state_dict()) - {"lm_head.weight"}
    theirs = their_logits(exported.eval(), text)
    assert relative_error(theirs, their_logits(model, text)) > 1e-2, "nothing was learned"
    assert relative_error(our_logits(name, at / "exported", text), theirs) < 1e-4


def expect_refused(name: str, folder: Path, text: Path, why: str) -> None:
    refused(why, "--model", name, "--data", text, "--sequence", LENGTH, "--init-from", folder)
