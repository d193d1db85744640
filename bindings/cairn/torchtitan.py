"""torchtitan's checkpoints through Cairn: saved while training goes on, several at once, and without pickle.

    config.checkpoint = cairn.torchtitan.CheckpointManager.Config(enable=True, interval=50, host_memory="16GiB")

The folder (`dump_folder/folder`) becomes a Cairn root that all ranks write together; FSDP2, TP and other DTensor states
are read at any number of ranks. torchtitan decides when to save, what is left out and how many are kept
(`keep_latest_k`); its own options mean what they mean there. Before each optimizer step the Trainer calls
`maybe_wait_for_staging`, which fences.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

try:
    from torchtitan.components.checkpointer import MODEL
    from torchtitan.components.checkpointer.dcp import AsyncMode
    from torchtitan.components.checkpointer.dcp import CheckpointManager as _DcpManager
    from torchtitan.tools import filesystem
except ImportError as error:
    raise ImportError(f"cairn.torchtitan needs torchtitan 0.3: {error}") from error

from ._checkpointer import Checkpointer
from ._dcp.direct import load_into, start_save
from ._errors import InvalidArgument, Unsupported, unless_disk_hangs
from ._paths import is_checkpoint, step_folder
from ._tree.casts import allows_loss


class CheckpointManager(_DcpManager):
    """torchtitan's CheckpointManager, with Cairn's saves and loads of full and model-only states.

    What it keeps of torchtitan: `save_future` is the newest save's, done once that is durable on every rank (with `memory`,
    once it is kept there). Hugging
    Face folders are written and read by torchtitan itself, and an initial checkpoint may be one that DCP wrote. A save
    that fails raises at the next save and at `close`; earlier checkpoints are untouched.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_DcpManager.Config):
        async_mode: str = "async"
        """"async" (or "async_with_pinned_mem", which is the same here): a save goes on while training does.
        "disabled": each save is durable when its call returns."""

        host_memory: str = "auto"
        """Hard cap of this rank's pinned pool; the state may be larger."""

        max_in_flight: int = 2
        """Saves that may be under way at once; the next one waits."""

        memory: str | None = None
        """A folder on tmpfs, such as /dev/shm, where each save is kept first: see Checkpointer. A save counts as done once
        it is kept; the disk has the newest when the manager is closed."""

        disk_every: int = 0
        """With memory: the disk gets a save only if its step is so many above that of the newest that it has."""

        cast: str | None = None
        """"allow": a load may convert to a dtype that does not hold every value of the checkpoint's, such as bfloat16 for
        float32. None: that is refused."""

    save_future: Future[None] | None

    def __init__(self, config: Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        if not self.enable:
            return
        self._cast = config.cast
        allows_loss(self._cast)
        if filesystem.is_remote(self.folder):
            raise Unsupported(f"checkpoint.folder: {self.folder} is remote, and Cairn saves to local filesystems only")
        distributed = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        self._checkpointer = Checkpointer(
            self.folder,
            host_memory=config.host_memory,
            max_in_flight=config.max_in_flight,
            memory=config.memory,
            disk_every=config.disk_every,
            keep_last=config.keep_latest_k,
            group=torch.distributed.group.WORLD if distributed else None,
        )
        self._waiting = ThreadPoolExecutor(1, thread_name_prefix="cairn-torchtitan")

    @property
    def checkpointer(self) -> Checkpointer:
        """For what torchtitan has no call for: steps, verify, pin, stats."""
        return self._checkpointer

    # torchtitan's hooks

    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: AsyncMode,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Future[None] | None:
        step = _step_of(checkpoint_id)
        if to_hf:
            super().dcp_save(state_dict, super()._create_checkpoint_id(step), async_mode, to_hf=True)
            return None
        save = start_save(self._checkpointer, step, self._with_versions(state_dict))
        self.save_future = self._waiting.submit(save.kept)
        if async_mode == AsyncMode.DISABLED:
            self._wait_for_saving()
        return self.save_future

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        if from_hf or not is_checkpoint(checkpoint_id):
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        root, step = os.path.dirname(os.path.abspath(checkpoint_id)), _step_of(checkpoint_id)
        in_memory = root == self._checkpointer.stats["memory"]
        here = in_memory or (os.path.exists(self.folder) and os.path.samefile(root, self.folder))
        states = self._with_versions(state_dict)
        load_into(self._checkpointer if here else root, states, step, cast=self._cast)
        # The model's tensors lie at the top of the state dict, where DCP cannot know that they are the model's.
        self.states[MODEL].load_state_dict(states)

    def _with_versions(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same with the versions of the modules' state, which torchtitan drops: without them load_state_dict takes it
        for state of the first version, and migrates it."""
        modules = [pair for model in self.states[MODEL].model for pair in model.named_modules(remove_duplicate=False)]
        found: dict[str, Any] = OrderedDict(state_dict)
        vars(found)["_metadata"] = OrderedDict((name, {"version": module._version}) for name, module in modules)
        return found

    def _load(self, step: int = -1) -> bool:
        # Before it looks which checkpoints there are.
        wait = partial(self._checkpointer._engine.reading.wait_for_saves, None if step == -1 else step)
        self._checkpointer._engine.ranks.together("saves", wait)
        return bool(super()._load(step))

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        unless_disk_hangs(self._checkpointer.check)
        self._checkpointer._engine.fence()  # torchtitan's model wrapper writes into tensors that an older save may read.
        if last_step:
            self._save_last_step(curr_step)
        else:
            states = self._flattened_model_states_sd()
            self.dcp_save(states, step_folder(self.folder, curr_step), self.async_mode)
        return True

    def _maybe_wait_for_staging(self) -> None:
        self._checkpointer._engine.fence()

    def _wait_for_saving(self) -> None:
        assert self.save_future is not None
        unless_disk_hangs(self.save_future.result)
        self.save_future = None

    def _close(self) -> None:
        super()._close()
        if not hasattr(self, "_checkpointer"):
            return
        self.enable = False  # `__del__` closes too.
        self._waiting.shutdown(wait=False)
        try:
            self._checkpointer.drain()
            self._checkpointer.check()
        finally:
            self._checkpointer.close()

    def _find_load_step(self, folder: str = "") -> int:
        """The newest: of Cairn's, and of what DCP wrote into this folder before."""
        older: int = super()._find_load_step(folder)
        if not os.path.exists(os.path.join(super()._create_checkpoint_id(older, folder), ".metadata")):
            older = -1  # A Hugging Face export cannot be resumed from.
        newest = None if folder else self._checkpointer.latest()
        return older if newest is None else max(newest, older)

    def _create_checkpoint_id(self, step: int, folder: str = "") -> str:
        """Where Cairn's checkpoint of the step is, in memory too, or will be; what DCP or Hugging Face's writer has there
        otherwise."""
        stock: str = super()._create_checkpoint_id(step, folder)
        ours = step_folder(folder or self.folder, step)
        if os.path.isdir(ours) or os.path.isdir(stock):
            return ours if os.path.isdir(ours) else stock
        # torchtitan loads only what is a folder.
        kept = {} if folder else {one.step: one.path for one in self._checkpointer.checkpoints()}
        return kept.get(step, ours)

    def _purge_stale_checkpoints(self) -> None:
        """Cairn keeps the newest keep_latest_k by itself."""


def _step_of(path: str) -> int:
    if found := re.fullmatch(r"step-(\d+)", os.path.basename(os.path.normpath(path))):
        return int(found[1])
    raise InvalidArgument(f"{path}: expected a folder step-N, as in a Cairn root, found {os.path.basename(path)!r}")
