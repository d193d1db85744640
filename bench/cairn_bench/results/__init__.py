"""Makes the tables of README.md and of the pages in bench/results from the CSVs there, and README's chart.

What a page has between <!-- begin NAME --> and <!-- end NAME --> is generated; what is around it is written by hand.
Without --check everything is written again, in a second. With --check nothing is written: the exit code is 1 if a block or the chart
differs from its CSVs, and each that does is named.
"""

import os
import re
import sys

from ..shared import RESULTS, ROOT
from ..shared.files import BadResult, content
from .blocks import BLOCKS, PICTURES

BLOCK = r"(<!-- begin (\S+) -->\n)(.*?)(<!-- end \2 -->\n)"


def add_arguments(parser):
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a block differs from the files")


def pages():
    """{path: text} of every page that may have generated blocks."""
    results = sorted(name for name in os.listdir(RESULTS) if name.endswith(".md"))
    paths = ["README.md", *(os.path.join(os.path.relpath(RESULTS, ROOT), name) for name in results)]
    return {path: content(os.path.join(ROOT, path)) for path in paths}


def check_names(texts):
    """Every block must be in one page, once."""
    found = [name for text in texts.values() for _, name, *_ in re.findall(BLOCK, text, re.DOTALL)]
    if unknown := sorted(set(found) - set(BLOCKS)):
        raise BadResult(f"unknown block {', '.join(unknown)}")
    if wrong := [name for name in BLOCKS if found.count(name) != 1]:
        raise BadResult(f"block {', '.join(wrong)}: expected once in README.md and bench/results/*.md")


def generated(text):
    """The page as the CSVs make it, and the names of the blocks that differ."""
    differ = []

    def made(match):
        block = BLOCKS[match[2]]()
        if block != match[3]:
            differ.append(match[2])
        return match[1] + block + match[4]

    return re.sub(BLOCK, made, text, flags=re.DOTALL), differ


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def run(args):
    wrong = False
    try:
        texts = pages()
        check_names(texts)
        for path, text in texts.items():
            text, differ = generated(text)
            for name in differ:
                wrong = True
                print(f"{path}: {name} {'differs from the files' if args.check else 'written'}")
            if differ and not args.check:
                write(os.path.join(ROOT, path), text)
        for name, draw in PICTURES.items():
            path, drawn = os.path.join(RESULTS, name), draw()
            if os.path.exists(path) and content(path) == drawn:
                continue
            wrong = True
            print(f"{os.path.relpath(path, ROOT)}: {'differs from the files' if args.check else 'written'}")
            if not args.check:
                write(path, drawn)
    except BadResult as error:
        print(f"scripts/bench results: {error}", file=sys.stderr)
        return 2
    if wrong and args.check:
        print("scripts/bench results writes them again", file=sys.stderr)
    return 1 if wrong and args.check else 0
