"""Tensors that are read into another dtype: which such casts lose nothing, and what a load says of them."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .._errors import InvalidArgument, counted
from .paths import listed, shown

_log = logging.getLogger("cairn")
_MAX_LISTED = 5  # Names in one message.

# A stored dtype, and those that hold each of its values exactly. Every other cast may lose something.
_WIDER = {
    stored: frozenset(wider.split())
    for stored, wider in {
        "BOOL": "U8 I8 U16 I16 U32 I32 U64 I64 F8_E4M3 F8_E5M2 F16 BF16 F32 F64 complex32 C64 complex128",
        "U8": "U16 I16 U32 I32 U64 I64 F16 BF16 F32 F64 complex32 C64 complex128",
        "I8": "I16 I32 I64 F16 BF16 F32 F64 complex32 C64 complex128",
        "U16": "U32 I32 U64 I64 F32 F64 C64 complex128",
        "I16": "I32 I64 F32 F64 C64 complex128",
        "U32": "U64 I64 F64 complex128",
        "I32": "I64 F64 complex128",
        "F8_E4M3": "F16 BF16 F32 F64 complex32 C64 complex128",
        "F8_E5M2": "F16 BF16 F32 F64 complex32 C64 complex128",
        "float8_e4m3fnuz": "F16 BF16 F32 F64 complex32 C64 complex128",
        "float8_e5m2fnuz": "F16 BF16 F32 F64 complex32 C64 complex128",
        "F16": "F32 F64 complex32 C64 complex128",
        "BF16": "F32 F64 C64 complex128",
        "F32": "F64 C64 complex128",
        "F64": "complex128",
        "complex32": "C64 complex128",
        "C64": "complex128",
    }.items()
}


def allows_loss(cast: Any) -> bool:
    """What the argument `cast` of a load says. InvalidArgument unless it is None or "allow"."""
    if cast not in (None, "allow"):
        raise InvalidArgument(
            f'cast: expected "allow", or None to refuse casts that lose something, found {shown(cast)}'
        )
    return cast is not None


def is_lossless(stored: str, given: str) -> bool:
    """Whether each value of one dtype has an equal one in the other."""
    return stored == given or given in _WIDER.get(stored, ())


@dataclass(frozen=True)
class Cast:
    """A tensor that is read into another dtype than the checkpoint's."""

    name: str
    stored: str
    given: str

    def __str__(self) -> str:
        return f"{self.name} ({self.stored} in the checkpoint, {self.given} here)"


class Casts:
    """The casts of one load."""

    def __init__(self, allow_loss: bool) -> None:
        self._allow_loss = allow_loss
        self._done: dict[str, Cast] = {}
        self._refused: dict[str, Cast] = {}

    def may(self, name: str, stored: str, given: str) -> bool:
        """Whether the load may convert this tensor. Remembers it."""
        may = is_lossless(stored, given) or (self._allow_loss and _converts(stored, given))
        (self._done if may else self._refused)[name] = Cast(name, stored, given)
        return may

    def raise_refused(self, where: str) -> None:
        """InvalidArgument that names what `may` has refused."""
        if self._refused:
            raise InvalidArgument(
                f"{where}: {counted(len(self._refused), 'tensor')} of another dtype: {listed([*map(str, self._refused.values())], _MAX_LISTED)}: "
                f"{self.way_out()}"
            )

    def way_out(self) -> str:
        """What helps with what `may` has refused; empty if it has refused nothing."""
        if not self._refused:
            return ""
        if self._allow_loss:
            return "torch cannot convert these dtypes: give the checkpoint's"
        return 'give the checkpoint\'s dtypes, or ones that hold all of their values, or cast="allow" to lose some'

    def log(self, where: str) -> None:
        """One line, if there is any."""
        if not self._done:
            return
        lossy = sum(not is_lossless(one.stored, one.given) for one in self._done.values())
        _log.log(
            logging.WARNING if lossy else logging.INFO,
            "%s: converted %s to another dtype, %s with a loss: %s",
            where,
            counted(len(self._done), "tensor"),
            lossy or "none",
            listed([*map(str, self._done.values())], _MAX_LISTED),
        )


def convert(target: Any, temporary: Any) -> None:
    """Copies a tensor or an array into one of another dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Tensor):
        target.detach().copy_(temporary)
    else:
        target[...] = temporary


@lru_cache(maxsize=256)
def _converts(stored: str, given: str) -> bool:
    """Whether torch can: for some narrow types it cannot."""
    if "torch" not in sys.modules:
        return True
    import torch

    from .tensors import torch_dtype

    try:
        torch.zeros(1, dtype=torch_dtype(given)).copy_(torch.zeros(1).to(torch_dtype(stored)))
    except (RuntimeError, TypeError):
        return False
    return True
