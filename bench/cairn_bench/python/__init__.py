"""The benchmark of the Python API: Cairn beside its peers."""
