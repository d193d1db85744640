"""Whether a torch tensor's storage still holds all of it: it may have been freed or shrunk (untyped_storage().resize_(),
as FSDP1 does), and whoever reads the tensor then reads beyond its end, torch too."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any

from ._errors import InvalidArgument


def shortage(tensor: Any) -> tuple[int, int] | None:
    """How many bytes the storage of a strided tensor must have, and how many it has, if these are fewer."""
    if tensor.numel() == 0:
        return None
    reach = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    expected = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    found = tensor.untyped_storage().nbytes()
    return (expected, found) if found < expected else None


def check(name: str, tensor: Any) -> None:
    """InvalidArgument, with the name, for a strided tensor that its storage does not hold."""
    if short := shortage(tensor):
        expected, found = short
        raise InvalidArgument(
            f'tensor "{name}": its storage was freed or shrunk: expected at least {expected} bytes, found {found}: give '
            "its storage its memory again (untyped_storage().resize_) before the call"
        )


def cloned(tensor: Any) -> Any:
    """A copy of its values. If its memory is gone, the tensor itself: the save that is given it names it."""
    torch = sys.modules["torch"]
    local = getattr(tensor, "_local_tensor", tensor)  # Of a DTensor.
    if type(local) in (torch.Tensor, torch.nn.Parameter) and local.layout == torch.strided and shortage(local):
        return tensor.detach()
    copy = tensor.detach().clone()
    copy._cairn_copy = True  # So that a save does not take it for a frozen tensor that has moved.
    return copy


def note_writes(targets: Iterable[Any]) -> None:
    """Tells torch that these tensors are about to be written, as an operation of its own would: by their version counters
    a save in flight of any Checkpointer knows that it reads them too early, and autograd that it has kept other values."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    tensors = [target for target in targets if isinstance(target, torch.Tensor)]
    try:
        torch._C._increment_version(tensors)
    except (RuntimeError, TypeError):  # Older torch takes one tensor, and none of inference mode.
        for tensor in tensors:
            with contextlib.suppress(RuntimeError):
                torch._C._increment_version(tensor)
