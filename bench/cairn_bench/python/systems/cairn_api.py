"""Cairn's plain API: with its default cap, and with one of the state's size, so that a whole snapshot fits the pool."""

import cairn

from ..states import tensors
from .base import Pending, System


class Cairn(System):
    durable = True
    package = "cairn-checkpoint"

    def __init__(self, root, tree, cap=1 << 30):
        super().__init__(root, tree)
        self.cap = cap
        self.checkpointer = cairn.Checkpointer(root, host_memory=cap, keep_last=0)

    def save(self, step):
        save = self.checkpointer.save(step, self.tree)
        return Pending(save.captured, save.wait)

    def load(self, step):
        self.checkpointer.restore(self.tree, step)

    def remove(self, step):
        self.checkpointer.remove(step)

    def close(self):
        self.checkpointer.close()


class CairnWhole(Cairn):
    def __init__(self, root, tree):
        size = sum(tensor.nbytes for _, tensor in tensors(tree))
        super().__init__(root, tree, max(size + (8 << 20), 32 << 20) >> 22 << 22)
