"""Trains a small character model with Hugging Face accelerate, in one process or several. Run it again, and it resumes
from the newest checkpoint, in mid-epoch too.

    python examples/accelerate_text.py FOLDER [--epochs 2] [--every 10]
    torchrun --nproc-per-node=2 examples/accelerate_text.py FOLDER

Prints a line `step=N epoch=N loss=X` for each step, with the first process's loss, and at the end a digest of the weights.
On the CPU a run that was killed and resumed prints the losses and the digest of an uninterrupted one. The text is the
licences that Debian ships.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
from accelerate import DataLoaderConfiguration, skip_first_batches
from accelerate.utils import ProjectConfiguration, set_seed
from cairn import NotFound
from cairn.accelerate import Accelerator

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, BATCH, WINDOWS = 32, 8, 960  # Characters, windows in a batch of one process, windows in an epoch.


class CharacterModel(torch.nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.recur = torch.nn.Embedding(256, width), torch.nn.GRU(width, width, batch_first=True)
        self.drop, self.head = torch.nn.Dropout(0.1), torch.nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.drop(self.recur(self.embed(text[:, :-1]))[0]))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


class Progress:
    """Where training is. Registered with the accelerator, so that checkpoints have it."""

    epoch = batch = step = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch, "step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    set_seed(7)
    accelerator = Accelerator(
        cpu=True,
        cairn_options={"host_memory": "64MiB", "chunk": "1MiB"},
        project_config=ProjectConfiguration(options.folder, automatic_checkpoint_naming=True, total_limit=2),
        dataloader_config=DataLoaderConfiguration(
            use_seedable_sampler=True
        ),  # Its order can be continued in mid-epoch.
    )
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    windows = [text[begin : begin + WINDOW + 1] for begin in range(0, 50 * WINDOWS, 50)]
    # With a generator of its own a loader draws nothing from torch's when it begins an epoch, which a resumed run repeats.
    loader = torch.utils.data.DataLoader(windows, batch_size=BATCH, shuffle=True, generator=torch.Generator())
    model = CharacterModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    try:
        accelerator.load_state()
    except NotFound:
        pass  # The first start.

    while progress.epoch < options.epochs:
        batches = skip_first_batches(loader, progress.batch) if progress.batch else loader
        batches.set_epoch(progress.epoch)
        for batch in batches:
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.batch, progress.step = progress.batch + 1, progress.step + 1
            if accelerator.is_main_process:
                print(f"step={progress.step} epoch={progress.epoch} loss={loss.item().hex()}", flush=True)
            if progress.step % options.every == 0:
                accelerator.save_state()
        progress.epoch, progress.batch = progress.epoch + 1, 0
    accelerator.end_training()
    if accelerator.is_main_process:
        weights = b"".join(tensor.numpy().tobytes() for tensor in accelerator.unwrap_model(model).state_dict().values())
        print(f"digest={hashlib.sha256(weights).hexdigest()}")


if __name__ == "__main__":
    main()
