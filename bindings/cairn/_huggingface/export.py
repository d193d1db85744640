"""Exports a checkpoint of a Hugging Face model as a folder that `from_pretrained` reads."""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from .. import _tree
from .._checkpointer import Checkpointer
from .._errors import AlreadyExists, InvalidArgument, Unsupported
from .._ranks.replicas import tree_text
from .._tree.codec import Stored
from . import sharded
from .contents import FORMAT, RANK, TRAINER, versioned

_log = logging.getLogger("cairn")
_DRAFT = ".export"  # Ends the hidden folder in which an export is made.


def reader(root: str | os.PathLike[str], memory: str | os.PathLike[str] | None = None) -> Checkpointer:
    """A read-only Checkpointer: it does not disturb a training that writes to this root."""
    return Checkpointer(root, memory=memory, read_only=True, host_memory="64MiB")


def read_trainer(checkpointer: Checkpointer, step: int | None, folder: str = "") -> dict[str, Any]:
    """What a checkpoint says of its training, with dtype and shape in place of tensors, and

        "world": how many ranks saved it
        "path": its folder
        "saved": the dtype and shape of each weight, by name

    Raises InvalidArgument, or Unsupported, if this version of cairn.huggingface did not write it.
    """
    details = checkpointer._engine.reading.inspect_all(step, folder)
    with details["hold"]:
        saved = {name: Stored(dtype, tuple(shape)) for name, dtype, shape, *_ in details["tensors"]}
        _, root, trainer = _read_tree(checkpointer, details, saved)
        return trainer | {"world": details["world"], "path": details["path"], "saved": _weights_in(root)}


def read_model(checkpointer: Checkpointer, step: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same, and the model's weights, on the CPU and tied as before; whole, if FSDP2 had sharded them."""
    details = checkpointer._engine.reading.choose(step)
    with details["hold"]:
        details |= checkpointer._engine.core.inspect_part(details["path"], 0, [])
        if "dcp" in details["values"][0]:
            return sharded.read_whole(checkpointer, details["path"])
        text, _, trainer = _read_tree(checkpointer, details)
        names = _tree.names(text)
        wanted = [name for name in names if name.partition("/")[0] not in (TRAINER, RANK)]
        tensors = checkpointer.load(details["step"], names=wanted)
        tree = _tree.build(text, dict.fromkeys(names) | tensors)
        assert isinstance(tree, dict)
        return trainer, _weights_in(tree)


def _weights_in(root: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in root.items() if key not in (TRAINER, RANK)}


def _read_tree(
    checkpointer: Checkpointer, details: dict[str, Any], tensors: Mapping[str, Stored] = {}
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    text = tree_text(details | checkpointer._engine.core.inspect_part(details["path"], 0, []))
    kinds = _tree.kinds(text)
    tree = _tree.build(text, {name: tensors[name].of_kind(kinds[name]) if name in tensors else None for name in kinds})
    root = tree if isinstance(tree, dict) else {}
    trainer = root.get(TRAINER)
    found = (trainer if isinstance(trainer, dict) else root).get("format")
    if not isinstance(found, str) or not found.startswith("cairn.huggingface/"):
        raise InvalidArgument(f"{details['path']} was not written by cairn.huggingface")
    if found != FORMAT or not isinstance(trainer, dict):
        raise Unsupported(
            f"{details['path']} has the format {found}, this version reads {FORMAT}: export the model with the version "
            "of Cairn that wrote it"
        )
    return text, root, trainer


def export(
    root: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    step: int | None = None,
    *,
    model: Any = None,
    processing_class: Any = None,
    memory: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a checkpoint (None: the newest) as a folder that AutoModel.from_pretrained reads.

    It writes config.json, generation_config.json and model.safetensors (large ones in shards) as save_pretrained of the
    model's class does: tied weights once, under the expected name; those that the config ties, but that differ, both, with a
    warning. With a `processing_class` (for example a tokenizer)
    it writes its files too. `model`, of the same class and config, is needed only if its class is not in transformers;
    its weights are not used. `memory` as in cairn_options: what is there alone is exported, too. The folder appears whole or not at all. AlreadyExists if the folder is not empty. May run
    while training goes on.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AlreadyExists(f"{target} already exists and is not an empty folder")
    with reader(root, memory) as checkpointer:
        trainer, weights = read_model(checkpointer, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_DRAFT, dir=target.parent))
    held = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # Until this process ends, whatever ends it.
        made.chmod(0o755)  # mkdtemp gives access only to the owner.
        empty = _skeleton(trainer, weights, made) if model is None else model
        _tie(empty, weights, os.fspath(root))
        empty.save_pretrained(made, state_dict=weights)
        if processing_class is not None:
            processing_class.save_pretrained(made)
        os.rename(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    finally:
        os.close(held)


def _remove_abandoned(target: Path) -> None:
    """Removes what exports to this folder have left that were killed."""
    for found in target.parent.glob(f".{glob.escape(target.name)}.*{_DRAFT}"):
        try:
            folder = os.open(found, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found, ignore_errors=True)
        except OSError:
            continue  # Its export goes on.
        finally:
            os.close(folder)


def _tie(model: Any, weights: dict[str, Any], where: str) -> None:
    """Makes one of two weights that the config ties, if they are equal (of FSDP2 there are two) or one is missing; and two
    of one that it does not, because save_pretrained writes one of them only, and from_pretrained would not tie them."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    first: dict[int, str] = {}
    for name, weight in weights.items():
        one = first.setdefault(weight.data_ptr(), name) if weight.numel() else name
        if one != name and tied.get(name) != one and tied.get(one) != name:
            weights[name] = weight.clone()
    for name, holder in tied.items():
        if holder not in weights:
            continue
        if name in weights and not torch.equal(weights[name], weights[holder]):
            _log.warning(
                "%s: %s and %s are tied by the model's config, but differ: both are exported as they are. from_pretrained "
                "may tie them: set tie_word_embeddings=False in config.json",
                where, name, holder,
            )  # fmt: skip
        else:
            weights[name] = weights[holder]


def _skeleton(trainer: dict[str, Any], weights: dict[str, Any], folder: Path) -> Any:
    """A model of the checkpoint's class and config that holds the given tensors, without memory of its own."""
    kind = getattr(transformers, trainer["class"], None)
    if kind is None or trainer["config"] is None:
        raise InvalidArgument(
            f"the checkpoint's model is a {trainer['class']}, which is not in transformers: pass a `model` of that class"
        )
    (folder / CONFIG_NAME).write_text(trainer["config"], encoding="utf-8")
    with torch.device("meta"):
        model = kind(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    model.load_state_dict(versioned(model, weights, trainer.get("modules")), assign=True)
    if trainer["generation_config"] is not None:
        (folder / GENERATION_CONFIG_NAME).write_text(trainer["generation_config"], encoding="utf-8")
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model
