"""What torch's load_state_dict of a module would do without a word, held against what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import _core
from .._errors import InvalidArgument
from .casts import Casts, allows_loss
from .codec import Stored
from .tensors import dtype_name, memory_view


def check_into(
    held: Mapping[str, Any],
    loaded: Mapping[str, Any],
    where: str,
    cast: str | None,
    becomes: torch.dtype | None = None,
) -> Casts:
    """How load_state_dict converts a checkpoint's tensors into those that a module `held`, and what makes its floating ones
    `becomes` after it. `loaded`: tensors, or Stored ones that are yet to be read, of which nobody knows whether two are equal.

    InvalidArgument if that loses something and `cast` does not allow it, or if one tensor would overwrite another."""
    casts = Casts(allows_loss(cast))
    memory = _core.TreeTensors(None)
    for name, own in held.items():
        given = loaded.get(name)
        if not (isinstance(given, (torch.Tensor, Stored)) and isinstance(own, torch.Tensor)):
            continue
        stored = given.dtype if isinstance(given, Stored) else dtype_name(name, given)
        if stored != dtype_name(name, own):
            casts.may(name, stored, dtype_name(name, own))
        if (
            becomes is not None
            and own.is_floating_point()
            and stored != (later := dtype_name(name, torch.empty(0, dtype=becomes)))
        ):
            casts.may(name, stored, later)
        if (view := memory_view(name, own, where)) is not None:
            memory.add(view, None, None)
    casts.raise_refused(where)
    tied, overlap = memory.shared_memory(_core.TreeTensors(None))
    for a, b in [overlap] if overlap else tied:
        if overlap or not _is_one(loaded[a], loaded[b]):
            raise InvalidArgument(
                f'{where}: "{a}" and "{b}" share memory in the module, but the checkpoint has two tensors, of which one would '
                "overwrite the other"
            )
    return casts


def _is_one(a: Any, b: Any) -> bool:
    return a is b or isinstance(a, Stored) or torch.equal(a, b)
