"""torch tensors and numpy arrays as the engine sees them: address, dtype, shape, strides, device.

Neither module is imported here: a caller that has a tensor has imported its module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from .. import _core, _memory
from .._errors import InvalidArgument, Unsupported
from .._protect import state_without_races
from .arrays import MORE_DTYPES, more_dtype
from .codec import Stored
from .paths import kind_name, shown
from .values import AS_BYTES

if TYPE_CHECKING:
    from .._core import Tensor

# safetensors' names, with what torch and numpy call them.
_TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_NUMPY = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
    "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_FROM_NUMPY = {code: name for name, code in _NUMPY.items()} | {"<c16": "complex128"}
_MOST_COPIED = 4 << 20  # Bytes of CPU tensors that one save copies because the engine cannot read them as they are.
_from_torch: dict[Any, str] = {}  # Filled once torch is imported: its dtypes are objects.
_torch_reader: _core.TorchReader | None = None


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _torch_dtypes() -> dict[Any, str]:
    if not _from_torch:
        torch = sys.modules["torch"]
        _from_torch.update({getattr(torch, of): name for name, of in _TORCH.items() if hasattr(torch, of)})
    return _from_torch


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of a checkpoint that has not been read: dtype by safetensors' name ("F32", "BF16"), shape in
    elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    _read: Callable[[], Any] = field(repr=False, compare=False)

    def load(self) -> Any:
        """Reads and verifies the tensor; each call makes a new one, on the CPU. NotFound if its checkpoint is gone."""
        return self._read()


def _reader() -> _core.TorchReader | None:
    global _torch_reader
    torch = sys.modules.get("torch")
    if _torch_reader is None and torch is not None and hasattr(torch, "nn"):
        _torch_reader = _core.TorchReader(torch.Tensor, torch.nn.Parameter, _torch_dtypes(), True)
    return _torch_reader


class TensorCollector:
    """Collects the tensors of a tree to save."""

    def __init__(self) -> None:
        self.core = _core.TreeTensors(_reader())
        # The tensors, and what else the dicts with them hold: keys and values below each prefix.
        self.given = self.core.given
        self.kept: list[Any] = [self.given]  # What the engine reads: it must live until the save is captured.
        self._copied = 0  # Bytes of the copies among them.

    def add(self, name: str, tensor: Any, part: _core.Part | None = None) -> None:
        self.given.append(("", [name], [tensor]))
        copy = self._plain(name, tensor)
        self.core.add(describe(name, tensor if copy is None else copy), part, tensor if copy is None else None)

    def _plain(self, name: str, tensor: Any) -> Any:
        """A copy of what the engine cannot read as it is, or None."""
        dtype = dtype_name(name, tensor)
        if (why := _unlike_memory(tensor)) is None:
            return None
        is_torch = _is_torch(tensor)
        if not is_torch or tensor.device.type == "cpu":
            self._copied += tensor.nbytes
            if self._copied > _MOST_COPIED:
                way_out = "its resolve_conj().resolve_neg()" if is_torch else "numpy.ascontiguousarray() of it"
                raise InvalidArgument(
                    f'tensor "{name}": {why}; such tensors are copied in the call, outside of host_memory, at most '
                    f"{_MOST_COPIED >> 20} MiB in all, and it has {tensor.nbytes:,} bytes: save {way_out}"
                )
        if not is_torch:
            copy = tensor.copy(order="C")
            self.kept.append(copy)
            return copy
        _memory.check(name, tensor)
        if tensor.is_conj() or tensor.is_neg():
            copy = tensor.resolve_conj().resolve_neg()
        else:  # torch copies no narrow integers, but their bytes.
            copy = (tensor.view(sys.modules["torch"].uint8) if AS_BYTES.get(dtype) == 1 else tensor).contiguous()
        self.kept.append(copy)
        return copy

    def state_of(self, holder: Any) -> Any:
        return state_without_races(holder)

    def add_all(
        self, keys: list[Any], values: list[Any], prefix: str, mark: str, nests: bool, node: Callable[[Any, str], str]
    ) -> str | None:
        return self.core.add_all(keys, values, prefix, mark, nests, node)


class StoredTensors(Mapping[str, Stored]):
    """The tensors of a checkpoint, by name."""

    def __init__(self, core: _core.StoredTensors) -> None:
        self.core = core

    def __getitem__(self, name: str) -> Stored:
        found = self.core.get(name)
        if found is None:
            raise KeyError(name)
        return Stored(*found)

    def __iter__(self) -> Iterator[str]:
        return iter(self.core.names())

    def __len__(self) -> int:
        return len(self.core)


class TargetCollector:
    """Collects the tensors to restore into. They must live until they are read."""

    def __init__(self, saved: Mapping[str, Stored]) -> None:
        self.core = _core.TreeTensors(_reader())
        self._saved = saved.core if isinstance(saved, StoredTensors) else None
        self._matched: list[list[Any]] = []

    def match_all(self, keys: list[Any], nodes: list[Any], like: dict[Any, Any], name: str) -> list[Any] | None:
        if self._saved is None or (found := self.core.match_all(keys, nodes, like, name, self._saved)) is None:
            return None
        self._matched.append(found)
        return found

    def note_writes(self, others: Iterable[Any]) -> None:
        """Once all is checked, before the first byte is written: see _memory. `others` are not what match_all took."""
        _memory.note_writes(chain(others, *self._matched))

    def add(self, name: str, tensor: Any) -> None:
        """InvalidArgument if it cannot be restored into in place."""
        self.core.add(target_view(name, tensor), None, None)

    def check_shared(self, converted: Mapping[str, Any], tied: Mapping[str, str], where: str) -> None:
        """InvalidArgument if one tensor's memory would be written as another's, too. `converted` are targets that are
        not among those here. `tied`: the tied tensors of the checkpoint at `where`, by name, each with its holder."""
        more = _core.TreeTensors(None)
        for name, tensor in converted.items():
            more.add(target_view(name, tensor), None, None)
        pairs, overlap = self.core.shared_memory(more)
        for first, second in pairs:
            if tied.get(first, first) != tied.get(second, second):
                raise InvalidArgument(
                    f'{where}: tensors "{first}" and "{second}" are one tensor in the tree, and two in the checkpoint: '
                    "restore one of them"
                )
        if overlap is not None:
            raise InvalidArgument(
                f'{where}: tensors "{overlap[0]}" and "{overlap[1]}" of the tree share memory, but are not one tensor, so '
                "that one would overwrite the other: restore one of them, or give each memory of its own"
            )


def dtype_name(name: str, tensor: Any) -> str:
    """safetensors' name of the tensor's dtype, or torch's if it is kept as bytes. Unsupported, with the tensor's name,
    if it cannot be kept."""
    if _is_torch(tensor):
        found = _torch_dtypes().get(tensor.dtype)
        if found is None and (name_of := str(tensor.dtype).removeprefix("torch.")) in AS_BYTES:
            found = name_of
    else:
        found = _FROM_NUMPY.get(tensor.dtype.str) or MORE_DTYPES.get(tensor.dtype.name)
    if found is None:
        raise Unsupported(f'tensor "{name}": safetensors files cannot hold its dtype, {tensor.dtype}')
    return found


def is_known(dtype: Any) -> bool:
    """Whether files have a name of their own for torch's dtype."""
    return dtype in _torch_dtypes()


