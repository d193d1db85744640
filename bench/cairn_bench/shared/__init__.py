"""What the benchmarks share, and where things are in the checkout."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
RESULTS = os.path.join(ROOT, "bench/results")  # Committed: only a run with --record writes there.
NEW_RESULTS = os.path.join(ROOT, "build/results")
WORK = os.path.join(ROOT, "build/bench")


def program(name):
    """A program of the release build."""
    return os.path.join(ROOT, "build/release/bin", name)
