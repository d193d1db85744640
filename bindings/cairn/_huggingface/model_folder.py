"""Makes a checkpoint's folder a model folder: config, tokenizer and an index of the weights beside the shards.

The weights stay where they are, in the shard, and frozen ones in the kept file: `model.safetensors.index.json`, which
`from_pretrained` reads, names the file of each. What else the shard holds (the optimizer) is left out of the index.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME
from transformers.utils import logging as transformers_logging

from .._errors import DeadlineExceeded, Error, FailedPrecondition
from .._save import Save
from .contents import is_adapter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

Kept = tuple[str, list[str]] | None  # The kept file of a save, and the tensors in it.
Content = bytes | PurePath | Callable[[Kept], bytes]  # Or what a link leads to; or what is known once data is written.
Files = Mapping[str, Content]  # By name.
_ADAPTER = "adapter_model.safetensors"
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.05  # Seconds between two looks for an attempt's folder.


class ModelFiles:
    """What `from_pretrained` reads beside the weights: the files that save_pretrained writes, as bytes."""

    def __init__(self) -> None:
        self._configs: tuple[str | None, ...] | None = None
        self._files: dict[str, Content] = {}

    def read(self, model: Any, processing_class: Any) -> Files:
        """The files of now. They are made again only if one of the model's configs has changed."""
        configs = tuple(config_text(getattr(model, name, None)) for name in ("config", "generation_config"))
        if configs != self._configs:
            with tempfile.TemporaryDirectory(prefix="cairn-model-") as folder, _without_progress_bars():
                if is_adapter(model):  # Its weights are few, and its config is made with them.
                    model.save_pretrained(folder, save_embedding_layers=False)
                elif hasattr(model, "save_pretrained"):
                    model.save_pretrained(folder, state_dict={})
                if processing_class is not None:
                    processing_class.save_pretrained(folder)
                made = (path for path in Path(folder).iterdir() if path.is_file())
                found = (path for path in made if path.suffix != ".safetensors")
                self._files = {path.name: path.read_bytes() for path in found}
            # save_pretrained has set the config's dtype and architectures.
            self._configs = tuple(config_text(getattr(model, name, None)) for name in ("config", "generation_config"))
        return self._files


def config_text(config: Any) -> str | None:
    return config.to_json_string() if hasattr(config, "to_json_string") else None


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def weight_index(weights: Mapping[str, Any], tied: Iterable[str], shard: str, adapter: bool, frozen: bool) -> Files:
    """The index that names the file of each of the weights, tied ones once; none if a name is escaped there. Which of
    them a kept file holds is known later: only if some are `frozen`.

    PEFT knows no index: for an adapter it is a link from its file's name to the shard.
    """
    if adapter:
        return {_ADAPTER: PurePath(shard)}
    if any("/" in name or "~" in name for name in weights):
        return {}
    held = {name: one for name, one in weights.items() if isinstance(one, torch.Tensor) and name not in set(tied)}
    metadata = {
        "total_parameters": sum(one.numel() for one in held.values()),
        "total_size": sum(one.numel() * one.element_size() for one in held.values()),
    }
    names = sorted(held)

    def index(kept: Kept) -> bytes:
        file, of_kept = kept or ("", [])
        linked = set(of_kept)
        files = {name: file if name in linked else shard for name in names}
        return (json.dumps({"metadata": metadata, "weight_map": files}, indent=2) + "\n").encode()

    return {SAFE_WEIGHTS_INDEX_NAME: index if frozen else index(None)}


class Companions:
    """Writes files beside the shards of saves in flight, durable before the save commits.

    A save that is held makes its attempt's folder and writes its shard, and commits only once it is released. So a
    thread finds that folder, writes and fsyncs the files, and releases the save. The commit fsyncs the folder itself,
    then renames it: the checkpoint appears with its files, or not at all. What removes a checkpoint, or recycles its
    shard, removes them.
    """

    def __init__(self, root: str | os.PathLike[str], file_mode: int = 0o644) -> None:
        self._root = os.fspath(root)
        self._file_mode = file_mode
        self._known: set[str] = set()  # Attempts of earlier saves.
        self._newest: tuple[Save, Future[None]] | None = None  # With what is done once its folder is known.
        self._failure: Exception | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cairn-files")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._worker.shutdown(wait=False)  # `finish` has waited, as long as it may.

    def prepare(self) -> None:
        """To be called before each save: its attempt will be the one that is not known yet."""
        if self._newest is not None:
            save, found = self._newest
            # A disk that hangs holds the thread, but ends the save.
            while not save.done() and not wait([found], _LAST_PAUSE).done:
                pass
        self._known = self._attempts()

    def add(self, save: Save, files: Files) -> None:
        """Writes the files beside the held save's shard, then releases it. If that fails, `check` raises."""
        found: Future[None] = Future()
        self._newest = save, found
        self._worker.submit(self._work, save, files, found)

    def check(self) -> None:
        """Raises the first failure that was not raised before. Its save was cancelled."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def finish(self, timeout: float) -> None:
        """Returns when the files of every save are written. Raises DeadlineExceeded."""
        if wait([self._worker.submit(lambda: None)], timeout).not_done:
            raise DeadlineExceeded(f"{self._root}: a file beside a checkpoint has not been written in {timeout:g} s")

    def _work(self, save: Save, files: Files, found: Future[None]) -> None:
        try:
            try:
                folder = None if save.done() else self._find(save)
            finally:
                found.set_result(None)
            if folder is not None:
                for name, content in files.items():
                    made = content(self._kept_of(save)) if callable(content) else content
                    _write(os.path.join(folder, name), made, self._file_mode)
                save._release()
        except (OSError, Error) as error:
            if save.cancel():  # Else it has failed by itself, and its own error says why.
                self._failure = self._failure or error

    def _attempts(self) -> set[str]:
        return {name for name in os.listdir(self._root) if name.startswith(".attempt-")}

    def _find(self, save: Save) -> str | None:
        pauses = _pauses()
        while not (new := self._attempts() - self._known):
            if save.done():
                return None
            next(pauses)
        if len(new) > 1:
            raise FailedPrecondition(
                f"{self._root}: {len(new)} saves began at once, so step {save.step} cannot get its model's files: save "
                "to another root beside the Trainer's"
            )
        return os.path.join(self._root, new.pop())

    @staticmethod
    def _kept_of(save: Save) -> Kept:
        pauses = _pauses()
        while not save.stats["written"] and not save.done():
            next(pauses)
        return save._core.kept()


def _pauses() -> Iterator[None]:
    pause = _FIRST_PAUSE
    while True:
        time.sleep(pause)
        yield
        pause = min(2 * pause, _LAST_PAUSE)


def _write(path: str, content: bytes | PurePath, mode: int) -> None:
    if isinstance(content, PurePath):
        os.symlink(content, path)  # Durable with the folder, which the commit fsyncs.
        return
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
