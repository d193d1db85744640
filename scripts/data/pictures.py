"""Packs JPEG pictures in the ImageNet layout, FOLDER/CLASS/PICTURE.JPEG, into two files. Every picture must decode.

pictures.bin    the pictures one after another, 224 rows of 224 RGB pixels: the shorter side scaled to 256, then the
                centre cropped
index.bin       for each picture, little-endian: zlib's CRC-32 of its pixels (4 bytes) and its class (4 bytes)
data.json       metadata: kind ("pictures"), side (224), pictures and classes (their numbers), class_names (ordered),
                checksum (CRC-32 of index.bin), source
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from pathlib import Path

from PIL import Image
from sources import InvalidInput, printable

MAX_PIXELS = 64_000_000
RESIZED, SIDE = 256, 224
ENTRY = struct.Struct("<II")


def sorted_entries(folder: Path) -> list[Path]:
    """Sorted by the bytes of their names, so that a picture's number is the same on every machine."""
    return sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name))


def pictures_of(folder: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    """The names of the classes, and each picture with its class."""
    root = folder / "train" if (folder / "train").is_dir() else folder
    if not root.is_dir():
        raise InvalidInput(f"{root}: no such folder")
    classes = [path for path in sorted_entries(root) if path.is_dir()]
    pictures = [
        (path, label)
        for label, of_class in enumerate(classes)
        for path in sorted_entries(of_class)
        if path.suffix.lower() in (".jpeg", ".jpg") and path.is_file()
    ]
    if not pictures:
        raise InvalidInput(f"{root}: expected CLASS/PICTURE.JPEG, found {len(classes)} folders without pictures")
    return [printable(path.name) for path in classes], pictures


def read_pixels(path: Path) -> bytes:
    try:
        with Image.open(io.BytesIO(path.read_bytes()), formats=["JPEG"]) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise ValueError(f"more than {MAX_PIXELS} pixels")
            scale = RESIZED / min(picture.size)
            size = [max(RESIZED, int(length * scale)) for length in picture.size]
            scaled = picture.convert("RGB").resize((size[0], size[1]), Image.Resampling.BILINEAR)
            left, top = ((length - SIDE) // 2 for length in size)
            return scaled.crop((left, top, left + SIDE, top + SIDE)).tobytes()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"{path}: not a valid JPEG picture: {error}") from None


def pack(folder: Path, classes: list[str], pictures: list[tuple[Path, int]], out: Path) -> str:
    """Writes the files to `out`. Returns a summary."""
    checksum = 0
    with open(out / "pictures.bin", "wb") as packed, open(out / "index.bin", "wb") as index:
        for path, label in pictures:
            pixels = read_pixels(path)
            packed.write(pixels)
            entry = ENTRY.pack(zlib.crc32(pixels), label)
            index.write(entry)
            checksum = zlib.crc32(entry, checksum)
    about = {
        "kind": "pictures",
        "side": SIDE,
        "pictures": len(pictures),
        "classes": len(classes),
        "class_names": classes,
        "checksum": f"crc32:{checksum:08x}",
        "source": [printable(folder)],
    }
    (out / "data.json").write_text(json.dumps(about, indent=1) + "\n")
    return f"{len(pictures)} pictures of {len(classes)} classes"
