"""What of a Trainer decides which rows and rates come next, and is in no state: a run that goes on with others is told."""

from __future__ import annotations

import json
import logging
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerControl

from .._tree.paths import listed

_log = logging.getLogger("cairn")
# Of TrainingArguments and their accelerator_config.
_ARGUMENTS = {
    "rows": (
        "seed",
        "data_seed",
        "world_size",
        "train_batch_size",
        "gradient_accumulation_steps",
        "train_sampling_strategy",
        "dataloader_drop_last",
        "split_batches",
        "dispatch_batches",
        "even_batches",
        "use_seedable_sampler",
    ),
    "learning rates": ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
}


def arguments_of(trainer: Any) -> dict[str, dict[str, str]]:
    """As texts, by what they decide; with the number of rows."""
    args = trainer.args

    def text_of(name: str) -> str:
        value = getattr(args, name, getattr(args.accelerator_config, name, None))
        return json.dumps(value, default=str)

    held = {what: {name: text_of(name) for name in names} for what, names in _ARGUMENTS.items()}
    try:
        held["rows"]["len(train_dataset)"] = str(len(trainer.train_dataset))
    except TypeError:  # It has no length.
        pass
    return held


def tell_of_others(trainer: Any, saved: dict[str, dict[str, str]], where: str) -> None:
    """Logs which of them are others than at the save, and that an order is in no state. Trainer counts the rows that it has
    had in steps of now."""
    for what, own in arguments_of(trainer).items():
        then = saved.get(what, {})
        other = [
            f"{name} {own[name]} (saved with {then[name]})" for name in own if then.get(name, own[name]) != own[name]
        ]
        if other and not (what == "rows" and trainer.args.ignore_data_skip):
            _log.warning("%s: other %s follow than in the run that saved: %s", where, what, listed(other, 8))
    args = trainer.args
    drawn = args.train_sampling_strategy != "sequential" and "len(train_dataset)" in arguments_of(trainer)["rows"]
    if drawn and not (args.accelerator_config.use_seedable_sampler or args.ignore_data_skip):
        _log.warning(
            "%s: other rows follow than in the run that saved, because nothing keeps their order with use_seedable_sampler=False "
            "in accelerator_config: leave it out",
            where,
        )


def tell_of_callbacks(trainer: Any, saved: dict[str, Any], where: str) -> None:
    """Logs of which callbacks Trainer leaves the saved state out, as it does by default."""
    if trainer.args.restore_callback_states_from_checkpoint:
        return
    anew = []
    for one in trainer.callback_handler.callbacks:
        if isinstance(one, ExportableState) and not isinstance(one, TrainerControl):
            states = saved.get(type(one).__name__, [])
            attributes = [state.get("attributes") for state in (states if isinstance(states, list) else [states])]
            if attributes and one.state().get("attributes") not in attributes:
                anew.append(type(one).__name__)
    if anew:
        _log.warning(
            "%s: Trainer leaves out the state of %s: set restore_callback_states_from_checkpoint=True to go on with it",
            where,
            listed(anew),
        )
