"""Turns text into tokens in a file that cairn_train maps. Called by scripts/prepare-data, which installs what it takes.

Each file is a document, in the order of their names, and must be UTF-8. OUT is a folder, made whole or not at all:

tokens.bin      the tokens' numbers, one behind the other, little-endian, of 2 or 4 bytes each
data.json       what is in it: kind ("text" or "questions"), dtype ("u16" or "u32"), tokens (how many), vocabulary
                (every number lies below it), special_tokens (the numbers of those of BERT's that the tokenizer has, by
                name), checksum (CRC-32 of tokens.bin, as zlib has it), source, tokenizer; of questions also features
                (how many), sequence (the most tokens that one of them may have) and features_checksum
features.bin    of questions: how tokens.bin is cut into features. Of each four numbers, little-endian, of 4 bytes:
                its tokens, and of these the first of the context and the answer's first and last
tokenizer.json  Hugging Face's tokenizer, the one given or the one that was trained
"""

from __future__ import annotations

import argparse
import array
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import squad
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # Numbered as OPT's tokenizer numbers them.
LEAST_VOCABULARY = 256 + len(SPECIAL)
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # Numbered as BertWordPieceTokenizer numbers them.

Texts = Callable[[], Iterable[str]]  # Each call gives all of them.


class Refused(Exception):
    pass


def files_of(sources: list[Path]) -> list[Path]:
    """Every file once, however many links lead to it."""
    found: dict[Path, None] = {}
    for source in sources:
        if not source.exists():
            raise Refused(f"{source}: no such file or folder")
        inside = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        found.update((path.resolve(), None) for path in inside)
    if not found:
        raise Refused(f"{' '.join(map(str, sources))}: no file in it")
    return list(found)


