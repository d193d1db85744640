"""The trainer's OPT and VGG-16 compared with other implementations: reading weights, logits, writing weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import (
    LENGTH,
    ROOT,
    VOCABULARY,
    expect_refused,
    expect_trained_and_exported,
    logits_of,
    our_logits,
    relative_error,
    run,
    safetensors,
    save,
    their_logits,
    torch,
    transformers,
)

KINDS = {"pre-norm": {}, "post-norm-projected": {"do_layer_norm_before": False, "word_embed_proj_dim": 24}}
Weights = dict[str, Any]


def an_opt(folder: Path, shards: str = "1GB", **settings: Any) -> Any:
    config = transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=80,
        max_position_embeddings=LENGTH,
        **settings,
    )
    return save(transformers.OPTForCausalLM(config), folder, shards)


def opt_logits(folder: Path, text: Path) -> Any:
    return our_logits("opt-125m", folder, text)


def refused(folder: Path, text: Path, why: str) -> None:
    expect_refused("opt-125m", folder, text, why)


@pytest.mark.parametrize("shards", ["1GB", "30KB"])
@pytest.mark.parametrize("kind", KINDS)
def test_opt_computes_what_transformers_computes(tmp_path: Path, text: Path, kind: str, shards: str) -> None:
    model = an_opt(tmp_path / "model", shards, **KINDS[kind])
    assert (tmp_path / "model/model.safetensors.index.json").exists() == (shards == "30KB")

    assert relative_error(opt_logits(tmp_path / "model", text), their_logits(model, text)) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_trained_opt_is_exported_for_transformers(tmp_path: Path, text: Path, kind: str) -> None:
    model = an_opt(tmp_path / "model", **KINDS[kind])

    expect_trained_and_exported("opt-125m", model, text, "model.*")


def test_a_tied_name_is_accepted(tmp_path: Path, text: Path) -> None:
    an_opt(tmp_path / "model")
    without = opt_logits(tmp_path / "model", text)
    path = tmp_path / "model/model.safetensors"
    weights = safetensors.load_file(path)
    assert "lm_head.weight" not in weights

    safetensors.save_file(weights | {"lm_head.weight": weights["model.decoder.embed_tokens.weight"].clone()}, path)

    assert torch.equal(opt_logits(tmp_path / "model", text), without)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_weights_are_widened(tmp_path: Path, text: Path, dtype: str) -> None:
    model = an_opt(tmp_path / "model").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "model")

    assert relative_error(opt_logits(tmp_path / "model", text), their_logits(model.float(), text)) < 1e-4


FC1 = "model.decoder.layers.1.fc1."


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w.pop(FC1 + "bias"), f'tensor "{FC1}bias": expected F32 [80], found none'),
        (lambda w: w.update(more=torch.zeros(3)), 'tensor "more": expected no tensor of this name, found F32 [3]'),
        (
            lambda w: w.update({FC1 + "weight": w[FC1 + "weight"].T.contiguous()}),
            f'tensor "{FC1}weight": expected F32 [80, 32], found F32 [32, 80]',
        ),
        (
            lambda w: w.update({FC1 + "bias": w[FC1 + "bias"].int()}),
            f'tensor "{FC1}bias": expected F32 [80], found I32 [80]',
        ),
        (
            lambda w: w.update({"lm_head.weight": w["model.decoder.embed_tokens.weight"] + 1}),
            'tensor "lm_head.weight": expected F32 [64, 32] with the bytes of "model.decoder.embed_tokens.weight"',
        ),
    ],
    ids=["missing", "foreign", "shape", "dtype", "untied"],
)
def test_weights_of_another_model_are_refused(
    tmp_path: Path, text: Path, change: Callable[[Weights], None], why: str
) -> None:
    an_opt(tmp_path / "model")
    path = tmp_path / "model/model.safetensors"
    weights = safetensors.load_file(path)
    change(weights)
    safetensors.save_file(weights, path)

    refused(tmp_path / "model", text, f"{path}: {why}")


def test_an_index_that_does_not_match_its_files_is_refused(tmp_path: Path, text: Path) -> None:
    an_opt(tmp_path / "model", "30KB")
    path = tmp_path / "model/model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = FC1 + "bias"
    file = index["weight_map"][name]

    def refused_with(weight_map: dict[str, Any], why: str) -> None:
        path.write_text(json.dumps(index | {"weight_map": weight_map}))
        refused(tmp_path / "model", text, why)

    whole = index["weight_map"]
    other = next(other for other in whole.values() if other != file)
    refused_with(whole | {name: other}, f'{other}: tensor "{name}": expected it, as in {path}, found none')
    refused_with(whole | {"more": file}, f'{file}: tensor "more": expected it, as in {path}, found none')
    refused_with(
        {key: value for key, value in whole.items() if key != name},
        f'{file}: tensor "{name}": expected only tensors that {path} names, found it',
    )
    refused_with(whole | {name: "../elsewhere"}, 'expected a file name, found "../elsewhere"')
    refused_with(whole | {name: 3}, "expected a file name, found 3")
    path.write_text("{}")
    refused(tmp_path / "model", text, f"{path}: weight_map: expected an object, found none")
    (path.parent / file).unlink()
    path.write_text(json.dumps(index))
    refused(tmp_path / "model", text, f"{file}: cannot read: No such file")


def test_vgg16_matches_the_same_layers_in_python(tmp_path: Path) -> None:
    flags = ["--model", "vgg16", "--size", "width=2", "--data", "digits"]
    run("cairn_train", *flags, "--steps", 1, "--checkpoint-dir", tmp_path / "run", "--host-memory", "64MiB")
    (tmp_path / "vgg").mkdir()
    out = tmp_path / "vgg/model.safetensors"
    ran = run("cairn", "export", tmp_path / "run", "--names", "features.*", "classifier.*", "--out", out)
    assert ran.returncode == 0, ran.stderr

    nn = torch.nn
    layers: list[Any] = []
    channels = 3
    for width in (2, 2, 0, 4, 4, 0, 8, 8, 8, 0, 16, 16, 16, 0, 16, 16, 16, 0):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        channels = width or channels
    hidden = [nn.Linear(16 * 49, 128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 128), nn.ReLU(), nn.Dropout()]
    model = nn.ModuleDict(
        {"features": nn.Sequential(*layers), "classifier": nn.Sequential(*hidden, nn.Linear(128, 10))}
    )
    model.load_state_dict(safetensors.load_file(out))
    digits = (ROOT / "bench/trainer/data/digits.bin").read_bytes()
    pixels = torch.frombuffer(bytearray(digits), dtype=torch.uint8).view(-1, 65)[:5, :64].view(5, 1, 8, 8)
    images = nn.functional.interpolate(pixels.float(), (32, 32), mode="bilinear") / 8 - 1
    with torch.no_grad():
        pooled = nn.AdaptiveAvgPool2d(7)(model.eval()["features"](images.expand(-1, 3, -1, -1)))
        theirs = model["classifier"](pooled.flatten(1))

    assert relative_error(logits_of(tmp_path / "vgg", *flags, "--batch", 5).view(5, 10), theirs) < 1e-4
