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

**A checkpoint's folder is a model folder**: `AutoModel.from_pretrained(trainer.state.best_model_checkpoint)` reads it.
Config, tokenizer, trainer_state.json and an index of the weights are committed with it; the weights are read from the
shard itself. transformers then reports what else is in the shard (the optimizer) as unexpected. `export` writes a
folder of the model alone, for readers that refuse that.

With `cairn_options={"memory": "/dev/shm"}` each save is kept in memory first: see Checkpointer. Then folders are no model
folders, because only what is in the shards is kept.

**How.** A callback is not enough: Trainer writes its own folder before it calls `on_save`, and reads weights and
trainer_state.json from a folder. So the mixin overrides the methods in `EXPECTED`, which are private. This module was
written for transformers 5.23. It refuses older versions and 6, and at import a Trainer whose methods have other
parameters.

**What is refused**, at construction, because a checkpoint would be incomplete, or written twice: FSDP1; DeepSpeed; tensor,
context or sequence parallelism; `save_only_model`; `auto_find_batch_size`; optimizers that step within backward; `memory`
with `metric_for_best_model`; `push_to_hub` with a `hub_strategy` other than "end"; a hyperparameter search.
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
import torch.distributed as dist
import transformers
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, TrainerState

from ._checkpointer import Checkpointer
from ._dcp.containers import metadata_of
from ._errors import FailedPrecondition, InvalidArgument, NotFound, Unsupported
from ._huggingface import sharded
from ._huggingface.arguments import arguments_of, tell_of_callbacks, tell_of_others
from ._huggingface.contents import (
    FORMAT,
    RANK,
    TRAINER,
    FrozenDigests,
    check_frozen,
    is_adapter,
    live_weights,
    load_weights,
    pack,
    state_on,
    unpack,
    weights_of,
)
from ._huggingface.export import export, read_model, read_trainer, reader
from ._huggingface.found import last_checkpoint, newest_of, root_of, step_of, stock_step
from ._huggingface.model_folder import Companions, Files, ModelFiles, config_text
from ._huggingface.refusals import check_search, check_supported
from ._huggingface.run import REPLICATED, Run
from ._huggingface.stop import use_own_stop
from ._paths import step_folder
from ._protect import inner_optimizer
from ._rng import RngState
from ._tree.casts import allows_loss
from ._tree.module_loads import check_into
from ._tree.optimizer_loads import Known, fit_state, load_checked, warn_of_unsaved
from ._tree.optimizer_states import names_of
from ._tree.schedulers import classes_of, refuse_order, warn_of_unlike

