"""Hugging Face: a Trainer with Cairn's checkpoints, and their export to folders that `from_pretrained` reads.

    from cairn.huggingface import Trainer            # or: class MyTrainer(TrainerMixin, SFTTrainer)

    trainer = Trainer(model=model, args=args, train_dataset=data, cairn_options={"host_memory": "4GiB"})
    trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))  # None: from the beginning
    trainer.export(1000, "exported")

**What a checkpoint holds.** One Cairn checkpoint for each save, numbered by `global_step`, under `output_dir/cairn`:
weights, optimizer, scheduler, gradient scaler, random generators, the text of trainer_state.json (with the states of
callbacks and TrainerControl), the loss that is not logged yet, the model's config. Everything is inside the checkpoint,
and Trainer writes no `checkpoint-N` folder. On resume each of these must be there. On the CPU a resumed run continues
bit by bit, with Trainer's own data skipping.

**How.** A callback is not enough: Trainer writes its own folder before it calls `on_save`, and reads weights and
trainer_state.json from a folder. So the mixin overrides the methods in `EXPECTED`, which are private. This module was
written for transformers 5.23. It refuses older versions and 6, and at import a Trainer whose methods have other
parameters.

**What is refused**, because a checkpoint would be incomplete, or written twice: several processes (DDP, FSDP,
DeepSpeed, TPU), save_only_model, auto_find_batch_size, enable_jit_checkpoint, hyperparameter search, pushes of
checkpoints to the Hub, and optimizers that step within backward (LOMO, layer-wise GaLore).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, TrainerState

from ._checkpointer import Checkpointer
from ._errors import FailedPrecondition, InvalidArgument, NotFound, Unsupported
from ._huggingface.export import FORMAT, export, read_model, reader
from ._huggingface.run import Run
from ._rng import RngState

__all__ = ["Trainer", "TrainerMixin", "export", "last_checkpoint"]
_log = logging.getLogger("cairn")

OLDEST = (5, 23)
BELOW = (6,)
# The methods that the mixin overrides, with their parameters in transformers.
EXPECTED = {
    "train": ("self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_load_from_checkpoint": ("self", "resume_from_checkpoint", "model"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
    "_load_scaler": ("self", "checkpoint"),
    "_load_rng_state": ("self", "checkpoint"),
    "_load_best_model": ("self",),
}


def check_transformers(version: str, trainer: type) -> None:
    """Raises Unsupported unless this module fits that version of transformers, and that Trainer's methods."""
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not OLDEST <= release < BELOW:
        raise Unsupported(f"cairn.huggingface works with transformers >=5.23,<6; found {version}")
    for name, parameters in EXPECTED.items():
        method = getattr(trainer, name, None)
        found = tuple(inspect.signature(method).parameters) if method else None
        if found != parameters:
            raise Unsupported(
                f"transformers {version}: cairn.huggingface overrides Trainer.{name}{parameters}, found {found}: use a "
                "version of transformers that Cairn was tested with (5.23)"
            )


check_transformers(importlib.metadata.version("transformers"), transformers.Trainer)


