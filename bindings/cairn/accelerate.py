"""Hugging Face accelerate's save_state and load_state through Cairn: all of a state in one checkpoint, saved while
training goes on, and without pickle.

    accelerator = cairn.accelerate.Accelerator(cairn_options={"host_memory": "4GiB"})  # and accelerate's own arguments
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    accelerator.load_state("run/100")
    accelerator.save_state("run/200")
    accelerator.end_training()

One path is one checkpoint, a folder that is there whole or not at all; `_path_store` says how. It serves one process and
DDP. FSDP, DeepSpeed, Megatron-LM and XLA are refused by name; `cairn.dcp` saves FSDP2's state.
"""

from __future__ import annotations

import logging
import os
import re
import weakref
from pathlib import Path
from typing import Any

import torch

try:
    import accelerate
    from accelerate.data_loader import SeedableRandomSampler
    from accelerate.state import GradientState
except ImportError as error:
    raise ImportError(f"cairn.accelerate needs accelerate 1.x: pip install accelerate ({error})") from error

from ._checkpointer import Checkpointer
from ._errors import FailedPrecondition, InvalidArgument, NotFound, Unsupported, unless_disk_hangs
from ._path_store import PathStore
from ._paths import is_checkpoint, local_path
from ._protect import COPIED_BUFFER, Hook
from ._ranks.replicas import Rules
from ._rng import RngState
from ._save import Save
from ._tree.optimizer_loads import warn_of_unsaved
from ._tree.reader import Nothing

__all__ = ["Accelerator"]

_log = logging.getLogger("cairn")
# What decides a loader's order, as a loader's state calls it.
_ORDERS = {"sampler": "a seedable sampler", "generator": "a generator", "state": "a state of its own"}
_SERVED = {"NO", "MULTI_CPU", "MULTI_GPU"}
_REPLICATED = Rules(
    ("models/*", "optimizers/*", "schedulers/*", "scaler/*")
)  # What DDP keeps identical in all processes.


