"""Turns text into tokens in a file that cairn_train maps. Called by scripts/prepare-data, which installs what it takes.

Each file is a document, in the order of their names, or each article of a WikiText file; all must be UTF-8. OUT is a
folder, made whole or not at all:

tokens.bin      the tokens' numbers, one behind the other, little-endian, of 2 or 4 bytes each
data.json       what is in it: kind ("text"), dtype ("u16" or "u32"), tokens (how many), vocabulary (every number lies
                below it), checksum (CRC-32 of tokens.bin, as zlib has it), source, tokenizer
tokenizer.json  Hugging Face's tokenizer, the one given or the one that was trained
"""

from __future__ import annotations

import argparse
import array
import json
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # Numbered as OPT's tokenizer numbers them.
UNKNOWN, LINE_END = "<unk>", "<eos>"  # As WikiText has them.
HEADING = re.compile(r" = (?!= ).+ = ")  # Of an article; those within it have more signs.

Documents = Callable[[], Iterator[str]]


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


def articles_of(path: Path) -> Iterator[str]:
    """The file's articles, which put together are the file. One begins at its heading, behind an empty line."""
    article: list[str] = []
    begun = False
    empty = True
    with open(path, "rb") as file:
        for number, content in enumerate(file, 1):
            try:
                line = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Refused(f"{path}: line {number}: not UTF-8 (0x{content[error.start]:02x})") from None
            if empty and HEADING.fullmatch(line.rstrip("\n")):
                if begun:
                    yield "".join(article)
                    article = []
                begun = True
            empty = not line.strip()
            if not begun and not empty:
                raise Refused(f'{path}: line {number}: expected an article\'s " = Title = ", found {line[:40]!r}')
            article.append(line)
    if not begun:
        raise Refused(f"{path}: no article in it")
    yield "".join(article)


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library has no narrower one)
        raise Refused(f"{path}: no tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_pieces(documents: Documents, vocabulary: int) -> Tokenizer:
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


class Kind(NamedTuple):
    train: Callable[[Documents, int], Tokenizer]
    least: int  # Of its vocabulary.
    most: int  # Unless said otherwise.


KINDS = {"bpe": Kind(train_pieces, 256 + len(SPECIAL), 8192), "word": Kind(train_words, 3, 1 << 32)}


def write_text(documents: Documents, tokenizer: Tokenizer, sources: list[Path], out: Path) -> dict[str, object]:
    vocabulary = 1 + max(tokenizer.get_vocab().values())
    dtype, code = ("u16", "H") if vocabulary <= 1 << 16 else ("u32", "I")
    tokens = checksum = 0
    with open(out / "tokens.bin", "wb") as file:
        for document in documents():
            ids = array.array(code, tokenizer.encode(document).ids)
            if sys.byteorder == "big":
                ids.byteswap()
            file.write(ids)
            checksum = zlib.crc32(ids, checksum)
            tokens += len(ids)
    tokenizer.save(str(out / "tokenizer.json"))
    about: dict[str, object] = {
        "kind": "text",
        "dtype": dtype,
        "tokens": tokens,
        "vocabulary": vocabulary,
        "checksum": f"crc32:{checksum:08x}",
        "source": [str(source) for source in sources],
        "tokenizer": "tokenizer.json",
    }
    (out / "data.json").write_text(json.dumps(about, indent=1) + "\n")
    return about


def make_tokenizer(documents: Documents, options: argparse.Namespace) -> Tokenizer:
    if options.tokenizer:
        return load_tokenizer(options.tokenizer)
    kind = KINDS[options.kind]
    return kind.train(documents, options.vocabulary or kind.most)


def prepare(documents: Documents, sources: list[Path], of: str, options: argparse.Namespace) -> None:
    out: Path = options.out
    if out.exists():
        raise Refused(f"{out}: is there already")
    count = sum(1 for _ in documents())  # All are read before the tokenizer's training, which may take long.
    tokenizer = make_tokenizer(documents, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        about = write_text(documents, tokenizer, sources, temporary)
        temporary.chmod(0o755)
        os.rename(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    print(f"{out}: {about['tokens']} tokens of {count} {of}, vocabulary {about['vocabulary']}")


def prepare_text(options: argparse.Namespace) -> None:
    files = files_of(options.source)
    prepare(lambda: map(read_text, files), options.source, "files", options)


def prepare_wikitext(options: argparse.Namespace) -> None:
    path: Path = options.folder / f"wiki.{options.split}.tokens"
    if not path.is_file():
        raise Refused(f"{path}: no such file")
    prepare(lambda: articles_of(path), [path], "articles", options)


def add_tokenizer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="the folder to make")
    trained = parser.add_mutually_exclusive_group()
    trained.add_argument("--tokenizer", type=Path, help="Hugging Face's tokenizer.json (default: one is trained)")
    trained.add_argument(
        "--kind", choices=KINDS, default="bpe", help="of the tokenizer trained: byte-level BPE, or words as they are"
    )
    parser.add_argument(
        "--vocabulary", type=int, help="of the tokenizer trained, at most (default: 8192 for bpe, all words for word)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="prepare-data", description="Turns data into files that cairn_train maps.")
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    text = kinds.add_parser("text", help="any text in UTF-8, to tokens for a language model")
    text.add_argument("source", nargs="+", type=Path, help="a file, or a folder with all that is in it")
    add_tokenizer_options(text)
    text.set_defaults(prepare=prepare_text)
    wikitext = kinds.add_parser("wikitext", help="WikiText-2 or -103 as published, to the same; articles are documents")
    wikitext.add_argument("folder", type=Path, help="where wiki.train.tokens and the like are")
    add_tokenizer_options(wikitext)
    wikitext.add_argument("--split", choices=["train", "valid", "test"], default="train", help="(default: train)")
    wikitext.set_defaults(prepare=prepare_wikitext)
    options = parser.parse_args()
    if options.vocabulary is not None:
        if options.tokenizer:
            parser.error("--vocabulary: not allowed with argument --tokenizer")
        if options.vocabulary < (least := KINDS[options.kind].least):
            parser.error(f"--vocabulary {options.vocabulary}: expected at least {least}")
    try:
        options.prepare(options)
    except (Refused, OSError) as error:
        print(f"prepare-data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
