"""Lightning's checkpoints through Cairn: saved while training goes on, and without pickle.

    trainer = Trainer(
        plugins=[cairn.lightning.CheckpointIO(host_memory="4GiB")],
        callbacks=[cairn.lightning.Callback(), ModelCheckpoint(folder, monitor="loss", save_top_k=3, save_last=True)],
    )
    trainer.fit(model, ckpt_path="last")

A path such as `last.ckpt` becomes a folder that any safetensors reader opens, whole or not at all. The old checkpoint
of the path stays until then. What ModelCheckpoint removes is removed once the save that displaced it is durable.
`_path_store` says how. It works with `lightning.pytorch`, and with `pytorch_lightning` if that one is imported or
installed.

It serves strategies in which one rank holds the whole state: one device, and DDP. FSDP, DeepSpeed, tensor parallelism
and XLA save in their own ways. They are refused by name; `cairn.dcp` saves their state.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import sys
import warnings
from concurrent.futures import Future
from enum import Enum
from typing import Any

import torch

from ._errors import FailedPrecondition, InvalidArgument, Unsupported, counted
from ._lightning.requeue import Requeue
from ._path_store import PathStore
from ._rng import RngState
from ._tree.paths import is_stateful

_log = logging.getLogger("cairn")
_SHARDED = {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy"}
_BUFFERS = 64 << 20  # Bytes of a model's buffers that a save clones, so that the next forward need not wait.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, complex, str, bytes})


def _lightning() -> Any:
    """The package that the user has imported; if both or neither, `lightning.pytorch`."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            missing = error
    raise ImportError("cairn.lightning needs lightning 2.x: pip install lightning") from missing


_pl = _lightning()
_CheckpointIO: Any = _pl.plugins.CheckpointIO
_Callback: Any = _pl.Callback


