"""Exports a checkpoint of a Hugging Face model as a folder that `from_pretrained` reads."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from .. import _tree
from .._checkpointer import Checkpointer
from .._errors import AlreadyExists, InvalidArgument
from .._ranks.replicas import tree_text

FORMAT = "cairn.huggingface/1"


def reader(root: str | os.PathLike[str]) -> Checkpointer:
    """A read-only Checkpointer: it does not disturb a training that writes to this root."""
    return Checkpointer(root, read_only=True, host_memory="64MiB")


def read_model(checkpointer: Checkpointer, step: int | None) -> dict[str, Any]:
    """A checkpoint's tree with the model's tensors, on the CPU and tied as before; None instead of all other
    tensors."""
    details = checkpointer._reading.choose(step)
    with details["hold"]:
        return _read_model(checkpointer, details | checkpointer._core.inspect_part(details["path"], 0, []))


def _read_model(checkpointer: Checkpointer, details: dict[str, Any]) -> dict[str, Any]:
    text = tree_text(details)
    names = _tree.names(text)
    tree = _tree.build(text, dict.fromkeys(names))
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise InvalidArgument(f"{details['path']} was not written by cairn.huggingface")
    tensors = checkpointer.load(details["step"], names="model/*")
    tree = _tree.build(text, dict.fromkeys(names) | tensors)
    assert isinstance(tree, dict)
    return tree


def export(
    root: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    step: int | None = None,
    *,
    model: Any = None,
    processing_class: Any = None,
) -> None:
    """Writes a checkpoint (None: the newest) as a folder that AutoModel.from_pretrained reads.

    It writes config.json, generation_config.json and model.safetensors (large ones in shards) as save_pretrained of the
    model's class does: tied weights once, under the expected name. With a `processing_class` (for example a tokenizer)
    it writes its files too. `model`, of the same class and config, is needed only if its class is not in transformers;
    its weights are not used. The folder appears whole or not at all. AlreadyExists if the folder is not empty. May run
    while training goes on.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AlreadyExists(f"{target} already exists and is not an empty folder")
    with reader(root) as checkpointer:
        tree = read_model(checkpointer, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        made.chmod(0o755)  # mkdtemp gives access only to the owner.
        empty = _skeleton(tree, made) if model is None else model
        empty.save_pretrained(made, state_dict=tree["model"])
        if processing_class is not None:
            processing_class.save_pretrained(made)
        os.rename(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _skeleton(tree: dict[str, Any], folder: Path) -> Any:
    """A model of the checkpoint's class and config that holds the given tensors, without memory of its own."""
    kind = getattr(transformers, tree["class"], None)
    if kind is None or tree["config"] is None:
        raise InvalidArgument(
            f"the checkpoint's model is a {tree['class']}, which is not in transformers: pass a `model` of that class"
        )
    (folder / CONFIG_NAME).write_text(tree["config"], encoding="utf-8")
    with torch.device("meta"):
        model = kind(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    model.load_state_dict(tree["model"], assign=True)
    if tree["generation_config"] is not None:
        (folder / GENERATION_CONFIG_NAME).write_text(tree["generation_config"], encoding="utf-8")
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model
