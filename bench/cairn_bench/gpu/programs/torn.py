"""An optimizer that overwrites every tensor right after the fence: no save may mix two steps. Without the fence some must,
or this proves nothing. A line for each way of saving.

pool: the state fits the pool, so that the stream waits. small: it does not, so that the host waits. staged: it is staged
in device memory. unfenced: without any fence, and not looked for.

The tensors are of many sizes, and one is strided, so that chunks hold many tensors, and tensors many chunks, on all lanes.
Before every third save the stream is busy for 5 ms, and only then writes the values: a save that does not wait for its
stream is torn. `late` counts the saves whose call returned before that.
"""

import os

import cairn
import torch

from .common import current_stream, line, parser, seconds

MIB = 1 << 20
# Of one set of tensors: below a page, between, of a mebibyte, and more than one chunk.
SIZES = (4 << 10, 300 << 10, MIB, 24 * MIB)
STRIDED = (16, 64, 16, 16)  # In channels_last.
SET_BYTES = sum(SIZES) + MIB
BUSY = 5e-3  # Seconds.
# Seconds are bounded by saves: 1,000 of them are fenced.
WAYS = {"pool": 600, "small": 200, "staged": 200, "unfenced": 100}


def options_of(way, args):
    pool = 32 * MIB if way == "small" else args.sets * SET_BYTES + 64 * MIB
    options = {"host_memory": pool, "keep_last": 1, "unfenced_writes": "ignore"}
    if args.device == "cuda":
        options["cuda_devices"] = [0]
        if way == "staged":
            options["staging"] = 2 * args.sets * SET_BYTES + 64 * MIB
    return options


def state_of(args):
    made = [torch.zeros(size // 4, dtype=torch.int32, device=args.device) for _ in range(args.sets) for size in SIZES]
    strided = [torch.zeros(STRIDED, dtype=torch.int32, device=args.device) for _ in range(args.sets)]
    return made + [tensor.to(memory_format=torch.channels_last) for tensor in strided]


def overwrite(tensors, value):
    torch._foreach_zero_(tensors)
    torch._foreach_add_(tensors, value)


def busy_of(device):
    """A function that keeps the current stream busy for about BUSY seconds; nothing on the CPU, which has no streams."""
    if device != "cuda":
        return lambda: None
    cycles = 10_000_000
    torch.cuda._sleep(cycles)  # The first one may load code.
    alone = seconds(device, lambda: torch.cuda._sleep(cycles))
    return lambda: torch.cuda._sleep(int(cycles * BUSY / alone))


def written(device):
    """Asks whether what the stream was given until now has run."""
    if device != "cuda":
        return lambda: True
    event = torch.cuda.Event()
    event.record()
    return event.query


def run(args, way, saves):
    """(saves that do not hold exactly the values of their step, saves that were staged, saves whose call returned before
    their values were written)."""
    tensors = state_of(args)
    read = [torch.zeros_like(tensor) for tensor in tensors]
    busy = busy_of(args.device)
    torn = staged = late = 0
    with cairn.Checkpointer(os.path.join(args.root, way), **options_of(way, args)) as checkpointer:
        for step in range(1, saves + 1):
            if step % 3 == 0:
                busy()
            overwrite(tensors, step)
            is_written = written(args.device)
            save = checkpointer.save(step, {"state": tensors})
            late += not is_written()
            if way != "unfenced":
                checkpointer.fence(current_stream(args.device))
            overwrite(tensors, -step)
            save.wait()
            checkpointer.restore({"state": read}, step)
            torn += any(not bool((tensor == step).all()) for tensor in read)
            staged += save.stats["staged"]
    return torn, staged, late


def found_by_itself(args):
    """Whether a save without a fence fails by itself, with the default unfenced_writes."""
    tensors = state_of(args)
    checkpointer = cairn.Checkpointer(os.path.join(args.root, "found"), host_memory=args.sets * SET_BYTES + 64 * MIB)
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
    arguments.add_argument("--sets", type=int, default=2, help="of tensors, 26 MiB each")
    arguments.add_argument("--part", type=float, default=1, help="of the saves")
    args = arguments.parse_args()
    for way, saves in WAYS.items():
        saves = max(2, int(args.part * saves))
        torn, staged, late = run(args, way, saves)
        line(way=way, saves=saves, torn=torn, staged=staged, late=late)
    line(way="found", found=found_by_itself(args))


if __name__ == "__main__":
    main()
