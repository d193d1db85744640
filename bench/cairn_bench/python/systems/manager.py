"""torch_checkpointing: staged into shared memory, written by another process. It does not fsync."""

from torch_checkpointing import CheckpointManager
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.staging import CheckpointStagerConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from .base import Pending, System


class Manager(System):
    direct = True  # Its default.
    package = "torch_checkpointing"

    def __init__(self, root, tree):
        super().__init__(root, tree)
        # As its troubleshooting page says for CPU tensors: no pinned memory, no non-blocking copies.
        staging = CheckpointStagerConfig(use_pinned_memory=self.on_gpu, use_non_blocking_copy=self.on_gpu)
        self.manager = CheckpointManager(
            CheckpointManager.Config(
                save=AsyncCheckpointSaverConfig(staging_config=staging),
                storage_config=LocalFileSystemStorageConfig(use_direct_io=self.direct),
            )
        )

    def save(self, step):
        future = self.manager.save(self.path(step), {"state": self.tree})
        return Pending(self._captured, future.result)

    def _captured(self):
        with self.manager.lock():
            pass

    def load(self, step):
        return self.manager.load(self.path(step), into={"state": self.tree})["state"]

    def close(self):
        self.manager.close()


class BufferedManager(Manager):
    """Without O_DIRECT: it does not align its writes, so ext4 and XFS refuse them."""

    direct = False
