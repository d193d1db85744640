"""What these programs share: their arguments, a line of JSON, and the clock of a device."""

import argparse
import json
import time

import torch


def parser(about):
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--device", choices=("cpu", "cuda"), required=True)
    return made


def line(**found):
    print(json.dumps(found), flush=True)


def current_stream(device):
    """Torch's, for a fence; None on the CPU, where the host waits."""
    return torch.cuda.current_stream() if device == "cuda" else None


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(device, action):
    """How long the action and all that it gave to the device take."""
    synchronize(device)
    begun = time.perf_counter()
    action()
    synchronize(device)
    return time.perf_counter() - begun


class Clock:
    """Marks in the order of the device's work: on a GPU the host runs ahead of it."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def mark(self):
        if self.device == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def spans(self):
        synchronize(self.device)
        pairs = list(zip(self.marks, self.marks[1:]))
        if self.device == "cuda":
            return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
        return [end - begin for begin, end in pairs]
