"""Trains until it is done or told to stop: SIGTERM, SLURM's SIGUSR1 or Ctrl-C end it after the step, with one more save.

    python examples/stop_on_sigterm.py FOLDER [--steps 2000] [--grace 25]

Prints "from the beginning" or "resumed from step N", then one line `step=N loss=X` for each step, and at the end a
digest of the weights. Exits with 0 if training is done, and with 75 if it was stopped: run it again, and it continues
with the next step. docs/operations.md has the files that SLURM and Kubernetes need for that.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import cairn
import torch

STOPPED = 75  # The exit code that says: try again (EX_TEMPFAIL).


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--grace", type=float, default=25, help="seconds from the signal to the end of the process")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    with cairn.Checkpointer(options.folder, host_memory="64MiB", keep_last=2) as checkpointer:
        checkpointer.protect(optimizer)
        checkpointer.stop_on(grace=options.grace)  # SIGTERM, SIGINT and SIGUSR1, from here to the end of `with`.
        tree = {"model": model, "optimizer": optimizer, "rng": cairn.RngState(), "step": 0}
        try:
            tree = checkpointer.restore(tree)
            print(f"resumed from step {tree['step']}", flush=True)
        except cairn.NotFound:
            print("from the beginning", flush=True)
        for step in range(tree["step"] + 1, options.steps + 1):
            inputs = torch.randn(32, 16)
            loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step={step} loss={loss.item().hex()}", flush=True)
            stopping = checkpointer.stop_requested()
            if stopping or step % 100 == 0 or step == options.steps:
                checkpointer.save(step, tree | {"step": step})
            if stopping:
                break
    # Here the last save is durable; if it failed, or grace was too short for it, `with` has raised.
    if checkpointer.stop_reason:
        print(f"stopped: {checkpointer.stop_reason}")
        return STOPPED
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    print(f"digest={digest.hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