def read_text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: byte {error.start}: not UTF-8 (0x{content[error.start]:02x})") from None


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library has no narrower one)
        raise Refused(f"{path}: no tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_bpe(texts: Texts, vocabulary: int) -> Tokenizer:
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
    tokenizer.train_from_iterator(texts(), trainer)
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


def train_wordpiece(texts: Texts, vocabulary: int) -> Tokenizer:
    """BERT's, uncased. A document is framed by [CLS] and [SEP], which divides a pair as well."""
    tokenizer = wordpiece({})
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(tokenizer.normalizer.normalize_str(text))
    letters = sorted((letter for letter in counts if not letter.isspace()), key=lambda of: (-counts[of], of))
    letters = sorted(letters[: min(1000, vocabulary // 4)])
    # The trainer numbers letters inside words as it meets them, in another order each time, unless they are there.
    there = [*BERT_SPECIAL, *letters, *("##" + letter for letter in letters)]
    tokenizer.train_from_iterator(
        texts(),
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


TRAIN = {"bpe": train_bpe, "wordpiece": train_wordpiece}


def tokenizer_for(options: argparse.Namespace, kind: str, texts: Texts) -> Tokenizer:
    return load_tokenizer(options.tokenizer) if options.tokenizer else TRAIN[kind](texts, options.vocabulary)


def special_tokens(tokenizer: Tokenizer) -> dict[str, object]:
    """A field of data.json, where there are any."""
    found = {name: tokenizer.token_to_id(name) for name in BERT_SPECIAL if tokenizer.token_to_id(name) is not None}
    return {"special_tokens": found} if found else {}


@contextmanager
def made_whole(out: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `out` at the end, or vanishes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        os.rename(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def refuse_existing(out: Path) -> None:
    if out.exists():
        raise Refused(f"{out}: is there already")


class Numbers:
    """Writes numbers to a file, little-endian."""

    def __init__(self, file: BinaryIO, code: str) -> None:
        self.file, self.code = file, code
        self.count = self.crc = 0

    def write(self, numbers: Iterable[int]) -> None:
        packed = array.array(self.code, numbers)
        self.count += len(packed)
        if sys.byteorder == "big":
            packed.byteswap()
        self.file.write(packed)
        self.crc = zlib.crc32(packed, self.crc)

    @property
    def checksum(self) -> str:
        return f"crc32:{self.crc:08x}"


def vocabulary_of(tokenizer: Tokenizer) -> int:
    return 1 + max(tokenizer.get_vocab().values())


def tokens_to(file: BinaryIO, tokenizer: Tokenizer) -> Numbers:
    return Numbers(file, "H" if vocabulary_of(tokenizer) <= 1 << 16 else "I")


def write_about(out: Path, kind: str, tokens: Numbers, tokenizer: Tokenizer, source: list[Path], **more: object) -> str:
    """What lies beside the tokens. Returns what to say of them."""
    tokenizer.save(str(out / "tokenizer.json"))
    about: dict[str, object] = {
        "kind": kind,
        "dtype": {"H": "u16", "I": "u32"}[tokens.code],
        "tokens": tokens.count,
        "vocabulary": vocabulary_of(tokenizer),
        **special_tokens(tokenizer),
        "checksum": tokens.checksum,
        **more,
        "source": [str(path) for path in source],
        "tokenizer": "tokenizer.json",
    }
    (out / "data.json").write_text(json.dumps(about, indent=1) + "\n")
    return f"{about['tokens']} tokens, vocabulary {about['vocabulary']}"


def prepare_text(options: argparse.Namespace) -> None:
    refuse_existing(options.out)
    files = files_of(options.source)
    for path in files:
        read_text(path)  # Before the tokenizer's training, which may take long.
    tokenizer = tokenizer_for(options, options.kind, lambda: map(read_text, files))
    with made_whole(options.out) as out:
        with open(out / "tokens.bin", "wb") as file:
            tokens = tokens_to(file, tokenizer)
            for path in files:
                tokens.write(tokenizer.encode(read_text(path)).ids)
        said = write_about(out, "text", tokens, tokenizer, options.source)
    print(f"{options.out}: {len(files)} files, {said}")


def prepare_squad(options: argparse.Namespace) -> None:
    refuse_existing(options.out)
    questions = list(squad.questions_of(options.source, read_text(options.source)))
    tokenizer = tokenizer_for(options, "wordpiece", lambda: squad.texts_of(questions))
    for name in ("[CLS]", "[SEP]", "[PAD]"):
        if tokenizer.token_to_id(name) is None:
            raise Refused(f"{options.tokenizer}: expected a tokenizer with {name}, found none")
    with made_whole(options.out) as out:
        with open(out / "tokens.bin", "wb") as file, open(out / "features.bin", "wb") as features_file:
            tokens, features = tokens_to(file, tokenizer), Numbers(features_file, "I")
            for question in questions:
                for feature in squad.features_of(tokenizer, question, options.sequence, options.stride):
                    tokens.write(feature.ids)
                    features.write([len(feature.ids), feature.context, feature.start, feature.end])
        tokenizer.no_truncation()
        said = write_about(
            out,
            "questions",
            tokens,
            tokenizer,
            [options.source],
            features=features.count // 4,
            sequence=options.sequence,
            features_checksum=features.checksum,
        )
    print(f"{options.out}: {len(questions)} questions in {features.count // 4} features, {said}")


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    tokens = parser.add_mutually_exclusive_group()
    tokens.add_argument("--tokenizer", type=Path, help="Hugging Face's tokenizer.json (default: one is trained)")
    tokens.add_argument(
        "--vocabulary", type=int, default=8192, help="of the tokenizer trained, at most (default: 8192)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="prepare-data", description="Turns data into files that cairn_train maps.")
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    text = kinds.add_parser("text", help="any text in UTF-8, to tokens for a language model")
    text.add_argument("source", nargs="+", type=Path, help="a file, or a folder with all that is in it")
    text.add_argument("out", type=Path, help="the folder to make")
    add_tokenizer(text)
    text.add_argument("--kind", choices=TRAIN, default="bpe", help="of the tokenizer trained (default: bpe)")
    text.set_defaults(prepare=prepare_text)
    questions = kinds.add_parser("squad", help="SQuAD's JSON, 1.1 or 2.0, to questions with places of answers")
    questions.add_argument("source", type=Path, help="a file as train-v2.0.json")
    questions.add_argument("out", type=Path, help="the folder to make")
    add_tokenizer(questions)
    questions.add_argument("--sequence", type=int, default=384, help="most tokens of a feature (default: 384)")
    questions.add_argument(
        "--stride", type=int, default=128, help="tokens that features of one context share (default: 128)"
    )
    questions.set_defaults(prepare=prepare_squad)
    options = parser.parse_args()
    if options.vocabulary < LEAST_VOCABULARY:
        parser.error(f"--vocabulary {options.vocabulary}: expected at least {LEAST_VOCABULARY}")
    if options.prepare is prepare_squad and not 0 <= options.stride <= options.sequence - squad.LEAST_ROOM:
        parser.error(
            f"--stride {options.stride}: expected 0 to --sequence less {squad.LEAST_ROOM}, "
            f"{options.sequence - squad.LEAST_ROOM}"
        )
    try:
        options.prepare(options)
    except (Refused, squad.NotSquad, OSError) as error:
        print(f"prepare-data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
