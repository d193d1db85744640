"""cairn.accelerate with DDP on gloo, in two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import expect_alone, expect_exact_resume
from ranks import World

TEXT = Path("/usr/share/common-licenses/Apache-2.0")


def test_two_processes_are_killed_and_resume_bit_exactly_in_mid_epoch(tmp_path: Path) -> None:
    if not TEXT.exists():
        pytest.skip(f"no text to train on: {TEXT}")
    named = {"folder": "checkpoints", "pattern": "checkpoint_1"}
    expect_exact_resume("accelerate_text.py", tmp_path, "--epochs", 1, lines=25, **named)


# Eight batches an epoch on each of two ranks; a save after the third of the second epoch.
ROWS = """
import cairn.accelerate
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, set_seed
def rows(path, load, stateful, skip=3):
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = cairn.accelerate.Accelerator(
        cpu=True,
        cairn_options={"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2},
        dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful),
    )
    set_seed(1 + load)
    loader = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(32.0), batch_size=2, shuffle=True))
    seen = []
    if load:
        accelerator.load_state(path)
    for epoch in range(int(load), 3):
        skips = load and epoch == 1 and not stateful
        for batch in accelerator.skip_first_batches(loader, skip) if skips else loader:
            seen.append(batch.tolist())
            if len(seen) == 11 and not load:
                accelerator.save_state(path)
            if len(seen) == 2 and skips and skip == 3:  # In the loader that skips.
                accelerator.save_state(path + "-again")
    accelerator.wait_for_checkpoints()
    return seen
"""


@pytest.mark.parametrize("stateful", [False, True], ids=["skip_first_batches", "stateful"])
def test_an_order_that_a_generator_draws_goes_on_in_mid_epoch(tmp_path: Path, stateful: bool) -> None:
    """accelerate itself begins another order."""
    if stateful:
        pytest.importorskip("torchdata.stateful_dataloader")
    world = World(2, tmp_path)
    try:
        assert world.all(ROWS) == [None] * 2
        whole, resumed = (world.all(f"rows({str(tmp_path / 'x')!r}, {load}, {stateful})") for load in (False, True))
        for one, other in zip(whole, resumed, strict=True):
            assert other == one[11:]
        if stateful:
            return
        again = world.all(f"rows({str(tmp_path / 'x-again')!r}, True, False, skip=5)")
        for one, other in zip(whole, again, strict=True):
            assert other == one[13:]
    finally:
        world.end()


def test_it_needs_no_other_framework() -> None:
    expect_alone("accelerate")
