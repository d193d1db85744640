"""Lightning's sharded strategies, which save and load through Cairn. See cairn.lightning."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict as torch_state

from .._dcp.optimizer_states import get_optimizer_state, set_optimizer_state
from .._errors import FailedPrecondition, InvalidArgument, Unsupported
from .checkpoint_io import OPTIMIZER, REST, CheckpointIO
from .loads import check_classes, tell_schedulers
from .package import pl

_WRAPPER = re.compile(r"\b(_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module)\.")
_FITTING: Any = pl.trainer.states.TrainerFn.FITTING


class Sharded:
    """What a sharded strategy of Lightning inherits first: each rank saves its own parts, in one checkpoint of all.

    The options are those of Trainer(plugins=[CheckpointIO(...)]). A checkpoint can be loaded by any number of ranks.
    """

    def save_checkpoint(self: Any, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Every rank calls it. A failure of an earlier save on one rank is raised on every rank."""
        if storage_options is not None:
            raise TypeError("storage_options: expected None, because Cairn saves to local filesystems")
        path = self.broadcast(os.fspath(filepath))
        # FSDP1, torch.compile and activation checkpointing put these into names, but not into those of the state dict.
        names = (_WRAPPER.sub("", name) for name, _ in self.lightning_module.named_buffers())
        buffers = {f"state_dict.{name}" for name in names}
        self._cairn_io().save_sharded(checkpoint, path, self._cairn_group(), buffers)

    def load_checkpoint(self: Any, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Every rank calls it. Fills the module, and the optimizers if the Trainer fits; returns the rest."""
        path = os.fspath(self.broadcast(checkpoint_path))
        io, module = self._cairn_io(), self.model
        strict = self.lightning_module.strict_loading
        optimizers = self.optimizers if self.lightning_module.trainer.state.fn == _FITTING else []
        if self.world_size > 1:
            # Rank 0's save to this path may be in flight.
            self.broadcast(io.await_path(path) if self.global_rank == 0 else None)
        with io.sharded_reader(path, self._cairn_group()) as reader:
            missing = [i for i in range(len(optimizers)) if f"{OPTIMIZER}{i}" not in reader.parts]
            if missing:
                raise InvalidArgument(
                    f"{path}: expected the state of {len(optimizers)} optimizers, found that of "
                    f"{sum(part.startswith(OPTIMIZER) for part in reader.parts)}: with save_weights_only it has none. "
                    "cairn.lightning.load_checkpoint reads the weights"
                )
            check_classes(path, optimizers, reader.rest, self.lightning_module)
            state: dict[str, Any] = {"state_dict": torch_state.get_model_state_dict(module), REST: None}
            for index, optimizer in enumerate(optimizers):
                state[f"{OPTIMIZER}{index}"] = get_optimizer_state(module, optimizer)
            reader.load_into(state, strict)
        options = torch_state.StateDictOptions(strict=strict)
        torch_state.set_model_state_dict(module, state["state_dict"], options=options)
        for index, optimizer in enumerate(optimizers):
            set_optimizer_state(module, optimizer, state[f"{OPTIMIZER}{index}"])
        rest: dict[str, Any] = state[REST]
        if optimizers:
            tell_schedulers(path, rest, self.lightning_module.trainer)
        return rest

    def lightning_module_state_dict(self: Any) -> dict[str, Any]:
        """This rank's part, without a copy."""
        return torch_state.get_model_state_dict(self.model)

    def optimizer_state(self: Any, optimizer: Any) -> dict[str, Any]:
        """This rank's part, without a copy."""
        return get_optimizer_state(self.model, getattr(optimizer, "_optimizer", optimizer))

    def teardown(self: Any) -> None:
        """Waits for saves in flight."""
        # Lightning's sharded strategies use no CheckpointIO, and do not end it.
        try:
            if isinstance(self.checkpoint_io, CheckpointIO):
                self.checkpoint_io.teardown()
        finally:
            super().teardown()  # type: ignore[misc]

    def _cairn_group(self: Any) -> Any:
        return torch.distributed.group.WORLD if self.world_size > 1 else None

    def _cairn_io(self: Any) -> CheckpointIO:
        io = self.checkpoint_io
        if not isinstance(io, CheckpointIO):
            raise FailedPrecondition(
                f"{type(self).__name__} needs Trainer(plugins=[cairn.lightning.CheckpointIO()]), found "
                f"{type(io).__name__}"
            )
        return io


class ModelParallelStrategy(Sharded, pl.strategies.ModelParallelStrategy):
    """Lightning's ModelParallelStrategy (FSDP2, tensor parallelism) whose checkpoints are Cairn's; see Sharded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self._save_distributed_checkpoint:
            raise Unsupported("save_distributed_checkpoint=False: Cairn saves what each rank holds; leave it out")


class FSDPStrategy(Sharded, pl.strategies.FSDPStrategy):
    """Lightning's FSDPStrategy whose checkpoints are Cairn's; see Sharded."""

    def __init__(self, *args: Any, state_dict_type: str = "sharded", **kwargs: Any) -> None:
        if state_dict_type != "sharded":
            raise Unsupported(f"state_dict_type={state_dict_type!r}: Cairn saves what each rank holds; leave it out")
        super().__init__(*args, state_dict_type="sharded", **kwargs)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options)
        self._cairn_io().fences_forward = True  # FSDP1's forward frees the storage of gathered parameters.
