"""Saves each state from a stream, overwrites it as soon as the fence allows, restores it in place, and compares.

How: "default" and "side" are torch streams; "graph" changes the state by replaying a CUDA graph, captured while a save
is in flight. A line for each state.
"""

import contextlib

import cairn
import torch

from .common import current_stream, line, parser, synchronize
from .states import STATES, copies, differing, overwrite, tensors


def stream_of(device, how):
    if device == "cuda" and how != "default":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(stream)
    return contextlib.nullcontext()


def overwriting(device, how, held):
    """A function that overwrites the tensors: by a graph's replay, with "graph" on a GPU."""
    if device != "cuda" or how != "graph":
        return lambda: overwrite(held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        overwrite(held)
    return graph.replay


def refused_while_captured(checkpointer, step):
    """Whether a save within a capture is refused, and leaves the capture valid."""
    graph = torch.cuda.CUDAGraph()
    static = torch.zeros(1 << 20, device="cuda")
    refused = False
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            static.add_(1)
            try:
                checkpointer.save(step, {"static": static})
            except cairn.FailedPrecondition:
                refused = True
        graph.replay()
    except RuntimeError:  # torch's, of a capture that was invalidated.
        return False
    return refused and bool((static == 1).all())


def prove(checkpointer, device, how, name, count, step):
    with stream_of(device, how):
        tree = STATES[name](device, count)
        held = tensors(tree)
        places = [tensor.data_ptr() for tensor in held]
        before = copies(tree)
        save = checkpointer.save(step, tree)
        again = overwriting(device, how, held)  # A capture while the save is in flight must stay valid.
        checkpointer.fence(current_stream(device))
        again()
        save.wait()
        cleared = sum(int(copy.any()) for copy in before) == 0 or differing(tree, before) > 0
        checkpointer.restore(tree, step)
        synchronize(device)
        wrong = differing(tree, before)
        in_place = places == [tensor.data_ptr() for tensor in tensors(tree)]
        refused = device != "cuda" or how != "graph" or refused_while_captured(checkpointer, step + 1)
    line(state=name, tensors=len(before), wrong=wrong, cleared=cleared, in_place=in_place, refused=refused)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--root", required=True)
    arguments.add_argument("--how", choices=("default", "side", "graph"), required=True)
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--states", nargs="+", choices=STATES, default=tuple(STATES))
    args = arguments.parse_args()
    torch.manual_seed(1)
    # A capture moves torch's version counters although it writes nothing.
    unfenced = "ignore" if args.how == "graph" else "fail"
    with cairn.Checkpointer(args.root, host_memory="256MiB", keep_last=1, unfenced_writes=unfenced) as checkpointer:
        for number, name in enumerate(args.states):
            prove(checkpointer, args.device, args.how, name, args.count, 10 * number)


if __name__ == "__main__":
    main()
