"""Reads the sources of text: UTF-8 files, and WikiText's articles in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

HEADING = re.compile(r" = (?!= ).+ = ")  # An article's; headings inside it have more equals signs.


class InvalidInput(Exception):
    """Invalid input. The message names the file, the place, expected and found."""


def printable(name: Path | str) -> str:
    """A name, which need not be UTF-8, in a form that JSON can hold."""
    return os.fsencode(name).decode("utf-8", "replace")


def files_in(folder: Path) -> Iterator[Path]:
    """All files, also through links to folders, each folder once. An unreadable folder is an error."""

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
    """Every file once, even if several links lead to it."""
    found: dict[Path, None] = {}
    for source in sources:
        if not source.exists():
            raise InvalidInput(f"{source}: no such file or folder")
        inside = sorted(files_in(source)) if source.is_dir() else [source]
        found.update((path.resolve(), None) for path in inside)
    if not found:
        raise InvalidInput(f"{' '.join(map(str, sources))}: contains no files")
    return list(found)


def read_text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: byte {error.start}: not UTF-8 (0x{content[error.start]:02x})") from None


def articles_of(path: Path) -> Iterator[str]:
    """The file's articles, which together are the whole file. Each begins at a heading after an empty line."""
    article: list[str] = []
    begun = False
    empty = True
    with open(path, "rb") as file:
        for number, content in enumerate(file, 1):
            try:
                line = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InvalidInput(f"{path}: line {number}: not UTF-8 (0x{content[error.start]:02x})") from None
            if empty and HEADING.fullmatch(line.rstrip("\n")):
                if begun:
                    yield "".join(article)
                    article = []
                begun = True
            empty = not line.strip()
            if not begun and not empty:
                raise InvalidInput(f'{path}: line {number}: expected an article\'s " = Title = ", found {line[:40]!r}')
            article.append(line)
    if not begun:
        raise InvalidInput(f"{path}: contains no article")
    yield "".join(article)
