"""A replica group of two ranks, which saves a step, and restores it when it is started again.

two_ranks.py ROOT   with torchrun's environment, and TORCHFT_LIGHTHOUSE
"""

from __future__ import annotations

import sys

import cairn.torchft
import torch
import torchft

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
manager = cairn.torchft.Manager(
    pg=torchft.ProcessGroupGloo(),
    state_dict=dict,
    load_state_dict=lambda _: None,
    min_replica_size=1,
    replica_id="group",
    hostname="localhost",
)
tree = {"shard": torch.zeros(100_000), "alike": torch.zeros(100_000), "drawn": 0}
with cairn.torchft.Checkpoints(
    manager,
    sys.argv[1],
    replica="group",
    own=["drawn"],
    group=torch.distributed.group.WORLD,
    replicated=["alike"],
    host_memory="32MiB",
) as checkpoints:
    try:
        tree = checkpoints.restore(tree)
    except cairn.NotFound:
        pass
    begin = manager.current_step()
    assert tree["drawn"] == begin * (rank + 1)
    assert tree["shard"].eq(begin * (rank + 1)).all() and tree["alike"].eq(begin).all()
    for _ in range(3):
        manager.start_quorum()
        assert manager.should_commit()
        step = manager.current_step()
        tree["shard"].fill_(step * (rank + 1))
        tree["alike"].fill_(step)
        assert checkpoints.save(tree | {"drawn": step * (rank + 1)}) is not None
print(f"from={begin}", flush=True)
manager.shutdown(wait=False)
torch.distributed.destroy_process_group()
