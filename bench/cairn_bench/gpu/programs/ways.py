"""What programs/beside.py measures, in the order of its lines; apart, because who reads them may have no torch."""

# What follows a chunk that is copied to the host. "threads" is Cairn's.
THEN = ("nothing", "events", "host functions", "threads")
# How chunks are copied within the GPU. "batches" is Cairn's.
STAGED = ("chunks", "batches", "overlapping batches", "one copy")
STRIDED_BLOCKS = (8, 16, 32, 64)
# What a stream that stands still is given.
KINDS = ("copies", "events", "copies in batches", "host functions")
