"""Synchronous peers that write one file: torch.save and safetensors.torch.save_file. Neither fsyncs."""

import safetensors.torch
import torch

from ..states import tensors
from .base import Pending, System


class TorchSave(System):
    def save(self, step):
        torch.save(self.tree, self.path(step))
        return Pending()

    def load(self, step):
        return torch.load(self.path(step), weights_only=True)


class Safetensors(System):
    """Keeps tensors alone: of the optimizer's state dict its param_groups are left out."""

    package = "safetensors"

    def __init__(self, root, tree):
        super().__init__(root, tree)
        self.flat = dict(tensors(tree))

    def save(self, step):
        safetensors.torch.save_file(self.flat, self.path(step))
        return Pending()

    def load(self, step):
        found = safetensors.torch.load_file(self.path(step))
        return [found[name] for name in self.flat]
