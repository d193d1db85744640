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
