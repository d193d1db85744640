"""Cairn's benchmarks: what `scripts/bench` runs."""

import os

# c10d's store asks a name server who each client is, in its only thread. One answer that is lost holds all ranks for 5 s:
# nobody is asked. The resolver reads this once, when a process first looks up a name.
os.environ.setdefault("RES_OPTIONS", "attempts:0")