class Accelerator(accelerate.Accelerator):
    """accelerate.Accelerator, whose save_state starts a save and returns; its arguments, and `cairn_options`, those of
    Checkpointer (host_memory, max_in_flight, ...).

    A checkpoint has the models, optimizers, schedulers, scaler, registered objects, random generators, and of each data
    loader its epoch, its sampler's seed and, if it is stateful, its state. It is durable once `wait_for_checkpoints` or
    `end_training` has returned. Prepared optimizers wait before each step until what they would change is captured. Call
    `fence` before other code that changes tensors in place.
    """

    def __init__(self, *args: Any, cairn_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._cairn = PathStore(**(cairn_options or {}))
        self._fenced: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **kwargs: Any) -> str:
        """Starts a save to this path, or to the next one of automatic_checkpoint_naming, and returns the path.

        In a group every process calls it. What the path held stays until the new checkpoint is durable. Raises the first
        failure of an earlier save, unless the disk hung; InvalidArgument, by name, for what cannot be kept without pickle.
        """
        self._check_served(kwargs)
        named = self.project_configuration.automatic_checkpoint_naming
        path = self._next_path() if named else _given(output_dir)
        if self._group() is None:
            unless_disk_hangs(self._cairn.check)
        if not self.sync_gradients:
            _log.warning("%s: a save in the midst of gradient accumulation does not keep the gradients so far", path)
        self._warn_of_unsaved()
        self.project_configuration.iteration += 1

        def start(checkpointer: Checkpointer, step: int, tree: Any) -> Save:
            save = checkpointer.save(step, tree, replicated=_REPLICATED)
            checkpointer.protect(*self._optimizers)
            self._fence_forward()
            return save

        try:
            self._cairn.save(self._tree(), path, start, self._group())
        except BaseException:
            self.project_configuration.iteration -= 1
            raise
        if named and self.is_main_process:
            self._remove_oldest(path)
        return path

    def load_state(
        self,
        input_dir: str | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        strict: bool = True,
        cast: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Restores everything from this path, or from the newest of automatic_checkpoint_naming, in place.

        In a group every process calls it; as many as have saved. `strict` and `cast` as in Checkpointer.restore. Raises
        NotFound if there is nothing, InvalidArgument if accelerate itself wrote the folder, or if what is prepared and
        registered is not what was saved: also if one side has none, or another number. With strict=False what both have
        is loaded, data loaders by their place, and the log names the rest.
        """
        self._check_served(kwargs | (load_kwargs or {}))
        if self.is_main_process:
            self._cairn.finish()
        self.wait_for_everyone()
        path = self._newest_path() if input_dir is None else local_path(input_dir)
        if os.path.isdir(path) and not is_checkpoint(path):
            raise InvalidArgument(
                f"{path}: expected a Cairn checkpoint; if accelerate wrote it, read it with accelerate"
            )
        with self._cairn.reader(path, self._group()) as reader:
            own = self._tree() | {"dataloaders": [_Loader(loader) for loader in self._dataloaders]}
            into = {key: Nothing.NOTHING if held in (None, []) else held for key, held in own.items()}
            tree = reader.restore(into, folder=path, strict=strict, cast=cast)
        self._warn_of_unsaved()
        self.step = tree["step"]
        self.project_configuration.iteration = tree["iteration"]

    def wait_for_checkpoints(self) -> None:
        """Returns when every save is durable at its path; raises the first failure."""
        self._cairn.finish()
        self._cairn.check()

    def fence(self) -> None:
        """Orders later work after the capture of every save so far. Call it before tensors change in place."""
        self._cairn.fence()

    def end_training(self) -> None:
        """Waits for the saves, frees the pool, and ends accelerate's trackers. Raises the first failure of a save."""
        try:
            self._cairn.close()
        finally:
            super().end_training()

    def prepare_data_loader(self, *args: Any, **kwargs: Any) -> Any:
        """accelerate's. Of a loader whose order a generator draws, an epoch's first state is kept: see _Loader."""
        loader = super().prepare_data_loader(*args, **kwargs)
        if getattr(loader, "synchronized_generator", None) is not None:
            loader.gradient_state = _Epochs()
        return loader

    # Internal

    def _warn_of_unsaved(self) -> None:
        modules = [one for one in (*self._models, *self._custom_objects) if isinstance(one, torch.nn.Module)]
        warn_of_unsaved(self._optimizers, modules)

    def _fence_forward(self) -> None:
        """A save copies a module's small buffers. Forward writes the large ones, too, and no optimizer fences before it."""
        for model in self._models:
            if model not in self._fenced and any(buffer.nbytes > COPIED_BUFFER for buffer in model.buffers()):
                self._fenced.add(model)
                model.register_forward_pre_hook(Hook(self._before_forward))

    def _before_forward(self, *_: Any) -> None:
        self.fence()

    def _group(self) -> Any:
        return torch.distributed.group.WORLD if self.num_processes > 1 else None

    def _tree(self) -> dict[str, Any]:
        return {
            "models": [self.unwrap_model(model) for model in self._models],
            "optimizers": [optimizer.optimizer for optimizer in self._optimizers],
            "schedulers": [getattr(one, "scheduler", one) for one in self._schedulers],
            "scaler": self.scaler,
            "registered": [*self._custom_objects],
            "dataloaders": [_Loader(loader).state_dict() for loader in self._dataloaders],
            "rng": RngState(),
            "step": self.step,
            "iteration": self.project_configuration.iteration,
        }

    def _check_served(self, kwargs: dict[str, Any]) -> None:
        kind = self.distributed_type.value
        if kind not in _SERVED:
            raise Unsupported(
                f"cairn.accelerate does not support {kind}: one process and DDP are supported; cairn.dcp saves FSDP2's "
                "state"
            )
        if kwargs:
            raise Unsupported(f"{', '.join(kwargs)}: expected no arguments for the serialization, which Cairn does")
        if self._save_model_state_pre_hook or self._load_model_state_pre_hook:
            raise Unsupported(
                "hooks of register_save_state_pre_hook and register_load_state_pre_hook write into accelerate's folder: "
                "use register_for_checkpointing"
            )

    def _folder(self) -> str:
        if not self.project_configuration.automatic_checkpoint_naming or self.project_dir is None:
            raise InvalidArgument("expected a path, or automatic_checkpoint_naming with a project_dir")
        return os.path.join(self.project_dir, "checkpoints")

    def _next_path(self) -> str:
        path = os.path.join(self._folder(), f"checkpoint_{self.save_iteration}")
        if self._cairn.exists(path):
            raise FailedPrecondition(
                f"{path} exists already: load_state() continues from the newest, or set "
                "project_configuration.iteration to the number of the next"
            )
        return path

    def _numbers(self) -> list[int]:
        folder = Path(self._folder())
        names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"checkpoint_(\d+)", name)))

    def _newest_path(self) -> str:
        if not (there := self._numbers()):
            raise NotFound(f"there is no checkpoint in {self._folder()}")
        return os.path.join(self._folder(), f"checkpoint_{there[-1]}")

    def _remove_oldest(self, newest: str) -> None:
        limit = self.project_configuration.total_limit
        if limit is None:
            return
        lowest = min([*self._numbers(), self.save_iteration])
        # The newest ones may be in flight.
        paths = [os.path.join(self._folder(), f"checkpoint_{number}") for number in range(lowest, self.save_iteration)]
        older = [path for path in paths if path != newest and self._cairn.exists(path)]
        for path in older[: max(0, len(older) + 1 - limit)]:
            self._cairn.remove(path)


