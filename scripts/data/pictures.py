"""Packs pictures in the ImageNet layout, FOLDER/CLASS/PICTURE.JPEG, into two files. Each must decode.

pictures.bin    the JPEG files as they are, one behind the other
index.bin       for each of them, little-endian: where it ends in pictures.bin (8 bytes), its CRC-32 as zlib has it
                (4 bytes), its class (4 bytes)
data.json       what is in it: kind ("pictures"), pictures and classes (how many), class_names, in their order, checksum
                (CRC-32 of index.bin), source
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from pathlib import Path

from PIL import Image
from sources import Refused, printable

MOST_PIXELS = 64_000_000  # As cairn_train decodes at most.
ENTRY = struct.Struct("<QII")


def sorted_entries(folder: Path) -> list[Path]:
    """As cairn_train sorts them, so that a picture's number is the same in the folder and in what is made of it."""
    return sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name))


def pictures_of(folder: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    """The classes' names, and each picture with its class."""
    root = folder / "train" if (folder / "train").is_dir() else folder
    if not root.is_dir():
        raise Refused(f"{root}: no such folder")
    classes = [path for path in sorted_entries(root) if path.is_dir()]
    pictures = [
        (path, label)
        for label, of_class in enumerate(classes)
        for path in sorted_entries(of_class)
        if path.suffix.lower() in (".jpeg", ".jpg") and path.is_file()
    ]
    if not pictures:
        raise Refused(f"{root}: expected CLASS/PICTURE.JPEG in it, found {len(classes)} folders and no picture in them")
    return [printable(path.name) for path in classes], pictures


def read_picture(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"more than {MOST_PIXELS} pixels")
            picture.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Refused(f"{path}: not a sound JPEG picture: {error}") from None
    return content


def pack(folder: Path, classes: list[str], pictures: list[tuple[Path, int]], out: Path) -> str:
    """Writes the files to `out`. Returns what to say of them."""
    end = checksum = 0
    with open(out / "pictures.bin", "wb") as packed, open(out / "index.bin", "wb") as index:
        for path, label in pictures:
            content = read_picture(path)
            packed.write(content)
            end += len(content)
            entry = ENTRY.pack(end, zlib.crc32(content), label)
            index.write(entry)
            checksum = zlib.crc32(entry, checksum)
    about = {
        "kind": "pictures",
        "pictures": len(pictures),
        "classes": len(classes),
        "class_names": classes,
        "checksum": f"crc32:{checksum:08x}",
        "source": [printable(folder)],
    }
    (out / "data.json").write_text(json.dumps(about, indent=1) + "\n")
    return f"{len(pictures)} pictures of {len(classes)} classes"
