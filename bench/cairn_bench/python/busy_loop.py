"""A training loop that keeps one core busy: a small network that fits the caches, with Adam, on one thread.

It counts its steps in the first 8 bytes of the file that it is given. While the flag in the next 8 bytes is down it
waits for the next line of standard input.
"""

import mmap
import sys

import torch


def main():
    torch.set_num_threads(1)
    with open(sys.argv[1], "r+b") as file:
        shared = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, labels = torch.randn(32, 128), torch.randint(10, (32,))
    print("ready", flush=True)
    for _ in sys.stdin:
        while shared[1]:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            shared[0] += 1


if __name__ == "__main__":
    main()
