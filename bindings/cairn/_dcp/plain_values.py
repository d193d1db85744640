"""Plain values of a state dict: what can be kept without pickle, and what ranks compare of it. See items.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from json.encoder import encode_basestring as _quote
from typing import Any, TypeAlias

from .._errors import InvalidArgument
from .._ranks.digests import digest
from .._tree import values
from .._tree.paths import fields_of, is_stateful, kind_name, readable
from .._tree.tensors import dtype_name, is_known
from .._tree.writer import Names, Writer

Key: TypeAlias = tuple[str, tuple[int, ...]]  # fqn, offset; the offset of a whole item is ().
# One of the things that a rank holds: its bytes; what it is, which is the same on every rank that holds it; and its
# layout, which two ranks have alike if they hold the same bytes. Empty: that cannot be told.
Held: TypeAlias = tuple[Key, int, str, str]
VALUE = "a plain value"  # Counts as 0 bytes.
BELOW = "/~v"  # No key in a value is written like this.
_SMALL = 64 << 10


def below(fqn: str, rank: int | None = None) -> str:
    """The beginning of the names of the arrays in a value: of this rank's own value, if it has a rank."""
    return fqn + BELOW if rank is None else f"{fqn}{BELOW}~{rank}"


def described(dtype: Any, shape: Iterable[int], size: Iterable[int] = ()) -> str:
    """A tensor, or a chunk of one of this size."""
    of = f" of {[*size]}" if size else ""
    return f"{str(dtype).removeprefix('torch.')} {[*shape]}{of}"


class _DTypeCheck(Names):
    """A sink that refuses dtypes that files cannot hold."""

    def add(self, name: str, tensor: Any) -> None:
        dtype_name(name, tensor)
        super().add(name, tensor)


class ExactWriter(Writer):
    """Keeps classes by module and name, and refuses values that would come back as another type: DCP may load without
    a tree that gives the classes."""

    def _other(self, value: Any, name: str) -> str:
        if is_stateful(value):
            hint = "DCP takes apart only what is in the state dict itself: put its state_dict() there"
            raise InvalidArgument(f"{readable(name)}: {kind_name(value)} cannot be kept; {hint}")
        text, kind = super()._other(value, name), type(value)
        by_name = isinstance(value, Enum) or fields_of(kind) or values.is_dataclass(kind)
        if by_name and not values.is_found(kind):
            raise InvalidArgument(
                f"{readable(name)}: {kind_name(value)} cannot be kept: its class is not found by its name, as one that "
                "is made within a function: define it at the top of a module"
            )
        return text

    def class_name(self, kind: type) -> str:
        return self._later(_quote(values.class_path(kind)))


@dataclass(frozen=True)
class Form:
    """What ranks compare of a value: its text, and the arrays in it, by name."""

    text: str
    arrays: dict[str, Any]

    def told(self) -> str:
        """All of it but the contents of large arrays, which are compared like tensors."""
        said = [
            f"{described(one.dtype, one.shape)} {'' if _is_large(one) else digest(one)}" for one in self.arrays.values()
        ]
        return " ".join([self.text, *said])


class Checker:
    """Says what can be kept without pickle: one for many values, because it takes a while to make."""

    def __init__(self) -> None:
        self._sink = _DTypeCheck()
        self._writer = ExactWriter(self._sink)

    def takes(self, tensor: Any) -> bool:
        """Whether it is of the usual kind, which can be kept. Quick."""
        return self._writer.is_dense(tensor) and is_known(tensor.dtype)

    def form_of(self, value: Any, fqn: str) -> Form:
        """Raises InvalidArgument or Unsupported, with the name, for a value that cannot be kept."""
        self._sink.tensors = {}
        try:
            self._writer.begin()
            text = self._writer.node(value, fqn)
            self._writer.check_length(text)
            return Form(text, self._sink.tensors)
        except BaseException:
            self._writer = ExactWriter(self._sink)  # It was within the value.
            raise


def held_values(forms: Mapping[str, Form]) -> list[Held]:
    large = [
        (key, 0, f"an array in a value, {described(one.dtype, one.shape)}", "")
        for key, one in large_arrays(forms).items()
    ]
    return [((fqn, ()), 0, VALUE, "") for fqn in forms] + large


def large_arrays(forms: Mapping[str, Form]) -> dict[Key, Any]:
    return {
        (below(fqn) + name[len(fqn) :], ()): one
        for fqn, form in forms.items()
        for name, one in form.arrays.items()
        if _is_large(one)
    }


def _is_large(array: Any) -> bool:
    """Whether it takes long to read, as what a device computes does."""
    return bool(getattr(array, "is_cuda", False) or array.nbytes > _SMALL)


def check_storable(value: Any, fqn: str) -> None:
    """Raises InvalidArgument or Unsupported, with the name, for a value that cannot be kept without pickle."""
    Checker().form_of(value, fqn)
