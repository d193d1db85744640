"""Packs pictures in the ImageNet layout, FOLDER/CLASS/PICTURE.JPEG, into two files of pixels. Each must decode.

pictures.bin    the pictures one behind the other, 224 rows of 224 pixels, red, green and blue: the shorter side scaled
                to 256, the middle cut out
index.bin       for each of them, little-endian: the CRC-32 of its pixels as zlib computes it (4 bytes), its class (4)
data.json       what is in it: kind ("pictures"), side (224), pictures and classes (how many), class_names, in their
                order, checksum (CRC-32 of index.bin), source
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

MOST_PIXELS = 64_000_000
RESIZED, SIDE = 256, 224
ENTRY = struct.Struct("<II")


def sorted_entries(folder: Path) -> list[Path]:
    """By the bytes of their names: a directory's own order differs between machines, a picture's number must not."""
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


def read_pixels(path: Path) -> bytes:
    try:
        with Image.open(io.BytesIO(path.read_bytes()), formats=["JPEG"]) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"more than {MOST_PIXELS} pixels")
            scale = RESIZED / min(picture.size)
            size = [max(RESIZED, int(length * scale)) for length in picture.size]
            scaled = picture.convert("RGB").resize((size[0], size[1]), Image.Resampling.BILINEAR)
            left, top = ((length - SIDE) // 2 for length in size)
            return scaled.crop((left, top, left + SIDE, top + SIDE)).tobytes()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Refused(f"{path}: not a sound JPEG picture: {error}") from None


def pack(folder: Path, classes: list[str], pictures: list[tuple[Path, int]], out: Path) -> str:
    """Writes the files to `out`. Returns what to say of them."""
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
