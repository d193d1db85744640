"""What tests/format/corpus-v1 holds: the trees that write_corpus.py saved, and the formula of the C++ half's tensors.

None of this may change: the files do not.
"""

from __future__ import annotations

import collections
import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from trees import Mode

FOLDER = Path(__file__).parent.parent / "format" / "corpus-v1"
CPP_ROOTS = ["single", "ranks", "large", "unchecked", "kept"]
PYTHON_ROOTS = ["tree", "replicas", "dcp", "long_values"]
REPLICATED = ["model/*", "step"]
RANKS = 2


class Point(NamedTuple):
    x: Any
    y: Any


def formula(
    name: str, step: int, dtype: str, whole: list[int], offset: list[int], shape: list[int], size: int
) -> bytes:
    """The bytes of a tensor, or of the part at `offset` of a whole one, as corpus_v1.cc fills them; `size` is that of
    an element."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 & 0xFFFFFFFF
    elements = numpy.arange(math.prod(whole), dtype=numpy.uint64).reshape(whole)
    elements = elements[tuple(slice(o, o + extent) for o, extent in zip(offset, shape))].reshape(-1, 1)
    places = elements * size + numpy.arange(size, dtype=numpy.uint64)
    contents = ((places * 2654435761 + (seed + step * 2246822519 & 0xFFFFFFFF)) & 0xFFFFFFFF) >> 24
    if dtype == "BOOL":
        contents &= 1
    if name.startswith("sparse."):
        contents[places % 4093 != 0] = 0
    return contents.astype(numpy.uint8).tobytes()


def ramp(first: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """first, first + 1, ...; of bools every other one."""
    numbers = torch.arange(first, first + math.prod(shape)).reshape(shape)
    return (numbers % 2 == 1) if dtype == torch.bool else numbers.to(dtype)


def tree(first: int = 1) -> dict[str, Any]:
    """Saved with 1; another number makes a tree of the same tensors with other contents."""
    embed = ramp(first, 4, 3)
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(ramp(first + 2, 2, 3))
        module.bias.copy_(ramp(first + 9, 2))
    return {
        "model": {"embed.weight": embed, "head.weight": embed, "empty": torch.zeros(0, 3), "scale": ramp(first)},
        "module": module,
        "optimizer": {
            "state": {
                i: {"step": ramp(first + i), "exp_avg": ramp(first, 4, 3), "exp_avg_sq": ramp(first + 5, 4, 3)}
                for i in range(2)
            },
            "param_groups": [
                {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "foreach": None, "params": [0, 1]}
            ],
        },
        "dtypes": {
            str(dtype).removeprefix("torch."): ramp(first, 2, 2, dtype=dtype)
            for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16, torch.int32,
                          torch.complex64, torch.float64, torch.int64, torch.uint16, torch.uint32, torch.uint64,
                          torch.float8_e4m3fn, torch.float8_e5m2)
        },
        "numpy": {
            "array": numpy.arange(first, first + 6, dtype=numpy.int16).reshape(2, 3),
            "scalars": [numpy.float32(0.1), numpy.float64(-0.0), numpy.int64(-3), numpy.uint8(200), numpy.bool_(True),
                        numpy.complex64(1j), numpy.float16(1.5), numpy.datetime64("2026-01-02")],
        },
        "numbers": [0, -1, 2**63 - 1, -(2**63), 2**80, -0.0, 1e22, 5e-324, math.inf, math.nan, 1 + 2j, True, None],
        "texts": ["", 'quote " back \\ line \n', "\0\x7f\u2028", "\u00e9\u4e2d\U0001f427", b"", bytes(range(256))],
        "\u91cd\u307f \U0001f427/~": {"": ramp(first, 2), 0: ramp(first + 1, 1), "0": ramp(first + 2, 1), None: 5, True: 6},
        "containers": [(), (1, (2, "x")), {1, "a", None}, frozenset({2.5}), collections.Counter({30: 1}),
                       collections.OrderedDict([("b", 1), (0, ramp(first, 3))]), [], {}],
        "torch": [torch.Size([2, 0]), torch.bfloat16, torch.device("cuda:1")],
        "classes": {"mode": Mode.EVAL, "point": Point(ramp(first, 2), [1])},
    }  # fmt: skip


def replicas_tree(rank: int, first: int = 1) -> dict[str, Any]:
    """What rank `rank` of RANKS holds; `model` and `step` are replicated."""
    return {
        "model": {"weight": ramp(first, 5, 2), "bias": ramp(first + 3, 2)},
        "mine": ramp(first + 10 * rank, 3 + rank),
        "rank": rank,
        "step": 5,
    }


def long_tree() -> dict[str, Any]:
    """Its text is of more than 1 MiB, and git packs it well."""
    record = {"id": 1, "score": -0.5, "tags": ('\u00e9 " \\ \0', None), 2: b"\xff"}
    return {"model": {"weight": ramp(1, 5, 2)}, "seen": [7] * 250_000, "records": [record] * 500}


def dcp_state(first: int = 1) -> dict[str, Any]:
    """What DCP saved; `sharded` and what is tied to it over RANKS ranks by rows."""
    state = {
        "sharded": ramp(first, 5, 3),
        "replicated": ramp(first + 4, 4, dtype=torch.bfloat16),
        "values": {"epoch": 3, "lr": 0.1, "text": "\u00e9", "long": 2**80, "none": None},
    }
    return state | {"tied sharded": state["sharded"], "tied replicated": state["replicated"]}


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each of the corpus's checkpoints' files, by path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent != folder
    }
