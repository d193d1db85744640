"""BERT against transformers': weights read, logits, loss in training with all that it draws, weights written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from models import logits_and_loss_of, relative_error, saved, write_text

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SAMPLES, LENGTH, VOCABULARY = 6, 40, 64
SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
WORDS = LENGTH - 3
WORD, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder."


def a_bert(folder: Path, head: str = "BertForPreTraining", shards: str = "1GB") -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=LENGTH + 2,
    )
    return saved(getattr(transformers, head)(config), folder, shards)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_text(tmp_path / "text", SAMPLES * WORDS + 5, VOCABULARY, first=len(SPECIAL), special_tokens=SPECIAL)
    return tmp_path / "text"


def noise(index: int) -> int:
    """As bench/trainer/data/synthetic.h has it."""
    bits = (1 << 64) - 1
    x = (index + 1) * 0x9E3779B97F4A7C15 & bits
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & bits
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & bits
    return x ^ (x >> 31)


def pairs(text: Path) -> dict[str, Any]:
    """What the data set must make of the text."""
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
    """What transformers' own masking makes of it, with a tokenizer of which it needs only the special tokens."""

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
    assert loss == pytest.approx(float(theirs), rel=1e-5), "masking and dropout are drawn in another way"
