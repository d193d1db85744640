"""Cairn checkpoints of a Hugging Face model -> a folder that `from_pretrained` reads."""

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
    """One that only reads: it leaves a training that goes on under this root alone."""
    return Checkpointer(root, read_only=True, host_memory="64MiB")


def read_model(checkpointer: Checkpointer, step: int | None) -> dict[str, Any]:
    """A checkpoint's tree with the model's tensors, on the CPU and tied as they were; None for all other tensors."""
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

    config.json, generation_config.json and model.safetensors (in shards where large), as save_pretrained of the model's
    class writes them: tied weights once, under the name that it expects. With a `processing_class` (a tokenizer, say)
    its files too. `model`, one of the same class and config, is needed only where its class is not in transformers; its
    weights are not looked at. The folder appears whole or not at all; AlreadyExists where there is something in it. May
    run while training goes on.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AlreadyExists(f"{target} is there already, and not an empty folder")
    with reader(root) as checkpointer:
        tree = read_model(checkpointer, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        made.chmod(0o755)  # mkdtemp's is for the owner alone.
        empty = _skeleton(tree, made) if model is None else model
        empty.save_pretrained(made, state_dict=tree["model"])
        if processing_class is not None:
            processing_class.save_pretrained(made)
        os.rename(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _skeleton(tree: dict[str, Any], folder: Path) -> Any:
    """A model of the checkpoint's class and config that holds its tensors, made without memory of its own."""
    kind = getattr(transformers, tree["class"], None)
    if kind is None or tree["config"] is None:
        raise InvalidArgument(
            f"the checkpoint's model is a {tree['class']}, which transformers does not have: give a `model` of that class"
        )
    (folder / CONFIG_NAME).write_text(tree["config"], encoding="utf-8")
    with torch.device("meta"):
        model = kind(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    model.load_state_dict(tree["model"], assign=True)
    if tree["generation_config"] is not None:
        (folder / GENERATION_CONFIG_NAME).write_text(tree["generation_config"], encoding="utf-8")
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model
