"""Trains a small character model on two ranks with DeepSpeed's ZeRO. Run it again, and it resumes.

    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/deepspeed_text.py FOLDER [--stage 3] [--steps 60] [--every 5]

Rank 0 prints a line `step=N loss=X` for each step, and at the end a digest of the weights. On the CPU a run that was
killed and resumed prints the losses and the digest of an uninterrupted one.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import cairn.deepspeed
import deepspeed
import torch
import torch.distributed as dist

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, WIDTH, BATCH = 32, 96, 8  # Characters, features, windows on each rank.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    deepspeed.init_distributed(dist_backend="gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, WIDTH),
        torch.nn.Linear(WIDTH, 4 * WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(4 * WIDTH, 256),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config)
    checkpoints = cairn.deepspeed.attach(engine, options.folder, host_memory="64MiB", keep_last=2)

    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    random = torch.Generator().manual_seed(1)  # Alike on all ranks: DeepSpeed keeps the client state of one.
    _, client = engine.load_checkpoint(options.folder)
    if client:
        random.set_state(client["random"])
    while engine.global_steps < options.steps:
        begins = torch.randint(len(text) - WINDOW, (ranks, BATCH), generator=random)[rank].tolist()
        batch = torch.stack([text[begin : begin + WINDOW + 1] for begin in begins])
        loss = torch.nn.functional.cross_entropy(engine(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        if rank == 0:
            print(f"step={engine.global_steps} loss={loss.item().hex()}", flush=True)
        if engine.global_steps % options.every == 0:
            engine.save_checkpoint(options.folder, client_state={"random": random.get_state()})
    checkpoints.close()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in engine.module.parameters()))
    if rank == 0:
        print(f"digest={digest.hexdigest()}")
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
