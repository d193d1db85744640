"""Trains a small network and saves as it goes. Run it again, and it resumes from the newest checkpoint.

    python examples/plain_pytorch.py FOLDER [--steps 200] [--every 10]

Prints "from the beginning" or "resumed from step N", then one line `step=N loss=X` for each step, and at the end a
digest of the weights. On the CPU a run that was killed and resumed prints the losses and the digest of an uninterrupted
one.
"""

from __future__ import annotations

import argparse
import hashlib

import cairn
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)

    with cairn.Checkpointer(options.folder, host_memory="64MiB", chunk="1MiB", keep_last=2) as checkpointer:
        checkpointer.protect(optimizer)  # Fences before each step of the optimizer.
        tree = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "rng": cairn.RngState(), "step": 0}
        try:
            tree = checkpointer.restore(tree)
            print(f"resumed from step {tree['step']}", flush=True)
        except cairn.NotFound:
            print("from the beginning", flush=True)
        for step in range(tree["step"] + 1, options.steps + 1):
            inputs = torch.randn(32, 16)  # The checkpoint holds the generator, so a resumed run draws the same.
            loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"step={step} loss={loss.item().hex()}", flush=True)
            if step % options.every == 0:
                checkpointer.check()  # Raises if an earlier save has failed.
                checkpointer.save(step, tree | {"step": step})
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    print(f"digest={digest.hexdigest()}")


if __name__ == "__main__":
    main()
