"""What copies cost the products of torch beside them: lines of JSON, in rounds, of the same products alone and beside each
way of copying. The copies are those of libbench_beside.so, in this process, without Python's lock.

to-host: chunks to the host, and what tells of their end. staging: within the GPU, also on an idle one. strided: by kernels
of some blocks. queue: without products; how much a stream that stands still takes, and what its queue costs another thread.
"""

import ctypes
import threading

import torch

from .common import Clock, line, parser, synchronize
from .ways import KINDS, STAGED, STRIDED_BLOCKS, THEN

MIB = 1 << 20


class Copies:
    """The functions of the library; each raises what it says of a failure."""

    def __init__(self, path, host_bytes, gpu_bytes):
        self.library = ctypes.CDLL(path)
        self.library.beside_open.restype = ctypes.c_void_p
        self.library.beside_error.restype = ctypes.c_char_p
        for name in ("to_host", "stage", "strided", "fill"):
            getattr(self.library, f"beside_{name}").restype = ctypes.c_double
        self.handle = ctypes.c_void_p(self.library.beside_open(ctypes.c_uint64(host_bytes), ctypes.c_uint64(gpu_bytes)))
        self.check()

    def check(self):
        if error := self.library.beside_error(self.handle):
            raise RuntimeError(error.decode())

    def call(self, name, way, *numbers):
        way = ctypes.c_uint(way) if isinstance(way, int) else way.encode()
        found = getattr(self.library, f"beside_{name}")(self.handle, way, *numbers)
        self.check()
        return found

    def fill(self, kind, count):
        taken = ctypes.c_uint64()
        longest = self.call("fill", kind, ctypes.c_uint64(count), ctypes.byref(taken))
        return taken.value, longest

    def close(self):
        self.library.beside_close(self.handle)


class Products:
    def __init__(self, args):
        self.device, self.count = args.device, args.products
        kind = torch.bfloat16 if args.device == "cuda" else torch.float32
        self.left, self.right = (torch.randn(args.side, args.side, dtype=kind, device=args.device) for _ in range(2))
        self.out = torch.empty_like(self.left)
        self.seconds()  # The first one loads code.

    def seconds(self, beside=lambda: None):
        """Of the products, with what `beside` does on another thread meanwhile; what that returned, too."""
        found = []

        def work():
            found.append(beside())

        thread = threading.Thread(target=work)
        synchronize(self.device)
        thread.start()
        clock = Clock(self.device)
        clock.mark()
        for _ in range(self.count):
            torch.mm(self.left, self.right, out=self.out)
        clock.mark()
        thread.join()
        (seconds,) = clock.spans()
        if not found:
            raise RuntimeError("the copies beside the products failed")
        return seconds, found[0]


def rounds(args, copies, name, ways, idle=False):
    """`idle`: each way also with nothing beside it."""
    products = Products(args)
    sizes = ctypes.c_uint64(args.chunk), ctypes.c_uint64(args.count)
    for way in ways:
        copies.call(name, way, *sizes)  # The first one may load code.
    for _ in range(args.rounds):
        alone, _ = products.seconds()
        for way in ways:
            quiet = {"idle": copies.call(name, way, *sizes)} if idle else {}
            beside, copied = products.seconds(lambda way=way: copies.call(name, way, *sizes))
            line(way=way, alone=alone, beside=beside, copied=copied, bytes=args.chunk * args.count, **quiet)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--library", required=True)
    arguments.add_argument("--what", choices=("to-host", "staging", "strided", "queue"), required=True)
    arguments.add_argument("--chunk", type=int, default=8 * MIB)
    arguments.add_argument("--count", type=int, default=400, help="of chunks, or of operations in a queue")
    arguments.add_argument("--more", type=int, default=4096, help="operations, than a queue takes")
    arguments.add_argument("--products", type=int, default=60)
    arguments.add_argument("--side", type=int, default=8192)
    arguments.add_argument("--rounds", type=int, default=15)
    args = arguments.parse_args()
    whole = args.chunk * args.count if args.what == "staging" else 64 * args.chunk
    if args.device == "cuda":
        torch.cuda.init()
    copies = Copies(args.library, 64 * args.chunk, whole)
    if args.what == "to-host":
        rounds(args, copies, "to_host", THEN)
    elif args.what == "staging":
        rounds(args, copies, "stage", STAGED, idle=True)
    elif args.what == "strided":
        rounds(args, copies, "strided", STRIDED_BLOCKS)
    else:
        for kind in KINDS:
            for count in (args.count, args.more):
                taken, longest = copies.fill(kind, count)
                line(way=kind, taken=taken, longest=longest)
    copies.close()


if __name__ == "__main__":
    main()
