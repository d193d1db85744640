"""Cairn: asynchronous checkpoints that survive a power cut, in files that any safetensors reader opens."""

from ._arguments import parse_size
from ._checkpointer import Checkpointer
from ._errors import (
    AlreadyExists,
    Cancelled,
    Corrupt,
    DeadlineExceeded,
    DeviceError,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    IoError,
    NoSpace,
    NotFound,
    ResourceExhausted,
    UnknownOutcome,
    Unsupported,
)
from ._loading import load
from ._mirrors import Mirror
from ._rng import RngState
from ._save import Checkpoint, Save
from ._stop import shield_worker
from ._tree.tensors import LazyTensor

__version__ = "0.1.0"
__all__ = [
    "AlreadyExists",
    "Cancelled",
    "Checkpoint",
    "Checkpointer",
    "Corrupt",
    "DeadlineExceeded",
    "DeviceError",
    "Error",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "IoError",
    "LazyTensor",
    "Mirror",
    "NoSpace",
    "NotFound",
    "ResourceExhausted",
    "RngState",
    "Save",
    "UnknownOutcome",
    "Unsupported",
    "load",
    "parse_size",
    "shield_worker",
]
