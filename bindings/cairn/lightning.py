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

It serves one device and DDP, where rank 0 saves the whole state, and with `strategy=FSDPStrategy(...)` or
`ModelParallelStrategy(...)` of this module (Lightning's, with the same arguments) also sharded state: each rank saves
its parts, in one checkpoint of all, which any number of ranks loads. DeepSpeed and XLA are refused by name.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import torch

from ._errors import FailedPrecondition, InvalidArgument, Unsupported, counted
from ._lightning.checkpoint_io import CheckpointIO
from ._lightning.loads import CALLBACK, check_what_loads, known_of, names_beside, scheduled
from ._lightning.package import name_what_reads
from ._lightning.package import pl as _pl
from ._lightning.requeue import Requeue
from ._lightning.strategies import FSDPStrategy, ModelParallelStrategy, Sharded
from ._lightning.values import fit_versions
from ._rng import RngState
from ._tree.module_loads import check_into
from ._tree.optimizer_loads import Known, warn_of_unsaved
from ._tree.schedulers import classes_of

__all__ = [
    "Callback",
    "CheckpointIO",
    "FSDPStrategy",
    "ModelParallelStrategy",
    "load_checkpoint",
    "load_from_checkpoint",
]

_log = logging.getLogger("cairn")
_Callback: Any = _pl.Callback
_OURS = {"FSDPStrategy", "ModelParallelStrategy"}
_OTHERS = {"DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy"}
name_what_reads()
check_what_loads()


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
        self._fitting = False  # From on_fit_start on.

    @property
    def state_key(self) -> str:
        return CALLBACK

    def fence(self) -> None:
        """Orders later work after the capture of every save so far. Call it before tensors change in place."""
        if self._io is not None:
            self._io.fence()

    # Lightning's hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        for kind in [] if isinstance(trainer.strategy, Sharded) else type(trainer.strategy).__mro__:
            if kind.__name__ in _OURS:
                raise Unsupported(
                    f"Lightning's own {kind.__name__} saves by itself: use "
                    f"Trainer(strategy=cairn.lightning.{kind.__name__}(...)), which takes the same arguments"
                )
            if kind.__name__ in _OTHERS:
                raise Unsupported(
                    f"cairn.lightning does not support {kind.__name__}: save its state with cairn.dcp. One device, DDP, "
                    "FSDPStrategy and ModelParallelStrategy are supported"
                )
        given = trainer.strategy.checkpoint_io
        if not isinstance(given, CheckpointIO):
            wraps = isinstance(getattr(given, "checkpoint_io", None), CheckpointIO)
            raise FailedPrecondition(
                f"cairn.lightning.Callback needs Trainer(plugins=[cairn.lightning.CheckpointIO()]), found "
                f"{type(given).__name__}"
                + (": leave that away, because Cairn's saves go on in the background without it" if wraps else "")
            )
        self._io, self._trainer = given, trainer
        given.optimizers_on = trainer.strategy.root_device
        # This callback runs first, so that no other one changes weights before the fence.
        others = [one for one in trainer.callbacks if one is not self and not isinstance(one, Requeue)]
        trainer.callbacks = [self, *others, _Requeue()]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        assert self._io is not None
        self._fitting = True
        # After this hook Lightning makes the loader's iterator, which draws random numbers; so does a new epoch.
        self._restore_rng()
        checkpoints = [one for one in trainer.callbacks if isinstance(one, _pl.callbacks.ModelCheckpoint)]
        if any(one.save_last == "link" for one in checkpoints):
            return
        for one in checkpoints:
            one.file_exists = self._file_exists  # Lightning's own would miss saves in flight to the same name.
        self._io.attach(pl_module)
        if not pl_module.automatic_optimization:
            self._hooks += [one.register_step_pre_hook(self._fence_before) for one in trainer.optimizers]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # In mid-epoch the uninterrupted run drew no random numbers here. After the last batch a new epoch begins.
        loop, batches = trainer.fit_loop, trainer.fit_loop.epoch_loop.batch_progress
        # Of a run that had been resumed after an epoch's last batch Lightning itself does not know it: it has not counted
        # the epoch that came then.
        unknown = self._rng is not None and batches.current.ready > 0 and not loop.restarted_mid_epoch
        if (loop.restarted_mid_epoch or unknown) and not batches.is_last_batch:
            self._restore_rng()
            if unknown and trainer.max_steps == -1:
                _log.warning(
                    "Lightning has lost where this checkpoint is in its epoch, because its run was resumed at an epoch's last "
                    "batch: the epoch's rows come again from the first one, and one epoch more; give Trainer max_steps"
                )
        self._rng = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if (self._io is not None and self._io.fences_forward) or not trainer.optimizers:
            self.fence()

    def _fence_before(self, *_: Any) -> None:
        self.fence()

    on_before_optimizer_step = on_train_epoch_start = on_train_epoch_end = _fence_before
    on_validation_start = on_train_end = _fence_before

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        # Rank 0 has written everything; the other ranks may read it next.
        trainer.strategy.barrier("cairn.lightning")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        for hook in self._hooks:
            hook.remove()
        for one in trainer.checkpoint_callbacks:
            vars(one).pop("file_exists", None)
        self._io = self._trainer = self._rng = None
        self._fitting = False
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        return {"rng": [RngState().state_dict()]}

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        # Lightning gives state_dict no trainer, and after the fit this callback has none.
        state = checkpoint["callbacks"][CALLBACK]
        if trainer.world_size > 1 and torch.distributed.is_initialized():
            ranks = [None] * trainer.world_size
            torch.distributed.all_gather_object(ranks, state["rng"][0])
            state["rng"] = ranks
        state["optimizers"] = [vars(Known.of(one, pl_module)) for one in trainer.optimizers]
        schedulers = [one.scheduler for one in trainer.lr_scheduler_configs]
        state["schedulers"] = [classes_of(one) for one in schedulers]
        state["scheduled"] = scheduled(schedulers, trainer.optimizers)
        state["beside"] = [name for name in names_beside(trainer) if name in checkpoint]
        batches = trainer.fit_loop.epoch_loop.batch_progress
        if not batches.is_last_batch and (accumulated := batches.current.ready % trainer.accumulate_grad_batches):
            _log.warning(
                "this save is after %d of %d batches whose gradients are accumulated, and does not keep these: save after a "
                "step of the optimizer",
                accumulated,
                trainer.accumulate_grad_batches,
            )
        warn_of_unsaved(trainer.optimizers, [pl_module])

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        for name in known_of(checkpoint).get("beside", ()):
            if name not in names_beside(trainer):
                _log.warning("the checkpoint has the state of %s, which is not in this run: it is left out", name)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rng = state_dict
        if self._fitting:
            self._restore_rng()  # A sharded strategy loads after on_fit_start.

    # Internal

    def _file_exists(self, filepath: str, trainer: Any) -> bool:
        here = self._io.exists(filepath) if self._io is not None and trainer.is_global_zero else False
        return bool(trainer.strategy.reduce_boolean_decision(here, all=False))

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
    cast: str | None = None,
    **kwargs: Any,
) -> Any:
    """`cls.load_from_checkpoint(path)` for Cairn's checkpoints: `cls` is a LightningModule or LightningDataModule.

    Lightning's own function reads with torch.load. Hyper-parameters come from the checkpoint, or from hparams_file;
    kwargs override them. `cast` as in CheckpointIO.
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
    check_into(model.state_dict(), checkpoint["state_dict"], os.fspath(path), cast).log(os.fspath(path))
    if fit_versions(model, checkpoint["state_dict"]):
        model.load_state_dict(checkpoint["state_dict"], strict=False)  # Only here is there a module.
    tensors = (tensor for tensor in checkpoint["state_dict"].values() if isinstance(tensor, torch.Tensor))
    return model.to(next(tensors, torch.empty(0)).device)


def load_checkpoint(path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
    """The dict of a Lightning checkpoint, as torch.load returns it for Lightning's own files."""
    return CheckpointIO(host_memory="256MiB").load_checkpoint(path, map_location)
