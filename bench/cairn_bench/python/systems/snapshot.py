"""torchsnapshot: take and async_take. It does not fsync."""

import torchsnapshot

from .base import Pending, System


class Take(System):
    package = "torchsnapshot"

    def __init__(self, root, tree):
        super().__init__(root, tree)
        self.app = {"state": torchsnapshot.StateDict(tree=tree)}

    def save(self, step):
        torchsnapshot.Snapshot.take(self.path(step), self.app)
        return Pending()

    def load(self, step):
        torchsnapshot.Snapshot(self.path(step)).restore(self.app)
        return self.app["state"]["tree"]


class AsyncTake(Take):
    """Returns once the tensors are staged."""

    def save(self, step):
        return Pending(finished=torchsnapshot.Snapshot.async_take(self.path(step), self.app).wait)
