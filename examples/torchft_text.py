"""Trains a small character model in two replica groups with torchft. A group that dies and is started again gets the
state of the other one; when both have died, training continues from the last checkpoint.

    torchft_lighthouse --min_replicas 2  # prints its address
    TORCHFT_LIGHTHOUSE=http://... python examples/torchft_text.py ROOT --replica 0 [--steps 40] [--every 10]
    TORCHFT_LIGHTHOUSE=http://... python examples/torchft_text.py ROOT --replica 1 [--steps 40] [--every 10]

Each process is a replica group of one rank. It prints a line `step=N loss=X` for each step that is committed, `saved=N` when
it is the group that writes, and at the end a digest of the weights, which is the same in both. A run in which both were
killed ends with the digest of one in which nobody died. The text is the licences that Debian ships.
"""

from __future__ import annotations

import argparse
import hashlib
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import cairn.torchft
import torch
import torchft

TEXT = b"".join(path.read_bytes() for path in sorted(Path("/usr/share/common-licenses").glob("*")))
WINDOW, BATCH = 32, 8


class CharacterModel(torch.nn.Module):
    def __init__(self, dropout: float, width: int = 64) -> None:
        super().__init__()
        self.embed, self.recur = torch.nn.Embedding(256, width), torch.nn.GRU(width, width, batch_first=True)
        self.drop, self.head = torch.nn.Dropout(dropout), torch.nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.drop(self.recur(self.embed(text[:, :-1]))[0]))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def batch(step: int, replica: int) -> torch.Tensor:
    """The order of the data follows from the step, so that it is no state."""
    order = torch.Generator().manual_seed(2 * step + replica)
    begins = torch.randint(len(TEXT) - WINDOW, (BATCH,), generator=order).tolist()
    return torch.stack([torch.tensor(list(TEXT[begin : begin + WINDOW + 1])) for begin in begins])


def train(options: argparse.Namespace) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # This group's own.
    torch.manual_seed(7)
    model = CharacterModel(options.dropout)
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
    timeout = timedelta(seconds=60)

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = cairn.torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timeout),
        state_dict=state_dict,
        load_state_dict=load_state_dict,
        min_replica_size=options.min_replicas,
        init_sync=False,  # The weights begin alike.
        replica_id=f"train_{options.replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname=socket.gethostname(),
        timeout=timeout,
    )
    wrapped, optimizer = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, inner)
    torch.manual_seed(options.replica)  # Each group has dropout of its own.
    tree: dict[str, Any] = {"model": model, "optimizer": inner, "rng": cairn.RngState()}
    checkpoints = cairn.torchft.Checkpoints(
        manager, options.root, replica=f"train_{options.replica}", own=["rng"], host_memory="64MiB", chunk="1MiB"
    )
    try:
        tree = checkpoints.restore(tree)
    except cairn.NotFound:
        pass  # The first start.
    if 0 in options.pause_at:
        pause(checkpoints)
    while manager.current_step() < options.steps:
        before = torch.get_rng_state()
        optimizer.zero_grad()  # Begins a quorum.
        loss = wrapped(batch(manager.current_step(), options.replica))
        loss.backward()
        optimizer.step()
        if not manager.committed:  # The same once more.
            torch.set_rng_state(before)
            continue
        print(f"step={manager.current_step()} loss={loss.item().hex()}", flush=True)
        if manager.current_step() % options.every == 0 and checkpoints.save(tree):
            print(f"saved={manager.current_step()}", flush=True)
        if manager.current_step() in options.pause_at:
            pause(checkpoints)
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    print(f"digest={hashlib.sha256(weights).hexdigest()}", flush=True)
    checkpoints.close()
    manager.shutdown(wait=False)


def pause(checkpoints: cairn.torchft.Checkpoints) -> None:
    """For the test: says that what was saved is durable, and waits for a line."""
    checkpoints.drain()
    print("paused", flush=True)
    input()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--min-replicas", type=int, default=2, help="a step with fewer replica groups is not committed")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--pause-at", type=int, nargs="*", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()

    torch.set_num_threads(1)  # The order of a sum's terms changes its last bits.
    train(options)


if __name__ == "__main__":
    main()