def stored(tensor: Any) -> Stored:
    """Its dtype and shape, as a file has them."""
    return Stored(dtype_name("", tensor), tuple(tensor.shape))


def _unlike_memory(tensor: Any) -> str | None:
    """Why the engine cannot read the tensor as it lies in memory; None if it can. Of strided CUDA tensors it refuses those
    that their GPU cannot copy."""
    if not _is_torch(tensor):
        size = tensor.dtype.itemsize
        odd = any(stride % size for stride, extent in zip(tensor.strides, tensor.shape, strict=True) if extent > 1)
        return "its elements lie at odd distances" if odd else None
    if tensor.is_conj() or tensor.is_neg():
        return "it is lazily conjugated or negated"
    if tensor.is_cuda and not tensor.is_contiguous() and _overlaps(tensor.shape, tensor.stride()):
        return "its elements share memory"
    return None


def describe(name: str, tensor: Any) -> Tensor:
    """The engine's view of a tensor that is not unlike its memory."""
    if not _is_torch(tensor):
        size = tensor.dtype.itemsize
        strides = tuple(stride // size for stride in tensor.strides)
        shape = tuple(tensor.shape)
        return name, tensor.ctypes.data, *as_bytes(dtype_name(name, tensor), shape, strides), -1, 0
    dtype = dtype_name(name, tensor)
    _memory.check(name, tensor)
    device = tensor.device
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f'tensor "{name}": expected it on cpu or cuda, found {device}')
    if device.type == "cuda" and (rocm := sys.modules["torch"].version.hip):
        raise Unsupported(
            f'tensor "{name}": expected it on the CPU or a CUDA GPU, found {device}: this torch is built for ROCm '
            f"({rocm}), whose GPUs Cairn cannot use: save and restore a copy on the CPU"
        )
    room = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    cuda = -1 if device.type == "cpu" else device.index
    return name, tensor.data_ptr(), *as_bytes(dtype, tuple(tensor.shape), tensor.stride()), cuda, room


