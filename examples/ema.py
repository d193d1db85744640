"""Keeps an exponential moving average of the weights, in the same checkpoint. Run it again, and it resumes.

    python examples/ema.py FOLDER [--steps 200]

Prints one line `step=N loss=X` for each step, and at the end a digest of the averaged weights.
"""

from __future__ import annotations

import argparse
import hashlib

import cairn
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    with cairn.Checkpointer(options.folder, host_memory="64MiB", keep_last=2) as checkpointer:
        checkpointer.protect(optimizer)
        tree = {"model": model, "average": average, "optimizer": optimizer, "rng": cairn.RngState(), "step": 0}
        try:
            tree = checkpointer.restore(tree)
        except cairn.NotFound:
            pass  # The first start.
        for step in range(tree["step"] + 1, options.steps + 1):
            inputs = torch.randn(32, 16)
            loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            checkpointer.fence()  # The average changes in place, and no optimizer does that.
            average.update_parameters(model)
            print(f"step={step} loss={loss.item().hex()}", flush=True)
            if step % 10 == 0:
                checkpointer.save(step, tree | {"step": step})
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in average.state_dict().values()))
    print(f"digest={digest.hexdigest()}")


if __name__ == "__main__":
    main()