def last_checkpoint(output_dir: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> str | None:
    """The newest checkpoint's folder, for `train(resume_from_checkpoint=...)`; None if there is none."""
    root = os.path.join(output_dir, "cairn") if root is None else os.fspath(root)
    if not os.path.isdir(root):
        return None
    with reader(root) as checkpointer:
        step = checkpointer.latest()
    return None if step is None else step_folder(root, step)


def step_folder(root: str, step: int) -> str:
    return os.path.join(root, f"step-{step:020d}")


if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class TrainerMixin(_Base):
    """Must come before the Trainer among the bases: `class MyTrainer(TrainerMixin, Seq2SeqTrainer)`.

    All of TrainingArguments' save_strategy, save_steps, save_total_limit (see below), metric_for_best_model and
    load_best_model_at_end keep their meaning. Saves are asynchronous: a failure in the background is raised by the next
    save, or at the end; train() returns when all are durable.

    `cairn_options` are Checkpointer's, with these defaults: root is `output_dir/cairn`; keep_last is save_total_limit
    (0, which keeps all, if that is None). The best model's checkpoint is pinned, so there may be one more.

    `resume_from_checkpoint` is True (the newest), a step, a checkpoint's folder under the root or elsewhere, or a
    `checkpoint-N` of the stock Trainer, after which training continues with Cairn's checkpoints. A root that holds
    checkpoints is refused unless training resumes from them.
    """

    def __init__(self, *args: Any, cairn_options: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._cairn_options = dict(cairn_options or {})
        self._cairn: Run | None = None
        super().__init__(*args, **kwargs)

    # What the mixin adds

    @property
    def cairn_root(self) -> str:
        """The folder of this trainer's checkpoints."""
        return os.fspath(self._cairn_options.get("root") or os.path.join(self.args.output_dir, "cairn"))

    @property
    def checkpointer(self) -> Checkpointer:
        """The Checkpointer that saves; it exists only while train() runs."""
        return self._run().checkpointer

    def export(self, step: int | None, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint (None: the newest) as a folder that from_pretrained reads; see `export`."""
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        export(self.cairn_root, folder, step, model=model, processing_class=self.processing_class)

    # What the mixin overrides

    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        self._check_supported(trial)
        limit = self.args.save_total_limit or 0
        options = {"keep_last": max(limit, 0), **self._cairn_options, "root": self.cairn_root}
        with tempfile.TemporaryDirectory(prefix="cairn-") as folder, Checkpointer(**options) as checkpointer:
            self._cairn = run = Run(checkpointer, options["keep_last"], folder)
            try:
                stock = self._choose_source(run, resume_from_checkpoint)
                if run.steps and (not run.resumes or run.source):
                    raise FailedPrecondition(
                        f"{checkpointer.root} holds checkpoints up to step {max(run.steps)}: resume from them "
                        "(resume_from_checkpoint=True), or train into another output_dir"
                    )
                result = super().train(folder if run.resumes else stock, trial, ignore_keys_for_eval)
                run.finish(self.state.best_global_step)
            finally:
                self._cairn = None
        return result

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run, step = self._run(), self.state.global_step
        run.checkpointer.check()
        self.store_flos()
        run.saves = {one: save for one, save in run.saves.items() if not save.done()}
        run.pin_best(self.state.best_global_step, wait=False)
        if self.state.best_global_step is not None and self.state.best_global_step in run.steps | {step}:
            self.state.best_model_checkpoint = step_folder(self.cairn_root, self.state.best_global_step)
        exportable = [
            one for one in (*self.callback_handler.callbacks, self.control) if isinstance(one, ExportableState)
        ]
        self.state.stateful_callbacks |= TrainerState(stateful_callbacks=exportable).stateful_callbacks
        run.checkpointer.protect(self.optimizer)
        if step in run.saves:
            run.saves[step].wait()
        save = run.checkpointer.save(step, self._tree(run), replace=step in run.order)
        run.saves[step] = save
        run.steps.add(step)
        run.order.append(step)

    def _tree(self, run: Run) -> dict[str, Any]:
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        weights = self.model.state_dict()
        parameters = {parameter.data_ptr() for parameter in self.model.parameters()}
        for name, tensor in weights.items():
            # Forward changes buffers (batch norm's) without a fence before it, so they are copied here.
            if isinstance(tensor, torch.Tensor) and tensor.data_ptr() not in parameters:
                weights[name] = tensor.clone()
        return {
            "format": FORMAT,
            "model": weights,
            "optimizer": self.optimizer,
            "scheduler": self.lr_scheduler,
            "scaler": getattr(self.accelerator, "scaler", None),
            "rng": RngState(),
            "state": json.dumps(dataclasses.asdict(self.state), sort_keys=True),
            "loss": {"sum": self._tr_loss.detach().clone(), "last_logged": self._globalstep_last_logged},
            "pinned": run.pinned,
            "class": type(model).__name__,
            "config": _text(getattr(model, "config", None)),
            "generation_config": _text(getattr(model, "generation_config", None)),
        }

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if (run := self._resumed(resume_from_checkpoint)) is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        parts = ("optimizer", "scheduler", "scaler", "rng", "loss", "state", "pinned")
        others = ("format", "class", "config", "generation_config")
        like = dict.fromkeys((*parts, *others)) | {"model": self.model if model is None else model}
        restored = run.checkpointer.restore(like, run.step, folder=run.source)
        if restored["format"] != FORMAT:
            raise Unsupported(f"expected a checkpoint of the format {FORMAT}, found {restored['format']!r}")
        run.restored = {part: restored[part] for part in parts}
        state = json.loads(run.take("state"))
        run.pinned = run.take("pinned")
        if state["best_model_checkpoint"] is not None and state["best_global_step"] in run.steps:
            state["best_model_checkpoint"] = step_folder(self.cairn_root, state["best_global_step"])
        Path(run.folder, TRAINER_STATE_NAME).write_text(json.dumps(state), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if (run := self._resumed(checkpoint)) is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        self.optimizer.load_state_dict(run.take("optimizer"))
        self.lr_scheduler.load_state_dict(run.take("scheduler"))

    def _load_scaler(self, checkpoint: str | None) -> None:
        if (run := self._resumed(checkpoint)) is None:
            super()._load_scaler(checkpoint)
            return
        state, scaler = run.take("scaler"), getattr(self.accelerator, "scaler", None)
        if (state is None) != (scaler is None):
            has = ("a", "none") if scaler is None else ("no", "one")
            raise InvalidArgument(f"the checkpoint holds {has[0]} gradient scaler, this run has {has[1]}: see fp16")
        if scaler is not None:
            scaler.load_state_dict(state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # Trainer calls this once, when the data has been skipped and the first batch drawn.
        if (run := self._resumed(checkpoint)) is None:
            super()._load_rng_state(checkpoint)
            return
        loss = run.take("loss")
        self._tr_loss += loss["sum"].to(self._tr_loss.device)
        self._total_loss_scalar -= float(loss["sum"])  # train_loss stays that of this call alone.
        self._globalstep_last_logged = loss["last_logged"]
        RngState().load_state_dict(run.take("rng"))

    def _load_best_model(self) -> None:
        run, best = self._run(), self.state.best_model_checkpoint
        if Path(best).parent != Path(self.cairn_root):
            super()._load_best_model()  # Of the stock Trainer's run that this one went on from.
            return
        run.finish(self.state.best_global_step)
        with reader(self.cairn_root) as checkpointer:
            self.model.load_state_dict(read_model(checkpointer, self.state.best_global_step)["model"])

    # Internal

    def _run(self) -> Run:
        if self._cairn is None:
            raise FailedPrecondition("the checkpointer exists only while train() runs")
        return self._cairn

    def _resumed(self, checkpoint: str | None) -> Run | None:
        """The run, if `checkpoint` represents its Cairn checkpoint."""
        return self._cairn if self._cairn is not None and checkpoint == self._cairn.folder else None

    def _choose_source(self, run: Run, wanted: Any) -> str | None:
        """Sets what the run resumes from, or returns the folder of a stock Trainer's checkpoint."""
        if wanted is None or wanted is False:
            return None
        run.resumes = True
        if wanted is True:
            if not run.checkpointer.checkpoints():
                raise NotFound(f"no checkpoint under {run.checkpointer.root} to resume from")
        elif isinstance(wanted, int):
            run.step = wanted
        else:
            path = Path(wanted)
            step = re.fullmatch(r"step-(\d{20})", path.name)
            if step and path.is_dir() and path.parent.exists() and path.parent.samefile(run.checkpointer.root):
                run.step = int(step[1])
            elif (path / "manifest.json").is_file():
                run.source = os.fspath(path)
            elif (path / TRAINER_STATE_NAME).is_file():
                run.resumes = False
                return os.fspath(path)
            else:
                raise NotFound(f"{path}: expected a checkpoint of Cairn or of Trainer")
        return None

    def _check_supported(self, trial: Any) -> None:
        args, optimizer = self.args, self.optimizer
        refused = {
            "several processes": args.world_size > 1 or self.is_deepspeed_enabled or self.is_fsdp_enabled,
            "save_only_model": args.save_only_model,
            "auto_find_batch_size": args.auto_find_batch_size,
            "enable_jit_checkpoint": args.enable_jit_checkpoint,
            "hyperparameter search": trial is not None or self.hp_search_backend is not None,
            'push_to_hub with a hub_strategy other than "end"': args.push_to_hub and args.hub_strategy != "end",
            "optimizers that step within backward": "layerwise" in args.optim
            or "lomo" in args.optim
            or type(optimizer).__name__ in ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo"),
            'load_best_model_at_end with when_full other than "wait"': args.load_best_model_at_end
            and self._cairn_options.get("when_full", "wait") != "wait",
        }
        if found := [what for what, is_so in refused.items() if is_so]:
            raise Unsupported(f"cairn.huggingface does not work with {', '.join(found)}")


class Trainer(TrainerMixin, transformers.Trainer):
    """transformers.Trainer with Cairn's checkpoints: see TrainerMixin."""


def _text(config: Any) -> str | None:
    return config.to_json_string() if hasattr(config, "to_json_string") else None