def _given(path: str | None) -> str:
    if path is None:
        raise InvalidArgument("expected a path, or automatic_checkpoint_naming with a project_dir")
    return os.path.expanduser(os.fspath(path))


def _sampler_of(loader: Any) -> Any:
    """The sampler that draws by seed and epoch, wherever accelerate has wrapped it."""
    batches = getattr(loader, "batch_sampler", None)
    for holder in (loader, batches, getattr(batches, "batch_sampler", None)):
        if isinstance(sampler := getattr(holder, "sampler", None), SeedableRandomSampler):
            return sampler
    return None


class _Epochs(GradientState):
    """Tells a data loader that an epoch begins: nothing is drawn yet."""

    def _add_dataloader(self, dataloader: Any) -> None:
        dataloader.cairn_began = dataloader.synchronized_generator.get_state()
        super()._add_dataloader(dataloader)


class _Loader:
    """A data loader by what gives the same batches again. In mid-epoch the caller skips those that he has had
    (accelerate.skip_first_batches), or a stateful one does: so its generator must draw this epoch's order once more."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        loader = self._loader
        state: dict[str, Any] = {"iteration": getattr(loader, "iteration", 0), "sampler": None, "state": None}
        if sampler := _sampler_of(loader):
            state["sampler"] = {"seed": sampler.initial_seed, "epoch": sampler.epoch}
        generator = getattr(loader, "synchronized_generator", None)
        state["generator"] = None if generator is None else generator.get_state()
        # Also by the loader that skip_first_batches has made of this one.
        iterated = [getattr(one, "synchronized_generator", None) for one in GradientState().dataloader_references]
        if generator is not None and any(one is generator for one in iterated):
            state["generator"] = getattr(loader, "cairn_began", state["generator"])
        if getattr(loader, "use_stateful_dataloader", False):
            state["state"] = loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        loader, own = self._loader, self.state_dict()
        for key, what in _ORDERS.items():
            if (own[key] is None) != (state[key] is None):
                here, there = ("without", "of one with") if own[key] is None else ("with", "of one without")
                _log.warning(
                    "a data loader %s %s gets the state %s: its rows may come in another order", here, what, there
                )
        if hasattr(loader, "iteration"):
            loader.iteration = state["iteration"]
        if (sampler := _sampler_of(loader)) and state["sampler"] is not None:
            sampler.initial_seed, sampler.epoch = state["sampler"]["seed"], state["sampler"]["epoch"]
        generator = getattr(loader, "synchronized_generator", None)
        if generator is not None and state["generator"] is not None:
            generator.set_state(state["generator"])
            loader.cairn_began = state["generator"]
        if state["state"] is not None:
            loader.load_state_dict(state["state"])
