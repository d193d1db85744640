"""A training of some GB of AdamW state that saves: the time of each step with and without saves, in turns, and what the
saves and restores take on an idle device. Seconds; lines of JSON."""

import time

import torch
from torch import nn

from .common import Clock, line, parser, seconds, synchronize
from .savers import Cairn, DcpAsync, TorchSave

GB = 1e9
BYTES_OF_A_PARAMETER = 12  # fp32, and two moments.


class Training:
    """Layers of matrix products, forward and backward in bf16, with AdamW in fp32."""

    def __init__(self, args):
        torch.manual_seed(1)
        self.device = args.device
        layers = max(1, round(args.gigabytes * GB / BYTES_OF_A_PARAMETER / args.side**2))
        self.model = nn.Sequential(*(nn.Linear(args.side, args.side, bias=False) for _ in range(layers))).to(
            self.device
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.inputs = torch.randn(args.tokens, args.side, device=self.device)
        self.batches = 1
        self.steps = 0
        self.step(lambda: None)
        alone = seconds(self.device, lambda: self.step(lambda: None))
        self.batches = max(1, round(args.step_seconds / alone))
        self.bytes = sum(tensor.nbytes for tensor in self.model.parameters()) * 3

    def step(self, fence):
        """One step; `fence` is called before the optimizer changes anything."""
        self.steps += 1
        for _ in range(self.batches):
            with torch.autocast(self.device, dtype=torch.bfloat16):
                loss = self.model(self.inputs).square().mean()
            loss.backward()
        fence()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def steps(training, saver, count, every):
    """The seconds of each of `count` steps. The first one is followed by a save, and each `every`th after it; none if
    `every` is 0."""
    clock = Clock(training.device)
    clock.mark()
    for number in range(count):
        training.step(saver.fence)
        if every and number % every == 0:
            saver.save(training.steps)
        clock.mark()
    return clock.spans()


def on_an_idle_device(training, saver, repetitions, restores):
    """Saves and restores with nothing beside them."""
    for _ in range(repetitions):
        training.step(saver.fence)
        synchronize(training.device)
        begun = time.perf_counter()
        saver.save(training.steps)
        saver.fence()
        synchronize(training.device)
        fenced = time.perf_counter() - begun
        saver.drain()
        stats = saver.last.stats
        line(what="save", fenced=fenced, **{key: stats[key] for key in ("bytes", "captured", "durable", "staged")})
    for _ in range(restores):
        line(what="restore", seconds=seconds(training.device, saver.restore))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--system", choices=("cairn", "dcp", "torch.save"), required=True)
    arguments.add_argument("--pool", type=int, default=0, help="bytes; 0: the state's")
    arguments.add_argument("--staging", action="store_true", help="of the state's size")
    arguments.add_argument("--gpu-checksums", action="store_true")
    arguments.add_argument("--gigabytes", type=float, default=10)
    arguments.add_argument("--side", type=int, default=4096)
    arguments.add_argument("--tokens", type=int, default=4096)
    arguments.add_argument("--step-seconds", type=float, default=0.4)
    arguments.add_argument("--every", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=20, help="of each turn")
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--idle", type=int, default=0, help="saves, and restores, on an idle device")
    args = arguments.parse_args()
    training = Training(args)
    room = training.bytes + (256 << 20)
    if args.system == "cairn":
        staging = room if args.staging and args.device == "cuda" else 0
        options = {"host_memory": args.pool or room, "staging": staging, "gpu_checksums": args.gpu_checksums}
        saver = Cairn(args.root, training.model, training.optimizer, options)
    else:
        saver = {"dcp": DcpAsync, "torch.save": TorchSave}[args.system](args.root, training.model, training.optimizer)
    line(what="training", bytes=training.bytes, batches=training.batches)
    saver.save(training.steps)  # The first lays out memory and files.
    saver.fence()
    saver.drain()
    if args.idle:
        on_an_idle_device(training, saver, args.idle, args.idle)
    for _ in range(args.turns):
        quiet = steps(training, saver, args.steps, 0)
        busy = steps(training, saver, args.steps, args.every)
        saver.drain()
        line(what="turn", quiet=quiet, busy=busy)
    saver.close()


if __name__ == "__main__":
    main()
