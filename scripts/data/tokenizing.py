"""Hugging Face tokenizers, given or trained on the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from arguments import MAX_VOCABULARY
from sources import InvalidInput
from tokenizers import Encoding, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # In the order of OPT's tokenizer.
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # In the order of BertWordPieceTokenizer.
UNKNOWN, LINE_END = "<unk>", "<eos>"  # WikiText's names.

Documents = Callable[[], Iterable[str]]  # Each call returns all documents.


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library raises no narrower one)
        raise InvalidInput(f"{path}: not a tokenizer: {error}") from None
    if not tokenizer.get_vocab_size():
        raise InvalidInput(f"{path}: not a tokenizer: empty vocabulary")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_bpe(documents: Documents, vocabulary: int) -> Tokenizer:
    """Byte-level BPE, which is lossless for any text. A document begins with </s>, like OPT's."""
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
    """BERT's, uncased. A document is framed by [CLS] and [SEP]; [SEP] also separates a pair."""
    tokenizer = wordpiece({})
    counts: Counter[str] = Counter()
    for text in documents():
        counts.update(tokenizer.normalizer.normalize_str(text))
    letters = sorted((letter for letter in counts if not letter.isspace()), key=lambda of: (-counts[of], of))
    letters = sorted(letters[: min(1000, vocabulary // 4)])
    # The trainer numbers letters inside words in a random order, unless they are given.
    given = [*BERT_SPECIAL, *letters, *("##" + letter for letter in letters)]
    tokenizer.train_from_iterator(
        documents(),
        trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=given, limit_alphabet=0, show_progress=False),
    )
    # A new tokenizer, because the trained one treats the letters as special tokens and finds them anywhere.
    tokenizer = wordpiece(tokenizer.get_vocab())
    tokenizer.add_special_tokens(BERT_SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, BERT_SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def train_words(documents: Documents, vocabulary: int) -> Tokenizer:
    """Words separated by whitespace, numbered by frequency after <unk> and <eos>. <eos> ends each line."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\n|(?<=[^\n])\z"), f" {LINE_END} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Without special tokens: the trainer would number those in the text a second time.
    tokenizer.train_from_iterator(documents(), trainers.WordLevelTrainer(vocab_size=vocabulary, show_progress=False))
    found: dict[str, int] = tokenizer.get_vocab()
    words = dict.fromkeys([UNKNOWN, LINE_END, *sorted(found, key=found.__getitem__)])
    tokenizer.model = models.WordLevel({w: i for i, w in enumerate(list(words)[:vocabulary])}, unk_token=UNKNOWN)
    return tokenizer


def encode(tokenizer: Tokenizer, *text: str, special: bool = True) -> Encoding:
    """Encodes one text or a pair."""
    try:
        return tokenizer.encode(*text, add_special_tokens=special)
    except Exception as error:  # noqa: BLE001 (the library raises no narrower one)
        raise InvalidInput(f"the tokenizer cannot encode {text[0][:40]!r}: {error}") from None


class Kind(NamedTuple):
    train: Callable[[Documents, int], Tokenizer]
    # The default maximum size of the vocabulary.
    most: int


KINDS = {
    "bpe": Kind(train_bpe, 8192),
    "wordpiece": Kind(train_wordpiece, 8192),
    "word": Kind(train_words, MAX_VOCABULARY),
}


def vocabulary_of(tokenizer: Tokenizer) -> int:
    return 1 + max(tokenizer.get_vocab().values())


def special_tokens(tokenizer: Tokenizer) -> dict[str, object]:
    """The field special_tokens of data.json, if there are any."""
    found = {name: tokenizer.token_to_id(name) for name in BERT_SPECIAL if tokenizer.token_to_id(name) is not None}
    return {"special_tokens": found} if found else {}