def as_bytes(dtype: str, shape: tuple[int, ...], strides: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """A tensor's dtype, shape and strides as a file has them."""
    size = AS_BYTES.get(dtype)
    if size is None or size == 1:
        return dtype if size is None else "U8", shape, strides
    return "U8", (*shape, size), (*(stride * size for stride in strides), 1)


def _overlaps(shape: Any, strides: Any) -> bool:
    """Whether two elements may share memory, or run backwards. Exact for broadcast tensors; for others it may be true
    needlessly."""
    if 0 in shape:
        return False
    reach = 0
    for stride, extent in sorted((stride, extent) for stride, extent in zip(strides, shape, strict=True) if extent > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def target_view(name: str, tensor: Any) -> Tensor:
    """The view of a tensor to restore into. InvalidArgument if that cannot be done in place."""
    dtype_name(name, tensor)
    if is_torch := _is_torch(tensor):
        _memory.check(name, tensor)
        if not tensor.data_ptr() and tensor.numel():
            raise InvalidArgument(f'tensor "{name}": {kind_name(tensor)} has no memory of its own to read into')
    if (
        _unlike_memory(tensor) is not None
        or _overlaps(tensor.shape, tensor.stride() if is_torch else tensor.strides)
        or not (is_torch or tensor.flags.writeable)
    ):
        raise InvalidArgument(
            f'tensor "{name}" cannot be restored in place: its elements share memory or run backwards, or it is read-only '
            "or lazily conjugated or negated"
        )
    return describe(name, tensor)


def memory_view(name: str, tensor: Any, where: str) -> Tensor | None:
    """The view of a torch tensor's own memory, whatever its elements mean, to be compared with others; None for tensors
    of other devices. InvalidArgument if its elements share memory; `where` names the checkpoint."""
    if tensor.device.type not in ("cpu", "cuda"):
        return None
    if not tensor.is_contiguous() and _overlaps(tensor.shape, tensor.stride()):
        raise InvalidArgument(
            f'{where}: tensor "{name}" cannot be read into: its elements share memory, so that one would overwrite the '
            "other: give each memory of its own"
        )
    dtype, shape, strides = as_bytes(dtype_name(name, tensor), tuple(tensor.shape), tensor.stride())
    return name, tensor.data_ptr(), dtype, shape, strides, -1 if tensor.device.type == "cpu" else tensor.device.index, 0


def torch_dtype(name: str) -> Any:
    """torch's dtype of safetensors' name, or of its own for what is kept as bytes."""
    import torch

    of = name if name in AS_BYTES else _TORCH[name]
    dtype = getattr(torch, of, None)
    if dtype is None:
        raise Unsupported(f"this torch has no {of}")
    return dtype


class Placement:
    """A map_location that depends on the tensor's name: its device, or None for the usual one."""

    def __init__(self, of: Callable[[str], Any]) -> None:
        self.of = of


def placement_of(map_location: Any) -> Callable[[str], Any]:
    """The torch.device on which the new tensor of a name is made; None for the usual one. InvalidArgument unless it is a
    CPU or CUDA device that is there."""
    if isinstance(map_location, Placement):
        return map_location.of
    if map_location is None:
        return lambda _name: None
    import torch

    try:
        device = torch.device(map_location)
    except (TypeError, RuntimeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f'map_location: expected a device such as "cpu" or "cuda:0", found {shown(map_location)}')
    if device.type == "cuda" and (device.index or 0) >= (there := torch.cuda.device_count()):
        raise InvalidArgument(
            f"map_location: expected a device that is there, found {device}; this process sees {there} GPUs"
        )
    return lambda _name: device


def empty(of: Stored, kind: str, device: Any = None) -> Any:
    """A new tensor; `kind` is "torch" or "numpy". On the CPU, or a torch tensor on `device`."""
    if kind == "torch":
        import torch

        return torch.empty(of.shape, dtype=torch_dtype(of.dtype), device=device or "cpu")
    import numpy

    dtype = (_NUMPY | {"complex128": "<c16"}).get(of.dtype) or more_dtype(of.dtype)
    if dtype is None:
        raise Unsupported(f"numpy has no {of.dtype}: install ml_dtypes, which has it")
    return numpy.empty(of.shape, dtype=dtype)


def filled(like: Any, found: Any) -> Any:
    """What takes the place of `like`: itself, with the contents of `found`, if both are tensors of one shape."""
    torch = sys.modules.get("torch")
    if torch is None or type(like) not in (torch.Tensor, torch.nn.Parameter) or not isinstance(found, torch.Tensor):
        return found
    if (like.shape, like.layout) != (found.shape, found.layout):
        return found
    if like.is_meta:
        return found.to(like.dtype)
    like.detach().copy_(found)
    return like


def cuda_in_use() -> set[int]:
    """torch's current device, if it has initialised CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return set()
    return {torch.cuda.current_device()}


def current_streams(cuda_devices: set[int]) -> list[tuple[int, int]]:
    """torch's current stream of each of these devices."""
    if not cuda_devices:
        return []
    torch = sys.modules["torch"]
    return [(index, torch.cuda.current_stream(index).cuda_stream) for index in sorted(cuda_devices)]
