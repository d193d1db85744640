"""Makes the tables of docs/results.md and README.md from the files in bench/results.

A block of a document between <!-- begin NAME --> and <!-- end NAME --> is generated; what is around it is written by
hand. Without --check every block is written again. With --check nothing is written: the exit code is 1 if a block
differs from the files, and each such block is named.
"""

import os
import re
import sys

from ..shared import RESULTS, ROOT
from ..shared.files import BadResult, content
from .blocks import BLOCKS, HEADLINE

DOCUMENTS = {"docs/results.md": BLOCKS, "README.md": HEADLINE}
BLOCK = r"(<!-- begin (\S+) -->\n)(.*?)(<!-- end \2 -->\n)"


def add_arguments(parser):
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a block differs from the files")


def generated(path, text, blocks):
    """The document as the files make it, and the names of the blocks that differ."""
    found = [match[2] for match in re.finditer(BLOCK, text, re.DOTALL)]
    if sorted(found) != sorted(blocks):
        raise BadResult(f"{path}: expected the blocks {', '.join(blocks)}, found {', '.join(found) or 'none'}")
    link = os.path.relpath(RESULTS, os.path.dirname(os.path.join(ROOT, path)))
    differ = []

    def made(match):
        block = blocks[match[2]](link)
        if block != match[3]:
            differ.append(match[2])
        return match[1] + block + match[4]

    return re.sub(BLOCK, made, text, flags=re.DOTALL), differ


def run(args):
    wrong = False
    try:
        for path, blocks in DOCUMENTS.items():
            full = os.path.join(ROOT, path)
            text, differ = generated(path, content(full), blocks)
            for name in differ:
                print(f"{path}: {name} {'differs from the files' if args.check else 'written'}")
            if differ and not args.check:
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text)
            wrong = wrong or bool(differ)
    except BadResult as error:
        print(f"scripts/bench results: {error}", file=sys.stderr)
        return 2
    if wrong and args.check:
        print("scripts/bench results writes them again", file=sys.stderr)
    return 1 if wrong and args.check else 0