OTHER_RANKS = "another number of ranks saved: each begins with new random numbers and a new sum of losses"
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

    `save_only_trainable` leaves frozen parameters out (default: for PEFT's models). Their digests are kept: a
    restore takes the parameters from this trainer's model, and raises InvalidArgument if they are others. A digest is
    computed once, and again when its parameter has changed, but for writes through `.data`, as PEFT's
    merge_adapter does.

    Without it, frozen parameters are in each checkpoint, and with `frozen` (default: for PEFT's models) they are written
    once, and linked into the checkpoints that follow: see Checkpointer.save.

    A weight of another dtype than the checkpoint's is converted, and logged, if its dtype holds every value of that. Else it
    is refused, unless `cast` is "allow". An optimizer unlike the checkpoint's is refused before a weight is written.

    `resume_from_checkpoint` is True (what `last_checkpoint` finds), a step, a checkpoint's folder under the root or
    elsewhere, or a `checkpoint-N` of the stock Trainer, after which training continues with Cairn's checkpoints. A root
    that holds checkpoints is refused unless training resumes from one of them, or from a later step.
    """

    def __init__(
        self,
        *args: Any,
        cairn_options: Mapping[str, Any] | None = None,
        save_only_trainable: bool | None = None,
        frozen: bool | None = None,
        cast: str | None = None,
        **kwargs: Any,
    ) -> None:
        allows_loss(cast)
        self._cast = cast
        self._save_only_trainable = save_only_trainable
        self._links_frozen = frozen
        self._frozen = FrozenDigests()
        self._cairn_options = dict(cairn_options or {})
        self._cairn: Run | None = None
        self._model_files = ModelFiles()
        super().__init__(*args, **kwargs)
        check_supported(self, self._cairn_options)
        use_own_stop(self)

    # What the mixin adds

    @property
    def cairn_root(self) -> str:
        """The folder of this trainer's checkpoints."""
        return root_of(self.args.output_dir, self._cairn_options.get("root"))

    @property
    def checkpointer(self) -> Checkpointer:
        """The Checkpointer that saves; it exists only while train() runs."""
        return self._run().checkpointer

    def export(self, step: int | None, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint (None: the newest) as a folder of the model alone; see `export`."""
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        memory = self._cairn_options.get("memory")
        export(self.cairn_root, folder, step, model=model, processing_class=self.processing_class, memory=memory)

    # What the mixin overrides

    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        check_supported(self, self._cairn_options)
        check_search(self, trial)
        limit = self.args.save_total_limit or 0
        options = {"keep_last": max(limit, 0), **self._cairn_options, "root": self.cairn_root, "replicated": REPLICATED}
        if self.args.world_size > 1:
            options["group"] = dist.group.WORLD
        with (
            tempfile.TemporaryDirectory(prefix="cairn-") as folder,
            Companions(self.cairn_root, options.get("file_mode", 0o644)) as companions,
            Checkpointer(**options) as checkpointer,
        ):
            self._cairn = run = Run(checkpointer, options, folder, companions, self.is_fsdp_enabled)
            try:
                stock = self._choose_source(run, resume_from_checkpoint)
                if run.sharded and run.resumes:  # Before the weights, Trainer reads its state.
                    trainer, own = sharded.load_plain(checkpointer, run.step, run.source)
                    run.restored = trainer | {"own": own}
                    run.known = Known(**trainer.get("known", {}))
                    if own is None:
                        _log.warning(OTHER_RANKS)
                    self._resume_state(run, trainer)
                result = super().train(folder if run.resumes else stock, trial, ignore_keys_for_eval)
                run.finish(self.state.best_global_step)
            finally:
                self._cairn = None
        return result

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run, step = self._run(), self.state.global_step
        run.check()
        self.store_flos()
        run.pin_best(self.state.best_global_step, wait=False)
        if self.state.best_global_step is not None and self.state.best_global_step in run.steps | {step}:
            self.state.best_model_checkpoint = step_folder(self.cairn_root, self.state.best_global_step)
        exportable = [
            one for one in (*self.callback_handler.callbacks, self.control) if isinstance(one, ExportableState)
        ]
        self.state.stateful_callbacks |= TrainerState(stateful_callbacks=exportable).stateful_callbacks
        run.checkpointer.protect(self.optimizer)
        warn_of_unsaved([self.optimizer], [self.model])
        if sharded.is_sharded(self.model):
            trainer, own = self._plain()

            def read_files() -> Files:  # Those of an adapter would be made of its weights.
                return {} if is_adapter(self.model) else self._files(trainer["state"])

            run.save_sharded(step, self.model, self.optimizer, trainer, own, read_files, self._links())
        else:
            model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
            ties = getattr(model, "all_tied_weights_keys", None)
            run.save(step, self._gather, [name for name, _ in model.named_buffers()], ties)

    def _gather(self) -> tuple[dict[str, Any], Files, frozenset[str]]:
        """The checkpoint's tree, the files of its folder, and the names of weights that are linked."""
        trainer, own = self._plain()
        files = self._files(trainer["state"])
        parts = {"optimizer": self.optimizer.state_dict(), **{key: trainer.pop(key) for key in ("scheduler", "scaler")}}
        trainer["frozen"] = self._frozen.of(self.model, self.optimizer) if self._only_trainable() else None
        weights, frozen = weights_of(self.model, self._only_trainable())
        tree = {**weights, TRAINER: trainer | pack(parts), RANK: pack(own)}
        return tree, files, frozen if self._links() else frozenset()

    def _links(self) -> bool:
        """Whether frozen parameters that are saved are written once."""
        return is_adapter(self.model) if self._links_frozen is None else self._links_frozen

    def _files(self, state: str) -> Files:
        """Of the checkpoint's folder: config, tokenizer and trainer_state.json."""
        if not self._run().has_files:
            return {}
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        processing_class = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        return {**self._model_files.read(model, processing_class), TRAINER_STATE_NAME: state.encode()}

    def _plain(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is identical on every rank, but for weights and optimizer, and what is this rank's own."""
        run, model = self._run(), self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        state = json.dumps(dataclasses.asdict(self.state), indent=2, sort_keys=True) + "\n"
        of_rank_0 = [state, run.pinned]  # Other ranks have other times in their logs.
        if self.args.world_size > 1:
            dist.broadcast_object_list(of_rank_0)
        trainer = {
            "format": FORMAT,
            "state": of_rank_0[0],
            "pinned": of_rank_0[1],
            "last_logged": self._globalstep_last_logged,
            "known": vars(Known.of(self.optimizer, model)),
            "modules": metadata_of(model.state_dict()),
            "class": type(model).__name__.removeprefix("FSDP"),  # As fully_shard calls it.
            "scheduler": self.lr_scheduler.state_dict(),
            "scheduler_classes": classes_of(getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)),
            "scaler": scaler.state_dict() if (scaler := getattr(self.accelerator, "scaler", None)) else None,
            "arguments": arguments_of(self),
            "config": config_text(getattr(model, "config", None)),
            "generation_config": config_text(getattr(model, "generation_config", None)),
        }
        return trainer, {"rng": RngState().state_dict(), "loss": self._tr_loss.detach().clone()}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if (run := self._resumed(resume_from_checkpoint)) is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        model = self.model if model is None else model
        if run.sharded:
            self._check_class(run)
            sharded.load_model(run.checkpointer, run.step, model, run.source, self.optimizer, self._cast)
            return
        # Raises if it is not one of ours, or what it has does not fit.
        found, weights = run.checkpointer._engine.ranks.together("fit", lambda: self._fitting(run, model))
        partial = found["frozen"] is not None
        own = {RANK: None} if found["world"] == run.checkpointer.world else {}
        if not own:
            _log.warning(OTHER_RANKS)
        # Parameters are read in place. What forward may have resized is left to load_state_dict.
        like = {name: one.detach() if isinstance(one, torch.nn.Parameter) else None for name, one in weights.items()}
        try:
            restored = run.checkpointer.restore(
                {**like, TRAINER: None, **own},
                run.step,
                folder=run.source,
                cast=self._cast,
                map_location=state_on(self.args.device),
            )
        except InvalidArgument as error:
            raise InvalidArgument(f"{error}\n  {_anew(found['path'])}") from error
        trainer = restored[TRAINER]
        # With their contents: two buffers may share memory.
        check_into(
            {name: one for name, one in weights.items() if like[name] is None}, restored, found["path"], self._cast
        )
        load_weights(model, {name: restored[name] for name in weights}, partial, trainer.get("modules"))
        run.restored = unpack(trainer) | {"own": unpack(restored[RANK]) if own else None}
        run.restored |= {key: trainer.get(key) for key in ("last_logged", "scheduler_classes")}
        self._resume_state(run, trainer)

    def _fitting(self, run: Run, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the checkpoint says, and this model's weights. Raises before a byte is written if one of those that are not
        read in place, or the optimizer, does not fit."""
        found = read_trainer(run.checkpointer, run.step, run.source)
        partial = found["frozen"] is not None
        if partial:
            check_frozen(self._frozen.of(self.model), found["frozen"], found["path"])
        weights = live_weights(model, partial)
        others = {name: one for name, one in weights.items() if not isinstance(one, torch.nn.Parameter)}
        casts = check_into(others, found["saved"], found["path"], self._cast)
        run.known = Known(**found.get("known", {}))
        self.create_optimizer()  # Which Trainer does next, and then finds it.
        parts = unpack(found)
        fit = self._fit(run, parts["optimizer"], found["path"])
        refuse_order(found["path"], "scheduler", parts["scheduler"], None if fit is None else fit.regrouped)
        casts.log(found["path"])
        return found, weights

    def _fit(self, run: Run, state: Any, where: str) -> Any:
        own = Known.of(self.optimizer, self.accelerator.unwrap_model(self.model, keep_torch_compile=False))
        lossy = self._cast is not None
        return fit_state(self.optimizer, state, "optimizer", own, run.known, lossy, where, _anew(where))

    def _check_class(self, run: Run) -> None:
        own, saved = type(inner_optimizer(self.optimizer)), run.known.kind
        if saved is not None and saved not in names_of(own):
            raise InvalidArgument(
                f"{run.source or f'{self.cairn_root}: step {run.step}'}: the optimizer is {own.__name__}, the checkpoint "
                f"has the state of {saved}"
            )
        now = Known.of(self.optimizer, self.accelerator.unwrap_model(self.model, keep_torch_compile=False))
        refuse_order(run.folder, "scheduler", run.restored["scheduler"], now.regrouped(run.known))

    def _resume_state(self, run: Run, trainer: dict[str, Any]) -> None:
        """Keeps the pin, and writes trainer_state.json where Trainer looks for it."""
        run.pinned = trainer["pinned"]
        state = json.loads(trainer["state"])
        where = run.source or step_folder(self.cairn_root, state["global_step"])
        tell_of_others(self, trainer.get("arguments", {}), where)
        tell_of_callbacks(self, state["stateful_callbacks"], where)
        if state["best_model_checkpoint"] is not None and state["best_global_step"] in run.steps:
            state["best_model_checkpoint"] = step_folder(self.cairn_root, state["best_global_step"])
        Path(run.folder, TRAINER_STATE_NAME).write_text(json.dumps(state), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if (run := self._resumed(checkpoint)) is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        if not run.sharded:
            state = run.take("optimizer")
            load_checked(self.optimizer, state, self._fit(run, state, run.folder))
            warn_of_unsaved([self.optimizer], [self.model])
        own, saved = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler), run.take("scheduler")
        warn_of_unlike(run.folder, [own], [run.restored.get("scheduler_classes") or []], [saved])
        self.lr_scheduler.load_state_dict(saved)

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
        if (own := run.take("own")) is None:
            return
        self._tr_loss += own["loss"].to(self._tr_loss.device)
        self._total_loss_scalar -= float(own["loss"])  # train_loss stays that of this call alone.
        self._globalstep_last_logged = run.take("last_logged")
        RngState().load_state_dict(own["rng"])

    def _load_best_model(self) -> None:
        run, folder = self._run(), self.state.best_model_checkpoint
        if Path(folder).parent != Path(self.cairn_root):
            super()._load_best_model()  # Of the stock Trainer's run that this one went on from.
            return
        run.finish(self.state.best_global_step)
        if run.sharded:
            sharded.load_model(run.checkpointer, self.state.best_global_step, self.model, cast=self._cast)
            return
        with reader(self.cairn_root) as checkpointer:
            trainer, best = read_model(checkpointer, self.state.best_global_step)
        check_into(live_weights(self.model, trainer["frozen"] is not None), best, folder, self._cast).log(folder)
        load_weights(self.model, best, trainer["frozen"] is not None, trainer.get("modules"))

    # Internal

    def _only_trainable(self) -> bool:
        return is_adapter(self.model) if self._save_only_trainable is None else self._save_only_trainable

    def _run(self) -> Run:
        if self._cairn is None:
            raise FailedPrecondition("the checkpointer exists only while train() runs")
        return self._cairn

    def _resumed(self, checkpoint: str | None) -> Run | None:
        """The run, if `checkpoint` represents its Cairn checkpoint."""
        return self._cairn if self._cairn is not None and checkpoint == self._cairn.folder else None

    def _choose_source(self, run: Run, wanted: Any) -> str | None:
        """Sets what the run resumes from, or returns the folder of a stock Trainer's checkpoint."""
        root, newest = run.checkpointer.root, max(run.steps, default=-1)
        if wanted is True:
            wanted = newest_of(self.args.output_dir, root, run.checkpointer.latest())
            if wanted is None:
                raise NotFound(f"no checkpoint under {root}, and no checkpoint-N in {self.args.output_dir}")
        stock: str | None = None
        first = 0  # The step from which the run goes on.
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            run.step, run.resumes = wanted, True
        elif wanted:
            run.step = step_of(wanted, root, run.steps)
            run.resumes = run.step is not None or Path(wanted, "manifest.json").is_file()
            if run.step is None and run.resumes:
                run.source = os.fspath(wanted)
            elif not run.resumes and (first := stock_step(wanted) or 0) == 0:
                found = "another folder" if Path(wanted).is_dir() else "no folder"
                newest_here = f"; the newest checkpoint under {root} is of step {newest}" if newest >= 0 else ""
                raise NotFound(
                    f"{wanted}: expected a checkpoint of Cairn, or a complete checkpoint-N of Trainer; found {found}"
                    f"{newest_here}"
                )
            stock = None if run.resumes else os.fspath(wanted)
        if newest > first and run.step is None:
            raise FailedPrecondition(
                f"{root} holds checkpoints up to step {newest}, and a later one would follow them as if it continued "
                "their run: resume from them (resume_from_checkpoint=True), train into another output_dir, or remove "
                "that folder first"
            )
        if run.step is not None:
            run.steps = {step for step in run.steps if step <= run.step}
        return stock


def _anew(folder: str) -> str:
    """The way out where a checkpoint fits another model or optimizer than the trainer's."""
    return f"begin anew with its model, {folder}, as from_pretrained or `export` gives it, in another output_dir"


class Trainer(TrainerMixin, transformers.Trainer):
    """transformers.Trainer with Cairn's checkpoints: see TrainerMixin."""