class CheckpointIO(_CheckpointIO):
    """Trainer(plugins=[CheckpointIO(...)]): Lightning's saves, loads and removals, through one Checkpointer.

    Options are Checkpointer's (host_memory, max_in_flight, ...), except those that choose what is kept: ModelCheckpoint
    does that. With a Callback (below) saves go on while training does; without one each is durable when its call
    returns. A failure in the background is raised by the next save and at the end of the fit.
    """

    def __init__(self, **options: Any) -> None:
        self._store = PathStore(**options)
        self._module: Any = None  # Set while a Callback fences.
        self._warned = False  # Or no warning is needed.
        self.fences_forward = False  # The newest save's buffers were too large to clone.

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Raises InvalidArgument, with the key, for a value that cannot be kept without pickle, before a byte is
        written."""
        if storage_options is not None:
            raise TypeError("storage_options: expected None, because Cairn saves to local filesystems")
        self._store.check()
        if self._module is not None:
            save = self._start(self._with_cloned_buffers(checkpoint), path)
            if os.path.basename(path).startswith("hpc_ckpt_"):
                save.exception()  # Lightning hands the job back to SLURM next.
                self._store.check()
            return
        if not self._warned:
            self._warned = True
            warnings.warn(
                "without cairn.lightning.Callback among the Trainer's callbacks, or outside a fit, each save waits "
                "until it is durable",
                stacklevel=2,
            )
        try:
            self._start(checkpoint, path).exception()
        finally:
            self._store.close()

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Tensors are on the CPU, or on map_location (a device, its name, or a dict with the key "cpu"). Runs no code
        from the checkpoint, whatever weights_only is."""
        checkpoint: dict[str, Any] = _placed(self._store.load(path), map_location)
        return checkpoint

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes it once the earlier saves are durable; at once if none is in flight."""
        removal = self._store.remove(path)
        if self._module is None:
            removal.exception()
            self._store.close()

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether it will exist when every save and removal in flight has succeeded."""
        return self._store.exists(path)

    def teardown(self) -> None:
        """Waits for saves in flight and frees the pool. Raises the first failure, unless an exception is being
        handled."""
        self._module = None
        under_way = sys.exc_info()[1]
        try:
            self._store.close()
        except Exception as error:
            if under_way is None:
                raise
            _log.error("a checkpoint was lost: %s", error)

    def fence(self) -> None:
        """Orders later work of the current streams after the capture of every save so far; see Checkpointer.fence."""
        if checkpointer := self._store.checkpointer:
            checkpointer._fence_held()

    def attach(self, module: Any) -> None:
        """Saves may go on while this module trains: the caller fences."""
        self._module, self._warned = module, True

    def _start(self, checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> Future[None]:
        try:
            _check_kept(checkpoint, "")
            return self._store.save(checkpoint, path)
        except InvalidArgument as error:
            key = str(error).partition(":")[0].split("/")
            if key[0] in ("hyper_parameters", "datamodule_hyper_parameters") and len(key) > 1:
                raise InvalidArgument(f'{error}; or self.save_hyperparameters(ignore=["{key[1]}"])') from error
            raise

    def _with_cloned_buffers(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Forward changes buffers (batch norm's averages), and only the optimizer's step after it is fenced."""
        state = checkpoint.get("state_dict")
        if not isinstance(state, dict):
            return checkpoint
        addresses = {buffer.data_ptr() for buffer in self._module.buffers()}
        buffers = {
            name: tensor
            for name, tensor in state.items()
            if isinstance(tensor, torch.Tensor) and tensor.data_ptr() in addresses
        }
        self.fences_forward = sum(tensor.nbytes for tensor in buffers.values()) > _BUFFERS
        if self.fences_forward or not buffers:
            return checkpoint
        state = copy.copy(state)
        state.update({name: tensor.detach().clone() for name, tensor in buffers.items()})
        return {**checkpoint, "state_dict": state}


class Callback(_Callback):
    """Trainer(callbacks=[Callback(), ...]): lets CheckpointIO's saves go on while training does.

    From on_fit_start on it fences before each optimizer's step, before validation and between epochs. Other code that
    changes tensors in place (in a hook of your own) must call `fence` first. It saves the random generators of torch,
    numpy and random of each rank, and restores them when training resumes. So a run that resumes from a `fit`'s
    checkpoint continues as the uninterrupted one, in mid-epoch if the data loader has state_dict and load_state_dict
    (Lightning's rule).

    With ModelCheckpoint(save_last="link") each save is durable when its call returns, because the link needs its
    target. Loggers that upload a checkpoint right after its save do not find it yet.
    """

    def __init__(self) -> None:
        self._io: CheckpointIO | None = None
        self._trainer: Any = None
        self._rng: dict[str, Any] | None = None
        self._hooks: list[Any] = []

    @property
    def state_key(self) -> str:
        return "cairn.lightning.Callback"

    def fence(self) -> None:
        """Orders later work after the capture of every save so far. Call it before tensors change in place."""
        if self._io is not None:
            self._io.fence()

    # Lightning's hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        for kind in type(trainer.strategy).__mro__:
            if kind.__name__ in _SHARDED:
                raise Unsupported(
                    f"cairn.lightning does not support {kind.__name__}: save its state with cairn.dcp. One device and "
                    "DDP are supported"
                )
        given = trainer.strategy.checkpoint_io
        if not isinstance(given, CheckpointIO):
            raise FailedPrecondition(
                f"cairn.lightning.Callback needs Trainer(plugins=[cairn.lightning.CheckpointIO()]), found "
                f"{type(given).__name__}"
            )
        self._io, self._trainer = given, trainer
        # This callback runs first, so that no other one changes weights before the fence.
        others = [one for one in trainer.callbacks if one is not self and not isinstance(one, Requeue)]
        trainer.callbacks = [self, *others, _Requeue()]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        assert self._io is not None
        # After this hook Lightning makes the loader's iterator, which draws random numbers; so does a new epoch.
        self._restore_rng()
        checkpoints = [one for one in trainer.callbacks if isinstance(one, _pl.callbacks.ModelCheckpoint)]
        if any(one.save_last == "link" for one in checkpoints):
            return
        for one in checkpoints:
            one.file_exists = self._file_exists  # Lightning's own would miss saves in flight to the same name.
        self._io.attach(pl_module)
        if not pl_module.automatic_optimization:
            self._hooks = [one.register_step_pre_hook(self._before_step) for one in trainer.optimizers]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # In mid-epoch the uninterrupted run drew no random numbers here. After the last batch a new epoch begins.
        loop = trainer.fit_loop
        if loop.restarted_mid_epoch and not loop.epoch_loop.batch_progress.is_last_batch:
            self._restore_rng()
        self._rng = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if (self._io is not None and self._io.fences_forward) or not trainer.optimizers:
            self.fence()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.fence()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.fence()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.fence()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.fence()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.fence()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        # Rank 0 has written everything; the other ranks may read it next.
        trainer.strategy.barrier("cairn.lightning")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        for hook in self._hooks:
            hook.remove()
        for one in trainer.checkpoint_callbacks:
            vars(one).pop("file_exists", None)
        self._io = self._trainer = self._rng = None
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        state = RngState().state_dict()
        ranks: list[Any] = [state]
        if self._trainer is not None and self._trainer.world_size > 1:
            ranks = [None] * self._trainer.world_size
            torch.distributed.all_gather_object(ranks, state)
        return {"rng": ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rng = state_dict

    # Internal

    def _file_exists(self, filepath: str, trainer: Any) -> bool:
        here = self._io.exists(filepath) if self._io is not None and trainer.is_global_zero else False
        return bool(trainer.strategy.reduce_boolean_decision(here, all=False))

    def _before_step(self, *_: Any) -> None:
        self.fence()

    def _restore_rng(self) -> None:
        if self._rng is None:
            return
        ranks = self._rng["rng"]
        if len(ranks) != self._trainer.world_size:
            _log.warning(
                "expected the random generators of %s, found those of %d: they are left as they are",
                counted(self._trainer.world_size, "rank"),
                len(ranks),
            )
            return
        RngState().load_state_dict(ranks[self._trainer.global_rank])


class _Requeue(Requeue, _Callback):
    """See there."""


def load_from_checkpoint(
    cls: Any,
    path: str | os.PathLike[str],
    map_location: Any = None,
    hparams_file: str | os.PathLike[str] | None = None,
    strict: bool | None = None,
    **kwargs: Any,
) -> Any:
    """`cls.load_from_checkpoint(path)` for Cairn's checkpoints: `cls` is a LightningModule or LightningDataModule.

    Lightning's own function reads with torch.load. Hyper-parameters come from the checkpoint, or from hparams_file;
    kwargs override them.
    """
    saving = importlib.import_module(f"{_pl.__name__}.core.saving")
    checkpoint = load_checkpoint(path, map_location)
    if hparams_file is not None:
        reads = {
            ".yaml": "load_hparams_from_yaml",
            ".yml": "load_hparams_from_yaml",
            ".csv": "load_hparams_from_tags_csv",
        }
        suffix = os.path.splitext(hparams_file)[1].lower()
        if suffix not in reads:
            raise InvalidArgument(f"hparams_file: expected .csv, .yml or .yaml, found {os.fspath(hparams_file)}")
        checkpoint[cls.CHECKPOINT_HYPER_PARAMS_KEY] = getattr(saving, reads[suffix])(hparams_file)
    checkpoint.setdefault(cls.CHECKPOINT_HYPER_PARAMS_KEY, {}).update(kwargs)
    if issubclass(cls, _pl.LightningDataModule):
        return saving._load_state(cls, checkpoint, **kwargs)
    model = saving._load_state(cls, checkpoint, strict=strict, **kwargs)
    tensors = (tensor for tensor in checkpoint["state_dict"].values() if isinstance(tensor, torch.Tensor))
    return model.to(next(tensors, torch.empty(0)).device)


def load_checkpoint(path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
    """The dict of a Lightning checkpoint, as torch.load returns it for Lightning's own files."""
    return CheckpointIO(host_memory="256MiB").load_checkpoint(path, map_location)


def _check_kept(value: Any, name: str, depth: int = 0) -> None:
    """Refuses values that would come back as another type: nothing says at load what they were."""
    if depth > 64:
        return  # `flatten` refuses such a depth.
    if is_stateful(value) or isinstance(value, Enum):
        hint = "keep its name or its value" if isinstance(value, Enum) else "keep its state_dict()"
        raise InvalidArgument(f"{name}: a value of type {type(value).__qualname__} cannot be kept; {hint}")
    if isinstance(value, (dict, list, tuple)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            if type(child) not in _PLAIN:
                _check_kept(child, f"{name}/{key}" if name else str(key), depth + 1)


def _placed(value: Any, where: Any) -> Any:
    if isinstance(where, dict):
        where = where.get("cpu")
    if where is None:
        return value
    if not isinstance(where, (str, int, torch.device)):
        raise InvalidArgument(f"map_location: expected a device, its name or a dict, found {type(where).__name__}")
    return _moved(value, torch.device(where))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        moved = copy.copy(value)  # With an OrderedDict's _metadata.
        moved.update({key: _moved(child, device) for key, child in value.items()})
        return moved
    if type(value) in (list, tuple):
        return type(value)(_moved(child, device) for child in value)
    return value
