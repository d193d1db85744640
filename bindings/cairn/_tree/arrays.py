"""Arrays of other libraries (JAX, CuPy, ...): known by the protocols that they share, __array__ and __dlpack__."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .._errors import InvalidArgument
from .paths import readable, type_name

# ml_dtypes' names, which JAX uses, with safetensors'.
MORE_DTYPES = {
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def is_foreign(value: Any) -> bool:
    """Whether it is an array that is neither torch's nor numpy's. A table with labels (pandas, polars, xarray) is none:
    it would come back without them."""
    kind = type(value)
    if isinstance(value, type) or hasattr(kind, "to_numpy"):
        return False
    if not hasattr(kind, "__dlpack__") and not (
        hasattr(kind, "__array__") and _has(value, "shape") and _has(value, "dtype")
    ):
        return False
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return False
    return numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic))


def _has(value: Any, name: str) -> bool:
    """Without a property's code, which may fail."""
    return hasattr(type(value), name) or name in getattr(value, "__dict__", ())


def as_numpy(value: Any, name: str) -> Any:
    """The array as numpy's, without a copy where its library allows that. InvalidArgument, with the path, if it cannot
    be had on the CPU."""
    import numpy

    try:
        if hasattr(type(value), "__array__"):
            return numpy.asarray(value)
        return numpy.from_dlpack(value)
    except Exception as error:
        raise InvalidArgument(
            f"{readable(name)}: an array of type {type_name(value)} does not become numpy's ({error}): convert it first"
        ) from error


def more_dtype(name: str) -> Any:
    """numpy's dtype of safetensors' name, from ml_dtypes; None if that is not installed or has none."""
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        return None
    found = {ours: theirs for theirs, ours in MORE_DTYPES.items()}.get(name)
    return getattr(ml_dtypes, found, None) if found else None
