"""cairn.deepspeed at other numbers of ranks, beside DeepSpeed's own conversion and a run of one rank that saves nothing."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import cairn
import cairn.deepspeed
import numpy
import pytest
import torch
import zero_ranks
from deepspeed.checkpoint import ds_to_universal

BF16 = {"bf16": {"enabled": True}}


def run(world: int, tmp_path: Path, *arguments: Any, work: Any = zero_ranks.work) -> list[Any]:
    """What each rank found, as `work` returns it."""
    return zero_ranks.Job(world, tmp_path / "store", work, *arguments).finish()


def expect_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        if isinstance(one, numpy.ndarray):
            assert numpy.array_equal(found[name], one), name
        else:
            assert found[name] == one, name


def universal(root: Path, out: Path) -> dict[str, Any]:
    """The newest checkpoint as DeepSpeed's own conversion has it, of the files that it would have saved itself."""
    folder = cairn.deepspeed.export(root, out)
    ds_to_universal.main(
        Namespace(
            input_folder=folder, output_folder=f"{out}/universal", num_extract_workers=1, num_merge_workers=1,
            keep_temp_folder=False, strict=True, inject_missing_state=True,
        )
    )  # fmt: skip
    found = {}
    for path in Path(out, "universal/zero").glob("*/*.pt"):
        one = torch.load(path, weights_only=False)
        if path.stem != "step":
            found[f"{path.parent.name}/{path.stem}"] = (one["param"] if isinstance(one, dict) else one).float().numpy()
    return found


def expect_universal(found: dict[str, Any], root: Path, out: Path) -> None:
    """The weights and moments that training changes."""
    expected = universal(root, out)
    trained = {name for name in found if name.endswith(("/fp32", "/exp_avg", "/exp_avg_sq"))}
    assert trained and trained <= expected.keys()
    for name in trained:
        assert numpy.array_equal(found[name].ravel(), expected[name].ravel()), name


@pytest.mark.parametrize(
    ("stage", "config"),
    [
        (1, {}),
        (2, BF16),
        (3, {"zero": {"sub_group_size": 300}}),  # Other sizes cut it into another number of flat tensors.
        (3, BF16),
    ],
)
def test_four_ranks_two_one_and_back(tmp_path: Path, stage: int, config: dict[str, Any]) -> None:
    [whole] = run(1, tmp_path, tmp_path / "whole", stage, 5, config)
    root, before = tmp_path / "root", None
    for until, world in enumerate((4, 2, 1, 4), 2):
        found = run(world, tmp_path, root, stage, until, config)
        for loaded, _ in found if before else ():
            expect_same(loaded, before)
        for _, trained in found:
            expect_same(trained, found[0][1])
        before = found[0][1]
        if until in (2, 3):
            expect_universal(before, root, tmp_path / f"out{world}")
    expect_same(before, whole[1])

    odd = run(3, tmp_path, root, stage, 5, config)  # Trains no step.
    for loaded, _ in odd:
        expect_same(loaded, whole[1])
    expect_universal(odd[0][0], root, tmp_path / "out3")


def test_a_rank_that_is_killed_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    root = tmp_path / "root"
    [_, saved], *_ = run(4, tmp_path, root, 3, 2, {})
    killed = run(2, tmp_path, root, 3, 3, work=zero_ranks.killed_in_a_save)
    assert killed[1] is None and isinstance(killed[0], str)
    killed = run(2, tmp_path, root, 3, work=zero_ranks.killed_in_a_load)
    assert killed[1] is None

    found = run(2, tmp_path, root, 3, 2, {})
    for loaded, _ in found:
        expect_same(loaded, saved)


def test_what_is_one_ranks_own_is_rank_0s_and_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    run(2, tmp_path, root, work=zero_ranks.own_client_state)
    assert run(2, tmp_path, root, work=zero_ranks.own_client_state) == [(0, []), (1, [])]
    [(client, told)] = run(1, tmp_path, root, work=zero_ranks.own_client_state)
    assert client == 0 and len(told) == 1 and "ranks have values of their own for own: all take rank 0's" in told[0]


def test_what_deepspeed_does_not_expose_is_refused_by_name(tmp_path: Path) -> None:
    root = tmp_path / "root"
    [_, saved], *_ = run(2, tmp_path, root, 1, 1, {})
    [refused] = run(1, tmp_path, root, work=zero_ranks.refused)
    expected = {
        "round robin": "Unsupported: .*global_step1.* was saved by 2 ranks and is loaded by 1: .* with round_robin_gradients",
        "frozen": "InvalidArgument: .*the checkpoint's optimizer has 3.weight, and the engine's has not",
        "groups": r"InvalidArgument: .*0.bias is \[33\] in group 0 of the optimizer, in the checkpoint \[33\] in group 1",
        "cut otherwise": 'Unsupported: .*tensor "files/.*/exp_avg": expected .* elements',
    }
    for what, pattern in expected.items():
        assert re.search(pattern, refused[what]), (what, refused[what])
    [(loaded, _)] = run(1, tmp_path, root, 1, 1, {})
    expect_same(loaded, saved)
