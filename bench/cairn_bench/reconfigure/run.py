"""Starts this node's ranks of a job, as Merak's run.sh does: a model, the samples of a micro-batch, micro-batches of a step.

    NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 NUM_GPUS=4 python -m cairn_bench.reconfigure.run gpt3-xl 8 128 \\
        --pp 8 --dp 1 --tp 1 --max-steps 100 --root /mnt/shared/gpt

On the other node the same with NODE_RANK=1; on one node none of these variables is needed. NUM_GPUS is the number of ranks on
this node; without it they are divided equally. Other options go to cairn_bench.reconfigure.train.
"""

import argparse
import os
import socket
import sys
import time

from ..shared.options import positive
from .layout import Layout
from .sizes import sizes_of
from .train import with_dashes

PORT = 29500


def command(args, others, environment):
    """torchrun's command line. ValueError says what does not fit."""

    def number(name, default, least):
        found = environment.get(name, str(default))
        if not found.isdigit() or int(found) < least:
            raise ValueError(f"{name}: expected a whole number from {least}, found {found!r}")
        return int(found)

    world = args.pp * args.tp * args.dp
    nodes = number("NNODES", 1, 1)
    here = number("NUM_GPUS", -(-world // nodes), 1)
    node = number("NODE_RANK", 0, 0)
    if here * nodes != world:
        raise ValueError(
            f"NUM_GPUS={here} on NNODES={nodes}: expected {world} ranks, of --pp {args.pp} --tp {args.tp} --dp {args.dp}"
        )
    if node >= nodes:
        raise ValueError(f"NODE_RANK: expected less than the {nodes} of NNODES, found {node}")
    where = ["--standalone"]
    if nodes > 1:
        if "MASTER_ADDR" not in environment:
            raise ValueError("MASTER_ADDR: expected the address of the node with NODE_RANK=0")
        where = [f"--nnodes={nodes}", f"--node-rank={node}", f"--master-addr={environment['MASTER_ADDR']}",
                 f"--master-port={number('MASTER_PORT', PORT, 1)}"]  # fmt: skip
    Layout(args.pp, args.tp, args.dp).check_memory(sizes_of(args.model), here)
    job = ["-m", "cairn_bench.reconfigure.train", "--model", args.model, "--layout", f"{args.pp},{args.tp},{args.dp}"]
    job += ["--micro-batch", str(args.micro_batch), "--batch", str(args.micro_batch * args.micro_batches * args.dp)]
    job += ["--steps", str(args.max_steps), "--timeout", str(args.timeout), *others]
    return [sys.executable, "-m", "torch.distributed.run", *where, f"--nproc-per-node={here}", *job]


def await_master(address, port, seconds):
    """Returns once the first node listens. ValueError if it does not answer, so that torchrun need not say so in its words."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), timeout=5).close()
            return
        except socket.gaierror as error:
            raise ValueError(f"MASTER_ADDR: {address}: {error.strerror}") from None
        except OSError as error:
            if time.monotonic() > until:
                raise ValueError(f"MASTER_ADDR: {address} does not answer at port {port} ({error.strerror or error}): "
                                 "expected the same command there, with NODE_RANK=0") from None  # fmt: skip
            time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(prog="cairn_bench.reconfigure.run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("model")
    parser.add_argument("micro_batch", type=positive(int), metavar="micro-batch-size")
    parser.add_argument("micro_batches", type=positive(int), metavar="micro-batches")
    parser.add_argument("--pp", type=positive(int), default=4, help="pipeline parallel ranks; default: 4")
    parser.add_argument("--tp", type=positive(int), default=1, help="tensor parallel ranks; default: 1")
    parser.add_argument("--dp", type=positive(int), default=1, help="data parallel ranks; default: 1")
    parser.add_argument("--max-steps", type=positive(int), default=100, help="default: 100")
    parser.add_argument(
        "--timeout", type=positive(float), default=600.0, help="how long a node or rank waits for the others"
    )
    args, others = parser.parse_known_args(with_dashes(sys.argv[1:]))
    try:
        words = command(args, others, os.environ)
        if int(os.environ.get("NODE_RANK", "0")) > 0:
            port = int(os.environ.get("MASTER_PORT", str(PORT)))
            await_master(os.environ["MASTER_ADDR"], port, args.timeout)
    except ValueError as error:
        parser.error(str(error))
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
