"""Fails on purpose, one way in each process, with the state's tensors on the device. A line at the end.

lost       work in the save's stream makes the context unusable while a save is in flight
unclosed   the program ends without closing its Checkpointer, with a save in flight
forked     a DataLoader forks workers while saves are in flight
staging    more staging memory than the device has free
restore    not a failure: what the others have left is restored, in a fresh process
"""

import os
import sys

import cairn
import torch

from .common import line, parser

MIB = 1 << 20


def state_of(args, value):
    return {"state": [torch.full((MIB // 4,), float(value), device=args.device) for _ in range(args.megabytes)]}


def open_root(args, **more):
    options = {"host_memory": "64MiB", "chunk": "1MiB", "keep_last": 0, "close_timeout": 60.0}
    return cairn.Checkpointer(args.root, **options | more)


class Beyond:
    """A view of a tensor's memory that is far longer than the tensor. CUDA's arrays are exchanged like this."""

    def __init__(self, tensor):
        self.__cuda_array_interface__ = {
            "shape": (1 << 40,), "typestr": "|u1", "data": (tensor.data_ptr(), False), "version": 3, "strides": None,
        }  # fmt: skip
        self.tensor = tensor


def poison(device):
    """Has the device write to an address that nobody owns. The error comes later, with any call."""
    if device == "cpu":
        raise RuntimeError("a CPU has no context to lose")
    tensor = torch.zeros(1024, dtype=torch.uint8, device=device)
    beyond = torch.as_tensor(Beyond(tensor), device=tensor.device)  # Of another device it would copy all of it.
    beyond[1 << 39 : (1 << 39) + 1024].fill_(1)
    torch.cuda.synchronize()


def lost(args):
    checkpointer = open_root(args)
    tree = state_of(args, 1)
    checkpointer.save(1, tree).wait()
    save = checkpointer.save(2, tree)
    told = ""
    try:
        poison(args.device)
    except RuntimeError as error:  # torch's.
        told = str(error).splitlines()[0]
    failed = ""
    try:
        save.wait(60)
    except cairn.Error as error:
        failed = f"{type(error).__name__}: {error}"
    again = ""
    try:
        checkpointer.save(3, tree).wait(60)
    except cairn.Error as error:
        again = f"{type(error).__name__}: {error}"
    try:
        checkpointer.close()
    except cairn.Error:
        pass  # The failures, again.
    line(told=told, failed=failed, again=again)
    sys.stdout.flush()
    os._exit(0)  # torch's own end of the process fails on a lost context.


def unclosed(args):
    checkpointer = open_root(args)
    checkpointer.save(1, state_of(args, 1))
    line(left=True)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((256,), float(index), device="cpu")


def forked(args):
    with open_root(args) as checkpointer:
        tree = state_of(args, 0)
        seen = 0
        for step in range(1, 4):
            for tensor in tree["state"]:
                tensor.fill_(step)
            checkpointer.save(step, tree)
            workers = torch.utils.data.DataLoader(
                Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork", pin_memory=args.device == "cuda"
            )
            seen += sum(int((batch.to(args.device).sum() > 0).item()) for batch in workers)
            checkpointer.fence()
        checkpointer.drain()
        steps = checkpointer.steps()
        for step in steps:
            checkpointer.verify(step)
    line(batches=seen, steps=steps)


def staging(args):
    free = torch.cuda.mem_get_info()[0] if args.device == "cuda" else 0
    more = {"staging": 2 * free, "cuda_devices": [0]} if free else {}
    refused = ""
    try:
        with open_root(args, **more) as checkpointer:
            checkpointer.save(1, state_of(args, 1)).wait()
    except cairn.Error as error:
        refused = f"{type(error).__name__}: {error}"
    tensor = torch.ones(1024, device=args.device)  # The device goes on.
    line(refused=refused, goes_on=float(tensor.sum()) == 1024)


def restore(args):
    tree = state_of(args, 0)
    with open_root(args) as checkpointer:
        checkpointer.verify()
        checkpointer.restore(tree)
        newest = checkpointer.latest()
    values = {float(value) for tensor in tree["state"] for value in tensor.unique()}
    line(newest=newest, values=sorted(values))


WAYS = {way.__name__: way for way in (lost, unclosed, forked, staging, restore)}


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--way", choices=WAYS, required=True)
    arguments.add_argument("--megabytes", type=int, default=1024)
    args = arguments.parse_args()
    WAYS[args.way](args)


if __name__ == "__main__":
    main()
