"""The package that Lightning is, and what its own reading of files says about Cairn's checkpoints."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

from .._errors import Unsupported
from .._paths import is_checkpoint, local_path


def _find() -> Any:
    """The package that the user has imported; if both or neither, `lightning.pytorch`."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            missing = error
    raise ImportError("cairn.lightning needs lightning 2.x: pip install lightning") from missing


pl = _find()


def name_what_reads() -> None:
    """Lightning reads a path with torch.load, in LightningModule.load_from_checkpoint and without this CheckpointIO.
    Of a Cairn checkpoint, which is a folder, that would say only that it is a directory."""
    fabric = "lightning_fabric" if pl.__name__ == "pytorch_lightning" else "lightning.fabric"
    for name in (f"{pl.__name__}.core.saving", f"{fabric}.plugins.io.torch_io"):
        module = importlib.import_module(name)
        if not hasattr(module.pl_load, "names_cairn"):
            module.pl_load = _naming(module.pl_load)  # type: ignore[attr-defined]


def _naming(load: Any) -> Any:
    @functools.wraps(load)
    def named(path_or_url: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path_or_url, (str, os.PathLike)) and _is_ours(path_or_url):
            raise Unsupported(
                f"{os.fspath(path_or_url)} is a Cairn checkpoint, a folder, which torch.load cannot read: use "
                "cairn.lightning.load_from_checkpoint(Model, path) for a model, cairn.lightning.load_checkpoint(path) "
                "for its dict, or Trainer(plugins=[cairn.lightning.CheckpointIO()]) to resume"
            )
        return load(path_or_url, *args, **kwargs)

    named.names_cairn = True  # type: ignore[attr-defined]
    return named


def _is_ours(path: str | os.PathLike[str]) -> bool:
    try:
        return is_checkpoint(local_path(path))
    except Unsupported:  # Elsewhere than on a local filesystem.
        return False
