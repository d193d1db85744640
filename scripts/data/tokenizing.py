"""Hugging Face's tokenizers: a given one, or one trained on the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from sources import Refused
from tokenizers import Encoding, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # Numbered as OPT's tokenizer numbers them.
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # Numbered as BertWordPieceTokenizer numbers them.
UNKNOWN, LINE_END = "<unk>", "<eos>"  # As WikiText has them.

Documents = Callable[[], Iterable[str]]  # Each call gives all of them.


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library has no narrower one)
        raise Refused(f"{path}: no tokenizer: {error}") from None
    if not tokenizer.get_vocab_size():
        raise Refused(f"{path}: no tokenizer: its vocabulary is empty")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_bpe(documents: Documents, vocabulary: int) -> Tokenizer:
    """Byte-level BPE, which splits any text and can put it together again. A document begins with </s>, as OPT's do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(), trainer)
    begin = "</s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, SPECIAL.index(begin))]
    )
    return tokenizer


def wordpiece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def train_wordpiece(documents: Documents, vocabulary: int) -> Tokenizer:
    """BERT's, uncased. A document is framed by [CLS] and [SEP], which divides a pair as well."""
    tokenizer = wordpiece({})
    counts: Counter[str] = Counter()
    for text in documents():
        counts.update(tokenizer.normalizer.normalize_str(text))
    letters = sorted((letter for letter in counts if not letter.isspace()), key=lambda of: (-counts[of], of))
    letters = sorted(letters[: min(1000, vocabulary // 4)])
    # The trainer numbers letters inside words as it meets them, in another order each time, unless they are there.
    there = [*BERT_SPECIAL, *letters, *("##" + letter for letter in letters)]
    tokenizer.train_from_iterator(
        documents(),
        trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=there, limit_alphabet=0, show_progress=False),
    )
    # Anew, without the letters that the trained one takes for special, and would find anywhere.
    tokenizer = wordpiece(tokenizer.get_vocab())
    tokenizer.add_special_tokens(BERT_SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, BERT_SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def train_words(documents: Documents, vocabulary: int) -> Tokenizer:
    """What whitespace divides, numbered by frequency behind <unk> and <eos>, which is put at the end of each line."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\n|(?<=[^\n])\z"), f" {LINE_END} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Without special ones: the trainer would give a number of its own to one that the text has, too.
    tokenizer.train_from_iterator(documents(), trainers.WordLevelTrainer(vocab_size=vocabulary, show_progress=False))
    found: dict[str, int] = tokenizer.get_vocab()
    words = dict.fromkeys([UNKNOWN, LINE_END, *sorted(found, key=found.__getitem__)])
    tokenizer.model = models.WordLevel({w: i for i, w in enumerate(list(words)[:vocabulary])}, unk_token=UNKNOWN)
    return tokenizer


def encode(tokenizer: Tokenizer, *text: str, special: bool = True) -> Encoding:
    """Of one text, or of a pair."""
    try:
        return tokenizer.encode(*text, add_special_tokens=special)
    except Exception as error:  # noqa: BLE001 (the library has no narrower one)
        raise Refused(f"the tokenizer cannot take {text[0][:40]!r}: {error}") from None


class Kind(NamedTuple):
    train: Callable[[Documents, int], Tokenizer]
    least: int  # Of its vocabulary.
    most: int  # Unless said otherwise.


BYTES = 256
MOST = 1 << 24  # Of a vocabulary.
KINDS = {
    "bpe": Kind(train_bpe, BYTES + len(SPECIAL), 8192),
    "wordpiece": Kind(train_wordpiece, 100, 8192),
    "word": Kind(train_words, 3, MOST),
}


def vocabulary_of(tokenizer: Tokenizer) -> int:
    return 1 + max(tokenizer.get_vocab().values())


def special_tokens(tokenizer: Tokenizer) -> dict[str, object]:
    """A field of data.json, where there are any."""
    found = {name: tokenizer.token_to_id(name) for name in BERT_SPECIAL if tokenizer.token_to_id(name) is not None}
    return {"special_tokens": found} if found else {}
