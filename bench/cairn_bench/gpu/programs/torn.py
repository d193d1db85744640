"""An optimizer that overwrites every tensor right after the fence: no save may mix two steps. Without the fence some must,
or this proves nothing. A line for each way of saving.

pool: the state fits the pool, so that the stream waits. small: it does not, so that the host waits. staged: it is staged
in device memory. unfenced: without any fence, and not looked for.
"""

import os

import cairn
import torch

from .common import current_stream, line, parser

MIB = 1 << 20
# Seconds are bounded by saves: 1,000 of them are fenced.
WAYS = {"pool": 600, "small": 200, "staged": 200, "unfenced": 100}


def options_of(way, args):
    pool = 32 * MIB if way == "small" else args.tensors * MIB + 64 * MIB
    options = {"host_memory": pool, "keep_last": 1, "unfenced_writes": "ignore", "chunk": "1MiB"}
    if args.device == "cuda":
        options["cuda_devices"] = [0]
        if way == "staged":
            options["staging"] = 2 * args.tensors * MIB
    return options


def overwrite(tensors, value):
    torch._foreach_zero_(tensors)
    torch._foreach_add_(tensors, value)


def run(args, way, saves):
    """(saves that do not hold exactly the values of their step, saves that were staged)."""
    tensors = [torch.zeros(MIB // 4, dtype=torch.int32, device=args.device) for _ in range(args.tensors)]
    read = [torch.zeros_like(tensor) for tensor in tensors]
    torn = staged = 0
    with cairn.Checkpointer(os.path.join(args.root, way), **options_of(way, args)) as checkpointer:
        for step in range(1, saves + 1):
            overwrite(tensors, step)
            save = checkpointer.save(step, {"state": tensors})
            if way != "unfenced":
                checkpointer.fence(current_stream(args.device))
            overwrite(tensors, -step)
            save.wait()
            checkpointer.restore({"state": read}, step)
            torn += any(not bool((tensor == step).all()) for tensor in read)
            staged += save.stats["staged"]
    return torn, staged


def found_by_itself(args):
    """Whether a save without a fence fails by itself, with the default unfenced_writes."""
    tensors = [torch.zeros(MIB // 4, dtype=torch.int32, device=args.device) for _ in range(args.tensors)]
    checkpointer = cairn.Checkpointer(os.path.join(args.root, "found"), host_memory="64MiB")
    save = checkpointer.save(1, {"state": tensors})
    overwrite(tensors, 1)
    try:
        save.wait()
        return False
    except cairn.FailedPrecondition:
        return True
    finally:
        checkpointer.close()


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--tensors", type=int, default=48, help="of 1 MiB")
    arguments.add_argument("--part", type=float, default=1, help="of the saves")
    args = arguments.parse_args()
    for way, saves in WAYS.items():
        saves = max(2, int(args.part * saves))
        torn, staged = run(args, way, saves)
        line(way=way, saves=saves, torn=torn, staged=staged)
    line(way="found", found=found_by_itself(args))


if __name__ == "__main__":
    main()
