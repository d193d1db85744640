"""Trains a LoRA adapter of a small GPT-2 with Hugging Face's Trainer and PEFT. Run it again, and it resumes.

    python examples/huggingface_lora.py FOLDER [--steps 60]

A checkpoint holds the adapter and its optimizer, not the base model, but digests of it: resuming with another base
model is refused. Its folder is an adapter folder for `PeftModel.from_pretrained`, as the last lines show. Prints "from
the beginning" or "resuming from ...", a line of JSON for every third step, and a digest of the adapter. Needs no
network: the base model is a random one, kept in FOLDER/base, and the text a licence that Debian ships.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch
import transformers
from cairn.huggingface import Trainer, last_checkpoint
from peft import LoraConfig, PeftModel, get_peft_model

CONTEXT = 32
TEXT = Path("/usr/share/common-licenses/Apache-2.0")


class PrintLosses(transformers.TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            print(json.dumps({"step": state.global_step, "loss": logs["loss"]}), flush=True)


def base_model(folder: Path) -> Any:
    if not (folder / "config.json").exists():
        transformers.set_seed(1)
        sizes = transformers.GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2)
        transformers.GPT2LMHeadModel(sizes).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    base = base_model(options.folder / "base")
    transformers.set_seed(1)
    lora = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    letters = torch.tensor(list(TEXT.read_bytes()))
    args = transformers.TrainingArguments(
        options.folder / "run", max_steps=options.steps, save_steps=4, save_total_limit=2, logging_steps=3,
        learning_rate=1e-2, per_device_train_batch_size=4, use_cpu=True, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        model=get_peft_model(base, lora),
        args=args,
        train_dataset=[{"input_ids": window, "labels": window} for window in letters.split(CONTEXT)[:-1]],
        data_collator=transformers.default_data_collator,
        callbacks=[PrintLosses()],
        cairn_options={"host_memory": "64MiB", "chunk": "1MiB"},
    )
    trainer.remove_callback(transformers.PrinterCallback)
    resume = last_checkpoint(args.output_dir)
    print(f"resuming from {resume}" if resume else "from the beginning", flush=True)
    trainer.train(resume_from_checkpoint=resume)

    newest = last_checkpoint(args.output_dir)
    adapted = PeftModel.from_pretrained(base_model(options.folder / "base"), newest)
    trained, digest = trainer.model.state_dict(), hashlib.sha256()
    for name, tensor in adapted.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
        digest.update(tensor.numpy().tobytes())
    print(f"digest={digest.hexdigest()}")


if __name__ == "__main__":
    main()
