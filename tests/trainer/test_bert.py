"""BERT compared with transformers': reading and writing weights, logits, the training loss with its random draws."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import zlib
from array import array
from pathlib import Path
from typing import Any

import pytest
from models import (
    ROOT,
    logits_and_loss_of,
    logits_of,
    refused,
    relative_error,
    run,
    run_docs_lines,
    save,
    write_tokens,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SAMPLES, LENGTH, VOCABULARY = 6, 40, 64
SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
WORDS = LENGTH - 3
WORD, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder."


def a_bert(folder: Path, head: str = "BertForPreTraining", shards: str = "1GB", **settings: Any) -> Any:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "max_position_embeddings": LENGTH + 2,
    }
    config = transformers.BertConfig(**(sizes | settings))
    return save(getattr(transformers, head)(config), folder, shards)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "text", SAMPLES * WORDS + 5, VOCABULARY, first=len(SPECIAL), special_tokens=SPECIAL)
    return tmp_path / "text"


def noise(index: int) -> int:
    """Like bench/trainer/data/synthetic.h."""
    bits = (1 << 64) - 1
    x = (index + 1) * 0x9E3779B97F4A7C15 & bits
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & bits
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & bits
    return x ^ (x >> 31)


def pairs(text: Path) -> dict[str, Any]:
    """What the data set must make from the text."""
    words = torch.frombuffer(bytearray((text / "tokens.bin").read_bytes()), dtype=torch.uint16).long()
    ids, types = torch.empty((2, SAMPLES, LENGTH), dtype=torch.long)
    for a in range(SAMPLES):
        b = (a + 1 + noise(2 * a) % (SAMPLES - 1)) % SAMPLES if a % 2 else a
        cut = 1 + noise(2 * a + 1) % (WORDS - 1)
        begin = [SPECIAL["[CLS]"], *words[a * WORDS :][:cut], SPECIAL["[SEP]"]]
        ids[a] = torch.tensor([*begin, *words[b * WORDS :][cut:WORDS], SPECIAL["[SEP]"]])
        types[a] = torch.arange(LENGTH) >= len(begin)
    return {"input_ids": ids, "token_type_ids": types, "next_sentence_label": torch.arange(SAMPLES) % 2}


def masked(batch: dict[str, Any], seed: int) -> dict[str, Any]:
    """The batch as masked by transformers, with a tokenizer that has only the special tokens."""

    class Tokenizer:
        mask_token = "[MASK]"

        def __len__(self) -> int:
            return VOCABULARY

        def convert_tokens_to_ids(self, token: str) -> int:
            return SPECIAL[token]

    collator = transformers.DataCollatorForLanguageModeling(Tokenizer())
    special = torch.isin(batch["input_ids"], torch.tensor(list(SPECIAL.values())))
    torch.manual_seed(seed)
    ids, labels = collator.torch_mask_tokens(batch["input_ids"].clone(), special)
    return batch | {"input_ids": ids, "labels": labels}


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """Features of many lengths, as scripts/prepare-data makes them; every third one has no answer."""
    chance = random.Random(3)
    features = []
    for number in range(SAMPLES):
        length = chance.randint(12, LENGTH) if number else LENGTH
        context = chance.randint(3, length // 2)
        start = chance.randint(context, length - 2) if number % 3 else 0
        features.append([length, context, start, chance.randint(start, length - 2) if number % 3 else 0])
    folder = tmp_path / "squad"
    folder.mkdir()
    packed = array("I", [place for feature in features for place in feature])
    (folder / "features.bin").write_bytes(packed.tobytes())
    more = {"features": SAMPLES, "sequence": LENGTH, "features_checksum": f"crc32:{zlib.crc32(packed):08x}"}
    count = sum(length for length, *_ in features)
    write_tokens(folder, count, VOCABULARY, first=len(SPECIAL), kind="questions", special_tokens=SPECIAL, **more)
    return folder


def questions(squad: Path) -> dict[str, Any]:
    """What the data set must make from them."""
    words = array("H", (squad / "tokens.bin").read_bytes()).tolist()
    features = torch.frombuffer(bytearray((squad / "features.bin").read_bytes()), dtype=torch.int32).view(-1, 4).long()
    ids, types, attended = torch.zeros((3, SAMPLES, LENGTH), dtype=torch.long)
    for number, (length, context, _, _) in enumerate(features.tolist()):
        ids[number, :length] = torch.tensor(words[:length])
        types[number, context:length] = 1
        attended[number, :length] = 1
        words = words[length:]
    names = {"input_ids": ids, "token_type_ids": types, "attention_mask": attended}
    return names | {"start_positions": features[:, 2], "end_positions": features[:, 3]}


def flags(data: Path) -> list[object]:
    return ["--model", "bert-base", "--data", data, "--sequence", LENGTH, "--batch", SAMPLES]


def row(of: Any) -> Any:
    return torch.cat([of.prediction_logits.flatten(), of.seq_relationship_logits.flatten()])


@pytest.mark.parametrize("shards", ["1GB", "30KB"])
def test_pretraining_computes_what_transformers_computes(tmp_path: Path, text: Path, shards: str) -> None:
    model = a_bert(tmp_path / "model", shards=shards)

    logits, loss = logits_and_loss_of(tmp_path / "model", *flags(text), "--seed", 5)

    with torch.no_grad():
        batch = pairs(text)
        assert relative_error(logits, row(model(**batch))) < 1e-4
        theirs = model.train()(**masked(batch, 5)).loss
    assert loss == pytest.approx(float(theirs), rel=1e-5), "masking and dropout are drawn differently"


def both(of: Any) -> Any:
    return torch.stack([of.start_logits, of.end_logits], -1)


def test_question_answering_computes_what_transformers_computes(tmp_path: Path, squad: Path) -> None:
    model = a_bert(tmp_path / "model", "BertForQuestionAnswering")

    logits, loss = logits_and_loss_of(tmp_path / "model", *flags(squad), "--seed", 5)

    batch = questions(squad)
    with torch.no_grad():
        theirs = both(model(**batch))
        torch.manual_seed(5)
        trained = model.train()(**batch).loss
    assert relative_error(logits.view(SAMPLES, LENGTH, 2), theirs) < 1e-4, "including [PAD]"
    assert loss == pytest.approx(float(trained), rel=1e-5)


HEADS = {"BertForPreTraining": ("text", pairs, row), "BertForQuestionAnswering": ("squad", questions, both)}


@pytest.mark.parametrize("head", HEADS)
def test_trained_bert_is_exported_for_transformers(tmp_path: Path, head: str, request: pytest.FixtureRequest) -> None:
    fixture, batch_of, logits_in = HEADS[head]
    data = request.getfixturevalue(fixture)
    model = a_bert(tmp_path / "model", head)
    ran = run(
        *("cairn_train", "--init-from", tmp_path / "model", *flags(data), "--steps", 3, "--optimizer", "adamw"),
        *("--lr", 0.01, "--checkpoint-dir", tmp_path / "run", "--host-memory", "64MiB"),
    )
    assert ran.returncode == 0, ran.stderr
    assert "skipped" not in ran.stdout and "missing" not in ran.stdout
    model.config.save_pretrained(tmp_path / "exported")

    names, out = ("bert.*", "cls.*", "qa_outputs.*"), tmp_path / "exported/model.safetensors"
    names = names[:2] if head == "BertForPreTraining" else names[::2]
    exporting = run("cairn", "export", tmp_path / "run", "--names", *names, "--out", out)
    assert exporting.returncode == 0, exporting.stderr

    exported, report = getattr(transformers, head).from_pretrained(tmp_path / "exported", output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    tied = {name for name in exported.state_dict() if name.startswith(DECODER)}
    assert set(safetensors.load_file(out)) == set(exported.state_dict()) - tied
    batch = batch_of(data)
    with torch.no_grad():
        theirs = logits_in(exported.eval()(**batch))
        assert relative_error(theirs, logits_in(model(**batch))) > 1e-2, "training changed nothing"
    assert relative_error(logits_of(tmp_path / "exported", *flags(data)), theirs.flatten()) < 1e-4


def change(folder: Path, **changes: Any) -> None:
    """Adds tensors, and removes those that are None."""
    path = folder / "model.safetensors"
    weights = safetensors.load_file(path) | changes
    safetensors.save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, path)


def test_tied_and_old_names_are_accepted(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "model"
    a_bert(folder)
    logits = logits_of(folder, *flags(text))
    weights = safetensors.load_file(folder / "model.safetensors")
    assert not any(name.startswith(DECODER) for name in weights)

    tied = {DECODER + "weight": weights[WORD].clone(), DECODER + "bias": weights["cls.predictions.bias"].clone()}
    change(folder, **tied)
    assert torch.equal(logits_of(folder, *flags(text)), logits)

    # Files converted from TensorFlow have these names, the published ones too.
    for name, tensor in weights.items():
        if "LayerNorm." in name:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            change(folder, **{name: None, old: tensor})
    assert torch.equal(logits_of(folder, *flags(text)), logits)

    change(folder, **{DECODER + "bias": tied[DECODER + "bias"] + 1})
    why = f'tensor "{DECODER}bias": expected F32 [64] with the bytes of "cls.predictions.bias", found other bytes'
    refused(why, "--init-from", folder, *flags(text))


def test_question_answering_starts_from_a_pretraining(tmp_path: Path, squad: Path) -> None:
    folder = tmp_path / "model"
    encoder = a_bert(folder).bert.state_dict()
    ran = run(
        *("cairn_train", "--init-from", folder, *flags(squad), "--steps", 1, "--lr", 1e-30),
        *("--checkpoint-dir", tmp_path / "run", "--host-memory", "64MiB"),
    )

    assert ran.returncode == 0, ran.stderr
    heads = [
        name for name in safetensors.load_file(folder / "model.safetensors") if ".pooler." in name or "cls." in name
    ]
    path = folder / "model.safetensors"
    assert f"{path}: missing, keeping initial weights: qa_outputs.weight qa_outputs.bias\n" in ran.stdout
    said = ran.stdout.split(f"{path}: skipped: ")[1].split("\n")[0].split()
    assert len(heads) == 9 and sorted(said) == sorted(heads)
    out = tmp_path / "exported.safetensors"
    run("cairn", "export", tmp_path / "run", "--names", "bert.*", "qa_outputs.*", "--out", out)
    learned = safetensors.load_file(out)
    assert 0.01 < float(learned["qa_outputs.weight"].std()) < 0.03, "initialised like transformers'"
    for name, tensor in learned.items():
        if name.startswith("bert."):
            assert torch.equal(tensor, encoder[name.removeprefix("bert.")]), name


def test_the_padding_token_gets_no_gradient(tmp_path: Path, squad: Path) -> None:
    before = a_bert(tmp_path / "model", "BertForQuestionAnswering").state_dict()[WORD]
    learning = (
        "--steps",
        1,
        "--optimizer",
        "adamw",
        "--lr",
        0.01,
        "--checkpoint-dir",
        tmp_path / "run",
        "--host-memory",
        "64MiB",
    )
    ran = run("cairn_train", "--init-from", tmp_path / "model", *flags(squad), *learning)
    assert ran.returncode == 0, ran.stderr

    run("cairn", "export", tmp_path / "run", "--names", WORD, "--out", tmp_path / "exported.safetensors")

    moved = (safetensors.load_file(tmp_path / "exported.safetensors")[WORD] - before).abs().amax(1)
    assert moved[SPECIAL["[PAD]"]] < 1e-3 < moved[len(SPECIAL) :].median(), "moved by more than weight decay"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"qa_outputs.bias": torch.zeros(2)}, 'tensor "qa_outputs.weight": expected F32 [2, 32], found none'),
        (
            {"classifier.bias": torch.zeros(2)},
            'tensor "classifier.bias": expected no tensor of this name, found F32 [2]',
        ),
        (
            {"bert.embeddings.LayerNorm.bias": None},
            'tensor "bert.embeddings.LayerNorm.bias": expected F32 [32], found none',
        ),
        (
            {"bert.embeddings.LayerNorm.gamma": torch.zeros(32)},
            'tensor "bert.embeddings.LayerNorm.weight": expected it only once, found it also as LayerNorm.gamma',
        ),
    ],
    ids=["half a head", "foreign", "missing", "twice"],
)
def test_the_rest_of_pretrained_weights_must_fit(
    tmp_path: Path, squad: Path, changes: dict[str, Any], why: str
) -> None:
    a_bert(tmp_path / "model")
    change(tmp_path / "model", **changes)

    refused(f"{tmp_path / 'model/model.safetensors'}: {why}", "--init-from", tmp_path / "model", *flags(squad))


def test_pretraining_does_not_start_from_question_answering(tmp_path: Path, text: Path) -> None:
    a_bert(tmp_path / "model", "BertForQuestionAnswering")

    refused(
        'tensor "bert.pooler.dense.weight": expected F32 [32, 32], found none',
        "--init-from",
        tmp_path / "model",
        *flags(text),
    )


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("hidden_act", "relu", '"gelu"'),
        ("hidden_dropout_prob", 0.0, "0.1"),
        ("attention_probs_dropout_prob", 0.2, "0.1"),
        ("layer_norm_eps", 1e-5, "1e-12"),
        ("is_decoder", True, "false"),
        ("tie_word_embeddings", False, "true"),
        ("position_embedding_type", "relative_key", '"absolute"'),
        ("intermediate_size", "80", "an unsigned integer"),
        ("type_vocab_size", None, "an unsigned integer"),
    ],
)
def test_an_unsupported_config_is_refused(tmp_path: Path, text: Path, field: str, value: Any, expected: str) -> None:
    path = tmp_path / "model/config.json"
    a_bert(tmp_path / "model")
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))

    refused(f"{path}: {field}: expected {expected}, found", "--init-from", tmp_path / "model", *flags(text))


def test_the_docs_lines_train_on_questions(tmp_path: Path) -> None:
    # Instead of downloads: a model, its tokenizer, and questions about a licence.
    a_bert(tmp_path / "model", vocab_size=8192, max_position_embeddings=512)
    prepare = [ROOT / "scripts/prepare-data", "text", "/usr/share/common-licenses", tmp_path / "pieces"]
    subprocess.run([*prepare, "--kind", "wordpiece"], check=True, stdout=subprocess.DEVNULL)
    shutil.copy(tmp_path / "pieces/tokenizer.json", tmp_path / "model")
    context = Path("/usr/share/common-licenses/BSD").read_text()
    answers = [{"text": "Redistributions", "answer_start": context.index("Redistributions")}]
    qas = [{"id": "1", "question": "What must keep the notice?", "answers": answers}]
    squad = {"version": "1.1", "data": [{"title": "BSD", "paragraphs": [{"context": context, "qas": qas}]}]}
    (tmp_path / "train.json").write_text(json.dumps(squad))
    here = {
        "/data": tmp_path,
        "/mnt/nvme": tmp_path,
        "train-v2.0.json": tmp_path / "train.json",
        "bert-base-uncased": tmp_path / "model",
    }

    lines = run_docs_lines("/data/squad", here, f" --steps 2 --host-memory 64MiB --report {tmp_path / 'report.json'}")

    assert len(lines) == 2 and "--init-from" in lines[1]
    assert len(json.loads((tmp_path / "report.json").read_text())["steps"]) == 2
