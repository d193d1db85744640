"""What a Trainer with Cairn's checkpoints cannot keep whole. Each refusal names the way out."""

from __future__ import annotations

from typing import Any

from .._errors import Unsupported


def check_supported(trainer: Any, cairn_options: dict[str, Any]) -> None:
    """Raises Unsupported, with every reason, if a checkpoint of this trainer would be incomplete, or written twice."""
    args, optimizer = trainer.args, trainer.optimizer
    best = args.load_best_model_at_end
    refused = {
        'FSDP1: set fsdp_config={"version": 2}': trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2,
        "save_only_trainable under FSDP2: leave it out": trainer.is_fsdp_enabled and bool(trainer._save_only_trainable),
        "DeepSpeed: use FSDP2 or DDP": trainer.is_deepspeed_enabled,
        "tensor, context or sequence parallelism: use DDP": (
            getattr(trainer.accelerator, "parallelism_config", None) is not None
            or trainer.is_distributed_loading_by_transformers
        ),
        "save_only_model: leave it out; a checkpoint's folder is a model folder already": args.save_only_model,
        "auto_find_batch_size: find the size in a short run with the stock Trainer, then set "
        "per_device_train_batch_size": args.auto_find_batch_size,
        'push_to_hub with a hub_strategy other than "end": set hub_strategy="end"': args.push_to_hub
        and args.hub_strategy != "end",
        "optimizers that step within backward (LOMO, layer-wise GaLore): choose another optim": "layerwise"
        in args.optim
        or "lomo" in args.optim
        or type(optimizer).__name__ in ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo"),
        "keep_best: set metric_for_best_model, whose best checkpoint is kept": bool(cairn_options.get("keep_best")),
        "memory with metric_for_best_model, whose best checkpoint the disk must have: leave out one of them": (
            cairn_options.get("memory") is not None and args.metric_for_best_model is not None
        ),
        'load_best_model_at_end with when_full other than "wait", which may leave out the best: set '
        'cairn_options={"when_full": "wait"}': best and cairn_options.get("when_full", "wait") != "wait",
    }
    _raise_if_any(what for what, is_so in refused.items() if is_so)


def check_search(trainer: Any, trial: Any) -> None:
    """Raises Unsupported for a hyperparameter search, whose trials would share a root."""
    if trial is not None or trainer.hp_search_backend is not None:
        _raise_if_any(["hyperparameter search: search with the stock Trainer, then train with the best parameters"])


def _raise_if_any(reasons: Any) -> None:
    if found := list(reasons):
        raise Unsupported(f"cairn.huggingface does not work with {'; nor with '.join(found)}")
