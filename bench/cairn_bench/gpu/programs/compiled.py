"""Trains a model that torch.compile has compiled, saves after every step, and compares each checkpoint with a copy of the
state at that step. A line at the end."""

import os

import cairn
import torch
from torch import nn

from .common import line, parser
from .states import copies, differing


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--mode", required=True, help="torch.compile's, or eager, its backend that compiles nothing")
    arguments.add_argument("--steps", type=int, default=20)
    args = arguments.parse_args()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    how = {"backend": "eager"} if args.mode == "eager" else {"mode": args.mode}
    forward = torch.compile(model, **how)
    inputs = torch.randn(64, 256, device=args.device)
    kept = {}
    with cairn.Checkpointer(args.root, host_memory="128MiB", keep_last=0) as checkpointer:
        checkpointer.protect(optimizer)
        for step in range(1, args.steps + 1):
            loss = (forward(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tree = {"model": model, "optimizer": optimizer}
            checkpointer.save(step, tree)
            kept[step] = copies(tree)
        checkpointer.drain()
        wrong = 0
        for step, before in kept.items():
            checkpointer.restore(tree, step)
            wrong += differing(tree, before) > 0
    line(mode=args.mode, checkpoints=len(kept), wrong=wrong, files=len(os.listdir(args.root)))


if __name__ == "__main__":
    main()
