"""How much longer matrix products take while a snapshot is captured amid them, and what the call of save takes: a line
for each save. It is staged in device memory, or, with --gpu-checksums, copied to the host and summed by the GPU. The
products before it keep the GPU busy during the call, as a training does whose host runs ahead.
"""

import time

import cairn
import torch

from .common import line, parser, seconds, synchronize

MIB = 1 << 20


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--megabytes", type=int, default=2048)
    arguments.add_argument("--side", type=int, default=8192)
    arguments.add_argument("--saves", type=int, default=7)
    arguments.add_argument("--gpu-checksums", action="store_true")
    args = arguments.parse_args()
    kind = torch.bfloat16 if args.device == "cuda" else torch.float32
    left, right = (torch.randn(args.side, args.side, dtype=kind, device=args.device) for _ in range(2))
    out = torch.empty_like(left)
    state = [torch.ones(MIB, dtype=torch.uint8, device=args.device) for _ in range(args.megabytes)]

    def products():
        for _ in range(30):
            torch.mm(left, right, out=out)

    room = (args.megabytes + 64) * MIB
    options = {"keep_last": 1, "unfenced_writes": "ignore"}
    if args.gpu_checksums:
        options |= {"host_memory": room, "gpu_checksums": True}
    else:
        options |= {"host_memory": "256MiB", "staging": room if args.device == "cuda" else 0}
    if args.device == "cuda":
        options["cuda_devices"] = [0]
    products()
    with cairn.Checkpointer(args.root, **options) as checkpointer:
        checkpointer.save(0, {"state": state}).wait()
        for step in range(1, args.saves + 1):
            alone = seconds(args.device, lambda: (products(), products()))
            begun = time.perf_counter()
            products()
            called = time.perf_counter()
            save = checkpointer.save(step, {"state": state})
            call = time.perf_counter() - called
            products()
            synchronize(args.device)
            beside = time.perf_counter() - begun
            save.wait()
            line(alone=alone, beside=beside, call=call, staged=save.stats["staged"])


if __name__ == "__main__":
    main()
