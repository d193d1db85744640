"""Cairn's benchmarks: what `scripts/bench` runs."""
