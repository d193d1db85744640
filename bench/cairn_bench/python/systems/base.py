"""The interface through which this benchmark uses a checkpointing system."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..states import tensors


def nothing():
    pass


@dataclass
class Pending:
    """A save under way. Each call waits: until the tensors are free again, and until the system calls it finished."""

    captured: Callable[[], Any] = nothing
    finished: Callable[[], Any] = nothing


class System:
    """One system, open on a folder, with the state that it saves.

    `durable`: whether it calls a save finished only after fsync. If it does not, the benchmark fsyncs every file and
    folder of the checkpoint after the save.
    """

    durable = False
    package = "torch"  # The results show its version.

    def __init__(self, root, tree):
        self.root = root
        self.tree = tree

    @property
    def on_gpu(self):
        return any(tensor.is_cuda for _, tensor in tensors(self.tree))

    def path(self, step):
        return os.path.join(self.root, f"step-{step}")

    def save(self, step) -> Pending:
        """The call that a training loop makes."""
        raise NotImplementedError

    def load(self, step):
        """Reads into the state's tensors, or returns a tree of the same form with other tensors."""
        raise NotImplementedError

    def remove(self, step):
        path = self.path(step)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def close(self):
        pass


def fsync_all(path):
    """Makes durable what is at `path`: each file, each folder, and the folder above."""

    def fsync(one):
        fd = os.open(one, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    if os.path.isdir(path):
        for folder, _, files in os.walk(path, topdown=False):
            for file in files:
                fsync(os.path.join(folder, file))
            fsync(folder)
    else:
        fsync(path)
    fsync(os.path.dirname(path))
