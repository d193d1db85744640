"""Trains a small GPT-2 on text with Hugging Face's Trainer. Run it again, and it resumes from the newest checkpoint.

    python examples/huggingface_text.py FOLDER [--steps 60] [--export FOLDER]
    torchrun --nproc-per-node 2 examples/huggingface_text.py FOLDER

Prints "from the beginning" or "resuming from ...", a line of JSON for every third step, and at the end a digest of the
weights. On the CPU a run that was killed and resumed prints what an uninterrupted one prints. Under torchrun all ranks
write one checkpoint (DDP). Each checkpoint's folder is one for `AutoModelForCausalLM.from_pretrained`; `--export` writes
one that holds the model alone. Needs no network: the text is a licence that
Debian ships, the tokenizer is trained on it, and the weights begin at random.
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
from tokenizers import ByteLevelBPETokenizer

CONTEXT = 32
TEXT = Path("/usr/share/common-licenses/Apache-2.0")


class PrintLosses(transformers.TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs and state.is_world_process_zero:
            print(json.dumps({"step": state.global_step, "loss": logs["loss"]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--export")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    transformers.set_seed(1)
    trained = ByteLevelBPETokenizer()
    trained.train([str(TEXT)], vocab_size=320, special_tokens=["<|end|>"], show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<|end|>")
    ids = torch.tensor(trained.encode(TEXT.read_text()).ids)
    windows = [{"input_ids": window, "labels": window} for window in ids.split(CONTEXT)[:-1]]
    sizes = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2)
    args = transformers.TrainingArguments(
        options.folder, max_steps=options.steps, save_steps=4, save_total_limit=2, logging_steps=3, learning_rate=1e-3,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True, report_to="none", disable_tqdm=True,
        ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,  # Under torchrun.
        enable_jit_checkpoint=True,  # SIGTERM ends it after the step, with one more checkpoint.
    )  # fmt: skip
    trainer = Trainer(
        model=transformers.GPT2LMHeadModel(sizes),
        args=args,
        train_dataset=windows,
        processing_class=tokenizer,
        data_collator=transformers.default_data_collator,
        callbacks=[PrintLosses()],
        cairn_options={"host_memory": "64MiB", "chunk": "1MiB"},
    )
    trainer.remove_callback(transformers.PrinterCallback)
    resume = last_checkpoint(options.folder)
    if args.process_index == 0:
        print(f"resuming from {resume}" if resume else "from the beginning", flush=True)
    trainer.train(resume_from_checkpoint=resume)
    if options.export and args.process_index == 0:
        trainer.export(None, options.export)
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in trainer.model.state_dict().values()))
    if args.process_index == 0:
        print(f"digest={digest.hexdigest()}")


if __name__ == "__main__":
    main()
