"""A small model, its data and a Trainer, for the tests of cairn.huggingface."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
from jobs import COMMAND

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import cairn.huggingface as hf  # Not importorskip: what it lacks of its own is an error.

torch.set_num_threads(1)

TEXT = "abc cab bac"


def a_gpt2(**config: Any) -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, pad_token_id=0, **config)
    )


class Tenfold(torch.nn.LayerNorm):  # type: ignore[misc]
    """Its weight was a tenth of what it is, until version 2."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *more: Any) -> None:
        if (metadata.get("version") or 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state, prefix, metadata, *more)


def versioned(model: Any) -> Any:
    """With a module whose state has a version."""
    model.transformer.ln_f = Tenfold(16)
    return model


def data(rows: int = 40) -> list[dict[str, Any]]:
    ids = torch.randint(0, 32, (rows, 8), generator=torch.Generator().manual_seed(3))
    return [{"input_ids": row, "labels": row} for row in ids]


def a_trainer(output: Path, kind: Any = None, **settings: Any) -> Any:
    """10 steps an epoch, a save every 2, no log but the loss of each step."""
    transformers.set_seed(1)
    ours: dict[str, Any] = {"kind": kind or hf.Trainer, "model": None, "callbacks": None, "optimizers": (None, None)}
    ours["processing_class"] = None
    ours |= {
        name: settings.pop(name)
        for name in (*ours, "cairn_options", "save_only_trainable", "frozen", "cast")
        if name in settings
    }
    kind, model = ours.pop("kind"), ours.pop("model") or a_gpt2()
    if issubclass(kind, hf.TrainerMixin):
        ours["cairn_options"] = {"host_memory": "16MiB", "chunk": "1MiB", "queue_depth": 2} | ours.get(
            "cairn_options", {}
        )
    settings = {"max_steps": 8, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1} | settings
    settings = {"per_device_train_batch_size": 4, "learning_rate": 1e-2} | settings
    args = transformers.TrainingArguments(
        output_dir=str(output),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    collator = transformers.default_data_collator
    trainer = kind(model=model, args=args, train_dataset=data(), eval_dataset=data(8), data_collator=collator, **ours)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def losses(trainer: Any) -> dict[int, float]:
    return {log["step"]: log["loss"] for log in trainer.state.log_history if "loss" in log}


def assert_same_weights(one: Any, other: Any) -> None:
    theirs = other if isinstance(other, dict) else other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


def assert_exact_resume(before: list[str], resumed: list[str], whole: list[str]) -> None:
    """A killed run and the resumed one have printed the lines of one that was never killed, and skipped none."""
    assert whole[-1].startswith("digest=") and len(before) < len(whole) - 1
    assert before == whole[: len(before)]
    assert resumed == whole[-len(resumed) :]
    assert 0 < len(whole) - len(resumed) <= len(before)


def steps(output: Path) -> list[int]:
    with cairn.Checkpointer(output / "cairn", read_only=True) as checkpointer:
        return checkpointer.steps()


def folders(output: Path) -> list[Path]:
    """The checkpoints' folders, oldest first."""
    return sorted((output / "cairn").glob("step-*"))


def exported_by_command(output: Path, *more: str) -> Path:
    """The folder that the command writes."""
    folder = output / "by-command"
    subprocess.run([COMMAND, "export", output / "cairn", *more, "--model-folder", folder], check=True)
    return folder


def a_tokenizer() -> Any:
    words = {"<pad>": 0, "abc": 1, "cab": 2, "bac": 3}
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


class At(transformers.TrainerCallback):  # type: ignore[misc]
    """Calls something at the end of a step."""

    def __init__(self, step: int, call: Callable[[], Any]) -> None:
        self.step, self.call = step, call

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            self.call()
