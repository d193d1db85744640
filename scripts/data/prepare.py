"""Turns data into compact files that cairn_train maps. Called by scripts/prepare-data, which installs the packages.

OUT is a folder that is created atomically. See pictures.py for pictures. For text, each file is a document, in the
order of their names, or each article of a WikiText file; all must be UTF-8. OUT then contains:

tokens.bin      the tokens' numbers, little-endian, 2 or 4 bytes each
data.json       metadata: kind ("text" or "questions"), dtype ("u16" or "u32"), tokens (their number), vocabulary
                (every token is below it), special_tokens (by name, the numbers of BERT's special tokens that the
                tokenizer has), checksum (zlib's CRC-32 of tokens.bin), source, tokenizer; for questions also
                features (their number), sequence (maximum tokens in a feature) and features_checksum
features.bin    for questions: how tokens.bin is cut into features. For each, four little-endian numbers of 4 bytes:
                its number of tokens, the positions of the context's first, the answer's first and its last token
tokenizer.json  the Hugging Face tokenizer, given or trained
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pictures
import squad
from arguments import parse
from sources import InvalidInput, articles_of, files_of, printable, read_text
from tokenizers import Tokenizer
from tokenizing import KINDS, Documents, encode, load_tokenizer, special_tokens, vocabulary_of


@contextmanager
def created_atomically(out: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `out` at the end, or removed on failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        os.rename(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


class Numbers:
    """Writes numbers to a file, little-endian, each below the limit."""

    def __init__(self, file: BinaryIO, code: str, limit: int = 1 << 32) -> None:
        self.file, self.code, self.limit = file, code, limit
        self.count = self.crc = 0

    def write(self, numbers: Sequence[int]) -> None:
        if max(numbers, default=0) >= self.limit:
            raise InvalidInput(f"the tokenizer gives token {max(numbers)}, but its vocabulary has only {self.limit}")
        packed = array.array(self.code, numbers)
        self.count += len(packed)
        if sys.byteorder == "big":
            packed.byteswap()
        self.file.write(packed)
        self.crc = zlib.crc32(packed, self.crc)

    @property
    def checksum(self) -> str:
        return f"crc32:{self.crc:08x}"


def tokens_to(file: BinaryIO, tokenizer: Tokenizer) -> Numbers:
    vocabulary = vocabulary_of(tokenizer)
    return Numbers(file, "H" if vocabulary <= 1 << 16 else "I", vocabulary)


def write_about(out: Path, kind: str, tokens: Numbers, tokenizer: Tokenizer, source: list[Path], **more: object) -> str:
    """Writes the files beside the tokens. Returns a summary."""
    tokenizer.save(str(out / "tokenizer.json"))
    about: dict[str, object] = {
        "kind": kind,
        "dtype": {"H": "u16", "I": "u32"}[tokens.code],
        "tokens": tokens.count,
        "vocabulary": vocabulary_of(tokenizer),
        **special_tokens(tokenizer),
        "checksum": tokens.checksum,
        **more,
        "source": [printable(path) for path in source],
        "tokenizer": "tokenizer.json",
    }
    (out / "data.json").write_text(json.dumps(about, indent=1) + "\n")
    return f"{about['tokens']} tokens, vocabulary {about['vocabulary']}"


def tokenizer_for(options: argparse.Namespace, documents: Documents) -> Tokenizer:
    if options.tokenizer:
        return load_tokenizer(options.tokenizer)
    kind = KINDS[options.kind]
    return kind.train(documents, options.vocabulary or kind.most)


def prepare_documents(documents: Documents, sources: list[Path], options: argparse.Namespace) -> str:
    count = sum(1 for _ in documents())  # Finds bad input before the tokenizer's training, which may take long.
    tokenizer = tokenizer_for(options, documents)
    with created_atomically(options.out) as out:
        with open(out / "tokens.bin", "wb") as file:
            tokens = tokens_to(file, tokenizer)
            for document in documents():
                tokens.write(encode(tokenizer, document).ids)
        return f"{count} documents, {write_about(out, 'text', tokens, tokenizer, sources)}"


def prepare_text(options: argparse.Namespace) -> str:
    files = files_of(options.source)
    return prepare_documents(lambda: map(read_text, files), options.source, options)


def prepare_wikitext(options: argparse.Namespace) -> str:
    path: Path = options.folder / f"wiki.{options.split}.tokens"
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    return prepare_documents(lambda: articles_of(path), [path], options)


def prepare_squad(options: argparse.Namespace) -> str:
    questions = list(squad.questions_of(options.source, read_text(options.source)))
    tokenizer = tokenizer_for(options, lambda: squad.texts_of(questions))
    for name in ("[CLS]", "[SEP]", "[PAD]", "[UNK]"):
        if tokenizer.token_to_id(name) is None:
            raise InvalidInput(f"{options.tokenizer}: expected a tokenizer with {name}, found none")
    with created_atomically(options.out) as out:
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
    return f"{len(questions)} questions in {features.count // 4} features, {said}"


def prepare_pictures(options: argparse.Namespace) -> str:
    found = pictures.pictures_of(options.source)  # Before OUT is created, which may be inside the source.
    with created_atomically(options.out) as out:
        return pictures.pack(options.source, *found, out)


PREPARE = {"text": prepare_text, "wikitext": prepare_wikitext, "squad": prepare_squad, "pictures": prepare_pictures}


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        if options.out.exists():
            raise InvalidInput(f"{options.out}: already exists")
        print(f"{printable(options.out)}: {PREPARE[options.what](options)}")
    except (InvalidInput, OSError) as error:
        print(f"prepare-data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
