"""OPT, and VGG-16, against others' implementations: weights read, logits, weights written."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import ROOT, Weights, logits_of, refused, relative_error, run, run_readmes_lines, saved, write_tokens

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SAMPLES, LENGTH, VOCABULARY = 3, 20, 64
KINDS = {"pre-norm": {}, "post-norm-projected": {"do_layer_norm_before": False, "word_embed_proj_dim": 24}}


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
    return saved(transformers.OPTForCausalLM(config), folder, shards)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "text", SAMPLES * LENGTH, VOCABULARY)
    return tmp_path / "text"


def input_ids(text: Path) -> Any:
    tokens = array("H", (text / "tokens.bin").read_bytes())
    return torch.tensor(tokens.tolist()).view(SAMPLES, LENGTH)


def opt_logits(folder: Path, text: Path) -> Any:
    flags = ["--model", "opt-125m", "--data", text, "--sequence", LENGTH, "--batch", SAMPLES]
    return logits_of(folder, *flags).view(SAMPLES, LENGTH, VOCABULARY)


@pytest.mark.parametrize("shards", ["1GB", "30KB"])
@pytest.mark.parametrize("kind", KINDS)
def test_opt_computes_what_transformers_computes(tmp_path: Path, text: Path, kind: str, shards: str) -> None:
    model = an_opt(tmp_path / "model", shards, **KINDS[kind])
    assert (tmp_path / "model/model.safetensors.index.json").exists() == (shards == "30KB")

    with torch.no_grad():
        theirs = model(input_ids(text)).logits

    assert relative_error(opt_logits(tmp_path / "model", text), theirs) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_trained_opt_is_exported_for_transformers(tmp_path: Path, text: Path, kind: str) -> None:
    model = an_opt(tmp_path / "model", **KINDS[kind])
    ran = run(
        *("cairn_train", "--model", "opt-125m", "--init-from", tmp_path / "model", "--data", text),
        *("--sequence", LENGTH, "--batch", 2, "--steps", 3, "--optimizer", "adamw", "--lr", 0.01),
        *("--checkpoint-dir", tmp_path / "run", "--host-memory", "64MiB"),
    )
    assert ran.returncode == 0, ran.stderr
    model.config.save_pretrained(tmp_path / "exported")

    out = tmp_path / "exported/model.safetensors"
    assert run("cairn", "export", tmp_path / "run", "--names", "model.*", "--out", out).returncode == 0

    exported, report = transformers.OPTForCausalLM.from_pretrained(tmp_path / "exported", output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert set(safetensors.load_file(out)) == set(exported.state_dict()) - {"lm_head.weight"}
    with torch.no_grad():
        theirs = exported.eval()(input_ids(text)).logits
        assert relative_error(theirs, model(input_ids(text)).logits) > 1e-2, "nothing was learned"
    assert relative_error(opt_logits(tmp_path / "exported", text), theirs) < 1e-4


def test_a_tied_name_may_be_there(tmp_path: Path, text: Path) -> None:
    an_opt(tmp_path / "model")
    without = opt_logits(tmp_path / "model", text)
    path = tmp_path / "model/model.safetensors"
    weights = safetensors.load_file(path)
    assert "lm_head.weight" not in weights

    safetensors.save_file(weights | {"lm_head.weight": weights["model.decoder.embed_tokens.weight"].clone()}, path)

    assert torch.equal(opt_logits(tmp_path / "model", text), without)


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
            lambda w: w.update({FC1 + "bias": w[FC1 + "bias"].half()}),
            f'tensor "{FC1}bias": expected F32 [80], found F16 [80]',
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

    opt_refused(tmp_path / "model", text, f"{path}: {why}")


def opt_refused(folder: Path, text: Path, why: str) -> None:
    refused(why, "--model", "opt-125m", "--data", text, "--sequence", LENGTH, "--init-from", folder)


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path: Path, text: Path) -> None:
    an_opt(tmp_path / "model", "30KB")
    path = tmp_path / "model/model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = FC1 + "bias"
    file = index["weight_map"][name]

    def refused_with(weight_map: dict[str, Any], why: str) -> None:
        path.write_text(json.dumps(index | {"weight_map": weight_map}))
        opt_refused(tmp_path / "model", text, why)

    whole = index["weight_map"]
    other = next(other for other in whole.values() if other != file)
    refused_with(whole | {name: other}, f'{other}: tensor "{name}": expected it, by {path}, found none')
    refused_with(whole | {"more": file}, f'{file}: tensor "more": expected it, by {path}, found none')
    refused_with(
        {key: value for key, value in whole.items() if key != name},
        f'{file}: tensor "{name}": expected only what {path} names, found it',
    )
    refused_with(whole | {name: "../elsewhere"}, 'expected the name of a file, found "../elsewhere"')
    refused_with(whole | {name: 3}, "expected the name of a file, found 3")
    path.write_text("{}")
    opt_refused(tmp_path / "model", text, f"{path}: weight_map: expected an object, found none")
    (path.parent / file).unlink()
    path.write_text(json.dumps(index))
    opt_refused(tmp_path / "model", text, f"{file}: cannot be read: No such file")


def test_vgg16_computes_what_the_same_layers_compute_in_python(tmp_path: Path) -> None:
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


def test_the_readmes_lines_train_on_real_text(tmp_path: Path) -> None:
    here = {"/data": tmp_path, "/mnt/nvme": tmp_path}
    small = " --size layers=1 hidden=48 heads=4 ffn=96 --host-memory 64MiB --report " + str(tmp_path / "report.json")

    lines = run_readmes_lines("/data/licences", here, small)

    assert len(lines) == 2 and "opt-125m" in lines[1]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["last_loss"] < report["first_loss"]
