"""The trainer's BLOOM compared with transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from models import (
    VOCABULARY,
    expect_refused,
    expect_trained_and_exported,
    our_logits,
    relative_error,
    safetensors,
    save,
    their_logits,
    transformers,
)

HEADS = [4, 6]  # ALiBi has a separate rule for numbers that are not powers of two.


def a_bloom(folder: Path, heads: int) -> Any:
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=8 * heads, n_layer=3, n_head=heads)
    return save(transformers.BloomForCausalLM(config), folder)


@pytest.mark.parametrize("heads", HEADS)
def test_bloom_computes_what_transformers_computes(tmp_path: Path, text: Path, heads: int) -> None:
    model = a_bloom(tmp_path / "model", heads)

    assert relative_error(our_logits("bloom-560m", tmp_path / "model", text), their_logits(model, text)) < 1e-4


@pytest.mark.parametrize("heads", HEADS)
def test_trained_bloom_is_exported_for_transformers(tmp_path: Path, text: Path, heads: int) -> None:
    model = a_bloom(tmp_path / "model", heads)

    expect_trained_and_exported("bloom-560m", model, text, "transformer.*")


def test_weights_in_the_published_layout_are_read(tmp_path: Path, text: Path) -> None:
    model = a_bloom(tmp_path / "model", 4).half()
    model.transformer.save_pretrained(tmp_path / "model")
    assert "h.0.mlp.dense_h_to_4h.weight" in safetensors.load_file(tmp_path / "model/model.safetensors")

    assert relative_error(our_logits("bloom-560m", tmp_path / "model", text), their_logits(model.float(), text)) < 1e-4


def test_a_config_in_the_published_layout_is_read(tmp_path: Path, text: Path) -> None:
    model = a_bloom(tmp_path / "model", 4)
    path = tmp_path / "model/config.json"
    config = json.loads(path.read_text())
    for ours, theirs in {
        "hidden_size": "n_embed",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
    }.items():
        config[theirs] = config.pop(ours)
    path.write_text(json.dumps(config))

    assert relative_error(our_logits("bloom-560m", tmp_path / "model", text), their_logits(model, text)) < 1e-4


def test_an_invalid_config_is_refused_naming_file_and_field(tmp_path: Path, text: Path) -> None:
    a_bloom(tmp_path / "model", 4)
    path = tmp_path / "model/config.json"
    whole = json.loads(path.read_text())

    def refused_with(why: str, **fields: object) -> None:
        path.write_text(json.dumps({key: value for key, value in (whole | fields).items() if value is not None}))
        expect_refused("bloom-560m", path.parent, text, f"{path}: {why}")

    refused_with('model_type: expected "bloom", as for --model, found "opt"', model_type="opt")
    refused_with("n_head: expected an unsigned integer, found none", n_head=None)
    refused_with("n_embed: expected an unsigned integer, found -1", hidden_size=None, n_embed=-1)
    refused_with("hidden_size: expected 64, as in n_embed, found 32", n_embed=64)
    refused_with("layer_norm_epsilon: expected 1e-05, found 1e-06", layer_norm_epsilon=1e-6)
    refused_with("hidden_dropout: expected 0.0, found 0.1", hidden_dropout=0.1)
    refused_with("attention_dropout: expected 0.0, found 0.1", attention_dropout=0.1)
    refused_with(
        "apply_residual_connection_post_layernorm: expected false, found true",
        apply_residual_connection_post_layernorm=True,
    )
    refused_with("tie_word_embeddings: expected true, found false", tie_word_embeddings=False)
