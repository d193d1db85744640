"""Trains a model under torch.compile. Run it again, compiled or not, and it resumes.

    python examples/compiled.py FOLDER [--steps 200] [--backend inductor|aot_eager|none]

Prints one line `step=N loss=X` for each step, and at the end a digest of the weights.

The compiled model shares its parameters with the plain one. The checkpoint holds the plain one, whose names are without
the prefix `_orig_mod.`, so that it can be restored without compiling.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import cairn
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--backend", default="inductor", help='"none" does not compile')
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compiled: Any = model if options.backend == "none" else torch.compile(model, backend=options.backend)

    with cairn.Checkpointer(options.folder, host_memory="64MiB", keep_last=2) as checkpointer:
        checkpointer.protect(optimizer)  # Works as well if the optimizer's step is compiled.
        tree = {"model": model, "optimizer": optimizer, "rng": cairn.RngState(), "step": 0}
        try:
            tree = checkpointer.restore(tree)
        except cairn.NotFound:
            pass  # The first start.
        for step in range(tree["step"] + 1, options.steps + 1):
            inputs = torch.randn(32, 16)
            loss = (compiled(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step={step} loss={loss.item().hex()}", flush=True)
            if step % 10 == 0:
                checkpointer.save(step, tree | {"step": step})
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    print(f"digest={digest.hexdigest()}")


if __name__ == "__main__":
    main()
