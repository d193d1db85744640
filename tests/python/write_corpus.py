"""Writes the Python half of a corpus of old checkpoints, and its list of digests: write_corpus.py FOLDER, into the
folder that the C++ half has made. Run once for each version of the format, then committed and never again;
tests/format/corpus-v1/README.md says how. No test runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cairn
import corpus_v1
from ranks import World

DCP = """
import cairn.dcp, corpus_v1
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
dist.init_process_group("gloo", store=dist.PrefixStore("pg", store), rank=rank, world_size=world)
state = corpus_v1.dcp_state()
state["sharded"] = distribute_tensor(state["sharded"], init_device_mesh("cpu", (world,)), [Shard(0)])
state["tied sharded"] = state["sharded"]
dcp.save(state, storage_writer=cairn.dcp.StorageWriter(c, 6), planner=cairn.dcp.SavePlanner())
"""


def write_by_ranks(root: Path, options: str, code: str) -> None:
    world = World(corpus_v1.RANKS, root)
    try:
        world.open(options)
        for answer in world.answers(code) + world.answers("c.close()"):
            if "error" in answer:
                sys.exit(f"{root}: {answer}")
    finally:
        world.end()


def main(folder: Path) -> None:
    if any((folder / root).exists() for root in corpus_v1.PYTHON_ROOTS):
        sys.exit(f"{folder}: the Python half is there already")
    with cairn.Checkpointer(folder / "tree", host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        checkpointer.save(4, corpus_v1.tree()).result()
    with cairn.Checkpointer(folder / "long_values", host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        checkpointer.save(8, corpus_v1.long_tree()).result()
    write_by_ranks(
        folder / "replicas",
        f"replicated={corpus_v1.REPLICATED!r}",
        "import corpus_v1; c.save(5, corpus_v1.replicas_tree(rank)).result()",
    )
    write_by_ranks(folder / "dcp", "", DCP)
    for root in corpus_v1.PYTHON_ROOTS:
        for name in (".lock", ".writer"):
            (folder / root / name).unlink()
    lines = [f"{digest}  {path}\n" for path, digest in corpus_v1.sums(folder).items()]
    (folder / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
