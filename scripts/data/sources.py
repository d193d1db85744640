"""What data is made from: files in UTF-8, and WikiText's articles in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

HEADING = re.compile(r" = (?!= ).+ = ")  # Of an article; those within it have more signs.


class Refused(Exception):
    """The file, the place in it, what was expected there and found."""


def printable(name: Path | str) -> str:
    """What JSON can hold of a name, which need not be UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def files_in(folder: Path) -> Iterator[Path]:
    """All of them, behind links to folders too, each folder once. What may not be read is an error."""

    def fail(error: OSError) -> None:
        raise error

    seen: set[str] = set()
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        if (real := os.path.realpath(root)) in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (path for path in (Path(root, name) for name in names) if path.is_file())


def files_of(sources: list[Path]) -> list[Path]:
    """Every file once, however many links lead to it."""
    found: dict[Path, None] = {}
    for source in sources:
        if not source.exists():
            raise Refused(f"{source}: no such file or folder")
        inside = sorted(files_in(source)) if source.is_dir() else [source]
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
