"""Turns data into files that cairn_train maps. These are the options, which need no package.

scripts/prepare-data runs this file to check them before it installs anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

ABOUT = "Turns data into files that cairn_train maps."
EPILOG = (
    "`scripts/prepare-data KIND --help` lists a kind's options. What it needs is installed first, in a few seconds. "
    "Exit status: 0 written, 1 invalid input, 2 invalid arguments."
)
# The smallest vocabularies: bpe has every byte, and four special tokens.
LEAST = {"bpe": 260, "wordpiece": 100, "word": 3}
MAX_VOCABULARY = 1 << 24
MIN_ROOM = len("C?SaS")  # [CLS], one token of the question, [SEP], one of the context, [SEP].


def add_tokenizer(parser: argparse.ArgumentParser, kinds: Iterable[str]) -> None:
    """The first kind is the default."""
    default, *others = kinds
    trained = parser.add_mutually_exclusive_group()
    trained.add_argument("--tokenizer", type=Path, help="a Hugging Face tokenizer.json (default: train one)")
    if others:
        trained.add_argument(
            "--kind",
            choices=[default, *others],
            default=default,
            help=f"kind of tokenizer to train: byte-level BPE, BERT's, or whole words (default: {default})",
        )
    parser.add_argument(
        "--vocabulary",
        type=int,
        help="maximum vocabulary to train (default: 8192" + ("; all words for word)" if others else ")"),
    )
    parser.set_defaults(kind=default)


def parse(given: list[str]) -> argparse.Namespace:
    """The options. Ends with exit status 2 if they are wrong."""
    parser = argparse.ArgumentParser(prog="scripts/prepare-data", description=ABOUT, epilog=EPILOG)
    kinds = parser.add_subparsers(dest="what", metavar="KIND")
    text = kinds.add_parser("text", help="turn UTF-8 text into tokens for a language model")
    text.add_argument("source", nargs="+", type=Path, help="a file, or a folder including its subfolders")
    wikitext = kinds.add_parser("wikitext", help="turn WikiText-2 or -103 into tokens; articles are documents")
    wikitext.add_argument("folder", type=Path, help="folder with wiki.train.tokens and its siblings")
    wikitext.add_argument("--split", choices=["train", "valid", "test"], default="train", help="(default: train)")
    questions = kinds.add_parser("squad", help="turn SQuAD's JSON, 1.1 or 2.0, into questions with answer positions")
    questions.add_argument("source", type=Path, help="a file such as train-v2.0.json")
    questions.add_argument("--sequence", type=int, default=384, help="maximum tokens of a feature (default: 384)")
    questions.add_argument(
        "--stride", type=int, default=128, help="tokens by which features of one context overlap (default: 128)"
    )
    packed = kinds.add_parser("pictures", help="turn JPEG pictures in the ImageNet layout into two files of pixels")
    packed.add_argument("source", type=Path, help="the folder with a subfolder for each class, in it or in its train")
    for one in (text, wikitext, questions, packed):
        one.add_argument("out", type=Path, help="the folder to create")
    for one, trained in ((text, LEAST), (wikitext, LEAST), (questions, ["wordpiece"])):
        add_tokenizer(one, trained)
    options = parser.parse_args(given)
    if options.what is None:
        parser.error("expected a KIND, of text, wikitext, squad and pictures")
    if getattr(options, "vocabulary", None) is not None:
        if options.tokenizer:
            parser.error("--vocabulary: not allowed with argument --tokenizer")
        if not (least := LEAST[options.kind]) <= options.vocabulary <= MAX_VOCABULARY:
            parser.error(f"--vocabulary {options.vocabulary}: expected {least} to {MAX_VOCABULARY}")
    if options.what == "squad" and not 0 <= options.stride <= options.sequence - MIN_ROOM:
        parser.error(
            f"--stride {options.stride}: expected 0 to --sequence minus {MIN_ROOM}, {options.sequence - MIN_ROOM}"
        )
    return options


if __name__ == "__main__":
    parse(sys.argv[1:])
