"""Ray Train's checkpoints through Cairn: saved while training goes on, and reported once they are durable.

    def train(config):
        with cairn.ray.Checkpoints(host_memory="4GiB", replicated=["optimizer/*", "step"]) as checkpoints:
            checkpoints.protect(optimizer)
            try:
                tree = checkpoints.restore(tree)  # What Ray Train restarts from.
            except cairn.NotFound:
                pass
            for step in ...:
                checkpoints.report(metrics, step, tree)  # instead of ray.train.report(metrics, checkpoint=...)

All workers write one checkpoint, straight to where Ray Train keeps it, in the run's folder. Ray Train registers it when it
is durable on every worker, keeps and removes it by its CheckpointConfig, and restarts a failed run from it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

try:
    import ray.train
    from ray.train import CheckpointUploadMode
except ImportError as error:
    raise ImportError(
        f'cairn.ray needs ray 2.51 or newer with Ray Train V2: pip install "ray[train]" ({error})'
    ) from error

from ._checkpointer import Checkpointer
from ._errors import NotFound, Unsupported, unless_disk_hangs
from ._path_store import PathStore
from ._save import Save

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checkpoints"]


class Checkpoints:
    """One worker's checkpoints, inside the function that Ray Train runs. Every worker makes one and calls the same.

    Options are Checkpointer's (host_memory, max_in_flight, ...), and `replicated`, as for Checkpointer: what is the same
    on all workers, besides the contents of DistributedDataParallel modules. The storage is a filesystem that all workers
    see.
    """

    def __init__(self, *, replicated: Any = (), **options: Any) -> None:
        self._store = PathStore(**options)
        self._replicated = replicated
        self._protected: list[Any] = []

    def protect(self, *targets: Any) -> None:
        """Fences before each step of these optimizers; see Checkpointer.protect."""
        self._protected += targets
        if checkpointer := self._store.checkpointer:
            checkpointer.protect(*targets)

    def fence(self) -> None:
        """Orders later work after the capture of every save so far. Call it before other code changes tensors in place."""
        self._store.fence()

    def report(self, metrics: dict[str, Any], step: int, tree: Any, **options: Any) -> None:
        """Starts a save, and reports the metrics with the checkpoint once that is durable. Returns before.

        Every worker calls it. `options` are ray.train.report's (validation, ...). The checkpoint's folder is named by the
        step. Raises InvalidArgument, with the path, for what cannot be kept without pickle, and the first failure of an
        earlier save; Ray Train raises that in the function too.
        """
        storage = ray.train.get_context().get_storage()
        if storage.storage_filesystem.type_name != "local":
            raise Unsupported(
                f"cairn.ray saves to filesystems that all workers have mounted: RunConfig(storage_path=...) is on "
                f"{storage.storage_filesystem.type_name}"
            )
        name = f"checkpoint_{step:012d}"
        path = os.path.join(storage.experiment_fs_path, name)
        if _group() is None:
            unless_disk_hangs(self._store.check)
        saved = self._store.save(tree, path, self._start, _group())

        def wait(checkpoint: Any, _: str) -> Any:
            saved.result()
            return checkpoint

        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint(path, storage.storage_filesystem),
            checkpoint_dir_name=name,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=wait,
            delete_local_checkpoint_after_upload=False,
            **options,
        )

    def restore(self, tree: Any, *, strict: bool = True, cast: str | None = None) -> Any:
        """Restores the tree, as Checkpointer.restore does, from the checkpoint that Ray Train continues from. `strict` and
        `cast` are that one's.

        Every worker calls it; as many as have saved, unless everything in the tree is replicated. Raises NotFound if
        there is none: the first start.
        """
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            raise NotFound("Ray Train has no checkpoint to continue from")
        with checkpoint.as_directory() as folder, self._store.reader(folder, _group()) as reader:
            return reader.restore(tree, folder=folder, strict=strict, cast=cast)

    def close(self) -> None:
        """Waits until every save is durable, and frees the pool. Raises the first failure."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._store.close(error)

    # Internal

    def _start(self, checkpointer: Checkpointer, step: int, tree: Any) -> Save:
        save = checkpointer.save(step, tree, replicated=self._replicated)
        checkpointer.protect(*self._protected)
        return save


def _group() -> Any:
    """The group of all workers; None for a worker alone."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    return distributed.group.WORLD
