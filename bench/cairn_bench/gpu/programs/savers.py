"""The ways of saving that step D compares: `save`, then `fence` before the tensors change, then `drain` at the end."""

import os
import shutil

import cairn
import torch


class Cairn:
    def __init__(self, root, model, optimizer, options):
        self.tree = {"model": model, "optimizer": optimizer}
        cuda = next(model.parameters()).is_cuda
        more = {"cuda_devices": [torch.cuda.current_device()]} if cuda else {}
        self.stream = torch.cuda.current_stream() if cuda else None
        self.checkpointer = cairn.Checkpointer(root, keep_last=1, **options, **more)

    def save(self, step):
        self.last = self.checkpointer.save(step, self.tree)

    def fence(self):
        self.checkpointer.fence(self.stream)

    def drain(self):
        self.checkpointer.drain()

    def restore(self):
        self.checkpointer.restore(self.tree)

    def close(self):
        self.checkpointer.close()


class Peer:
    """What has no retention of its own: the newest checkpoint stays."""

    def __init__(self, root, model, optimizer):
        self.root, self.model, self.optimizer = root, model, optimizer
        self.kept = None

    def path(self, step):
        return os.path.join(self.root, str(step))

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def keep(self, path):
        if self.kept is not None:
            shutil.rmtree(self.kept, ignore_errors=True)
        self.kept = path

    def fence(self):
        pass

    def drain(self):
        pass

    def close(self):
        pass


class TorchSave(Peer):
    """Synchronous, with fsync."""

    def save(self, step):
        os.makedirs(self.path(step))
        with open(os.path.join(self.path(step), "state.pt"), "wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        self.keep(self.path(step))


class DcpAsync(Peer):
    """dcp.async_save, staged on a thread into memory that it keeps, pinned on a GPU."""

    def __init__(self, root, model, optimizer):
        super().__init__(root, model, optimizer)
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self.dcp = dcp
        cuda = next(model.parameters()).is_cuda
        options = StagingOptions(
            use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=cuda
        )
        self.make_stager = lambda: DefaultStager(options)
        self.stager = self.make_stager()
        self.staged = self.uploaded = None

    def save(self, step):
        self.drain()  # It does not save two at once.
        if not self.stager._state_dict_stager._deepcopy_dispatch:
            # torch 2.11's is used up by one save. Its allocator keeps the pinned memory.
            self.stager.close()
            self.stager = self.make_stager()
        response = self.dcp.async_save(
            self.state(), checkpoint_id=self.path(step), async_stager=self.stager, no_dist=True
        )
        self.staged, self.uploaded, self.step = response.staging_completion, response.upload_completion, step

    def fence(self):
        if self.staged is not None:
            self.staged.result()

    def drain(self):
        if self.uploaded is not None:
            self.uploaded.result()
            self.keep(self.path(self.step))
            self.staged = self.uploaded = None

    def close(self):
        self.drain()
        self.stager.close()
