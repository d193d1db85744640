"""torch.distributed.checkpoint, in one process without a process group. Its writer fsyncs each file, no folder."""

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from ..states import tensors
from .base import Pending, System


class Save(System):
    durable = True

    def save(self, step):
        dcp.save(self.tree, checkpoint_id=self.path(step), no_dist=True)
        return Pending()

    def load(self, step):
        dcp.load(self.tree, checkpoint_id=self.path(step), no_dist=True)


class AsyncSave(Save):
    """With its defaults: what is staged is copied within the call."""

    def save(self, step):
        future = dcp.async_save(self.tree, checkpoint_id=self.path(step), no_dist=True)
        return Pending(finished=future.result)


class AsyncSaveKeptStager(Save):
    """With one DefaultStager for all saves, which stages on a thread into memory that it keeps."""

    def __init__(self, root, tree):
        super().__init__(root, tree)
        # Without CUDA there are neither pinned memory nor non-blocking copies.
        self.stager = DefaultStager(StagingOptions(self.on_gpu, False, True, self.on_gpu))

    def save(self, step):
        response = dcp.async_save(self.tree, checkpoint_id=self.path(step), async_stager=self.stager, no_dist=True)
        return Pending(response.staging_completion.result, response.upload_completion.result)

    def close(self):
        self.stager.close()


class HuggingFace(Save):
    """HuggingFaceStorageWriter: safetensors files, tensors alone."""

    def __init__(self, root, tree):
        super().__init__(root, dict(tensors(tree)))

    def save(self, step):
        dcp.save(self.tree, storage_writer=dcp.HuggingFaceStorageWriter(self.path(step)), no_dist=True)
        return Pending()

    def load(self, step):
        dcp.load(self.tree, storage_reader=dcp.HuggingFaceStorageReader(self.path(step)), no_dist=True)
