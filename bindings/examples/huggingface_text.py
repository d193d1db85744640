"""Trains a small language model on local text with Hugging Face's Trainer and Cairn's checkpoints.

    python bindings/examples/huggingface_text.py --output run --steps 60            # from the beginning, or
    python bindings/examples/huggingface_text.py --output run --steps 60 --kill-at 25   # until it is killed, and then
    python bindings/examples/huggingface_text.py --output run --steps 60            # on from its newest checkpoint

Needs no network: the text is the licences that Debian ships (--text takes other files), the tokenizer is trained on it,
and the weights begin at random. Prints a line for each logged loss; on the CPU those of a run that was killed and
resumed, and its weights, are those of an uninterrupted one bit by bit. Saves every --save-steps steps, several in
flight; --export writes the last checkpoint as a folder for `AutoModelForCausalLM.from_pretrained`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from cairn.huggingface import Trainer, last_checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT = 32


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns what happened: the step that it began after, each logged loss by its step, a digest of the weights."""
    options = parse(arguments)
    torch.set_num_threads(1)  # Sums in another order would be other sums.
    transformers.set_seed(1)
    watch = Watch(options.kill_at)
    tokenizer = make_tokenizer(options.text, options.output)
    trainer = Trainer(
        model=transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2)
        ),
        args=transformers.TrainingArguments(
            output_dir=str(options.output),
            max_steps=options.steps,
            save_steps=options.save_steps,
            save_total_limit=2,
            logging_steps=3,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            warmup_steps=5,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            seed=7,
        ),
        train_dataset=windows(options.text, tokenizer),
        data_collator=transformers.default_data_collator,
        processing_class=tokenizer,
        callbacks=[watch],
        cairn_options={"host_memory": "64MiB"},
    )
    trainer.remove_callback(transformers.PrinterCallback)
    watch.trainer = trainer
    resume = last_checkpoint(options.output)
    print(f"resuming from {resume}" if resume else "from the beginning", flush=True)
    trainer.train(resume_from_checkpoint=resume)
    if options.export:
        trainer.export(None, options.export)
    return {
        "resumed_at": int(Path(resume).name.removeprefix("step-")) if resume else 0,
        "steps_per_epoch": trainer.state.max_steps / (trainer.state.epoch or 1),
        "losses": {log["step"]: log["loss"] for log in trainer.state.log_history if "loss" in log},
        "weights": digest(trainer.model),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="+", default=[Path("/usr/share/common-licenses/Apache-2.0")])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-steps", type=int, default=4)
    parser.add_argument("--kill-at", type=int, default=0, help="SIGKILL itself after this step, saves in flight or not")
    parser.add_argument("--export", type=Path)
    return parser.parse_args(arguments)


def make_tokenizer(files: Sequence[Path], output: Path) -> Any:
    """The run's tokenizer, trained when it begins."""
    folder = output / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train([str(file) for file in files], trainer)
        made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
        made.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def windows(files: Sequence[Path], tokenizer: Any) -> list[dict[str, Any]]:
    ids = torch.tensor([token for file in files for token in tokenizer(file.read_text())["input_ids"]])
    starts = range(0, len(ids) - CONTEXT, CONTEXT)
    return [{"input_ids": ids[at : at + CONTEXT], "labels": ids[at : at + CONTEXT]} for at in starts]


def digest(model: Any) -> str:
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


class Watch(transformers.TrainerCallback):
    """Prints the losses, and kills the process where that is wanted."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.trainer: Trainer | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            print(json.dumps({"step": state.global_step, "loss": logs["loss"]}), flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer is None or state.global_step != self.kill_at:
            return
        if self.trainer.checkpointer.latest() is None:  # There is to be one that can't be lost.
            self.trainer.checkpointer.drain()
        print(f"killed after step {state.global_step}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    print(json.dumps(main()))
