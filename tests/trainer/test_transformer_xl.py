"""The trainer's Transformer-XL compared with the same layers in Python, and its memory from segment to segment."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from models import SAMPLES, VOCABULARY, logits_of, relative_error, run, safetensors, torch
from transfo_xl import Config, TransfoXL

CONFIGS = {
    "as-base": Config(VOCABULARY, [20, 30, 50], div_val=1, untie_r=False),
    "as-large": Config(VOCABULARY, [20, 30, 50], div_val=2, untie_r=True),
    "one-cluster": Config(VOCABULARY, [64, 70, 80], div_val=1, untie_r=True),
    "one-narrow-cluster": Config(VOCABULARY, [20, 64, 80], div_val=4, untie_r=False),
}
SEGMENT, SEGMENTS, ROWS = 6, 3, SAMPLES  # More tokens than the memory holds.


def flags(config: Config, text: Path) -> list[object]:
    model = ["--model", "transformer-xl-base", "--size", *config.sizes]
    return [*model, "--data", text, "--sequence", SEGMENT, "--batch", ROWS]


def weights_of(model: TransfoXL) -> dict[str, Any]:
    """By name; tensors with several names appear under the first."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def segments(text: Path) -> Any:
    """The tokens, [segment, length, row], and the token after each."""
    tokens = torch.tensor(array("H", (text / "tokens.bin").read_bytes()).tolist())
    length = (len(tokens) - 1) // ROWS
    rows = torch.stack([tokens[row * length :][: SEGMENT * SEGMENTS] for row in range(ROWS)])
    return rows.view(ROWS, SEGMENTS, SEGMENT).permute(1, 2, 0)


def their_logits(model: TransfoXL, text: Path) -> Any:
    mems, all_logits = model.fresh(ROWS), []
    for segment in segments(text):
        with torch.no_grad():
            logits, mems = model(segment, mems)
        all_logits.append(logits.transpose(0, 1))
    return torch.stack(all_logits)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformer_xl_matches_the_same_layers_in_python(tmp_path: Path, text: Path, name: str) -> None:
    config = CONFIGS[name]
    torch.manual_seed(1)
    model = TransfoXL(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    (tmp_path / "model").mkdir()
    safetensors.save_file(weights_of(model), tmp_path / "model/model.safetensors")

    ours = logits_of(tmp_path / "model", *flags(config, text), "--accumulate", SEGMENTS)

    theirs = their_logits(model, text)
    assert relative_error(ours.view(theirs.shape), theirs) < 1e-4
    with torch.no_grad():
        forgetful, _ = model(segments(text)[1], model.fresh(ROWS))
    assert relative_error(forgetful.transpose(0, 1), theirs[1]) > 1e-2, "memory makes no difference here"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_names_weights_and_memory(tmp_path: Path, text: Path, name: str) -> None:
    config = CONFIGS[name]
    every = ["--steps", 2, "--checkpoint-dir", tmp_path / "run", "--host-memory", "64MiB"]
    ran = run("cairn_train", *flags(config, text), *every)
    assert ran.returncode == 0, ran.stderr
    out = tmp_path / "model.safetensors"

    assert run("cairn", "export", tmp_path / "run", "--out", out).returncode == 0

    tensors = {name: t for name, t in safetensors.load_file(out).items() if not name.startswith(("optimizer.", "rng."))}
    assert tensors.pop("memory").shape == (config.layers, ROWS, config.memory, config.hidden)
    expected = {name: tensor.shape for name, tensor in weights_of(TransfoXL(config)).items()}
    assert {name: tensor.shape for name, tensor in tensors.items()} == expected
