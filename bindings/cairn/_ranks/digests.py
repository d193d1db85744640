"""Digests of what tensors hold, by which ranks compare them. They depend on the elements alone, not on the layout."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 64 << 20  # Bytes that are copied to the host at a time.


def digest(tensor: Any) -> str:
    return spelled(crc_of(tensor))


def spelled(crc: int) -> str:
    return f"CRC {crc:08x}"


def crc_of(tensor: Any) -> int:
    """The CRC32 of the elements, in row-major order. Waits for the device's current stream. Copies at most 64 MiB at a
    time, of a strided tensor on its device too."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        whole = tensor if tensor.flags.c_contiguous else tensor.copy(order="C")
        return zlib.crc32(whole.reshape(-1).view("u1"))
    crc = 0
    for part in _parts(tensor.detach()):
        plain = part.resolve_conj().resolve_neg().contiguous().cpu()
        crc = zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy(), crc)
    return crc


def _parts(tensor: Any) -> Iterator[Any]:
    """A tensor in row-major order, cut so that each part may be copied."""
    if tensor.nbytes <= _AT_ONCE:
        yield tensor
    elif tensor.is_contiguous():
        yield from tensor.view(-1).split(_AT_ONCE // tensor.element_size())
    elif rows := _AT_ONCE * tensor.shape[0] // tensor.nbytes:
        yield from tensor.split(rows)
    else:
        for row in tensor:
            yield from _parts(row)
