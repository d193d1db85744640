"""metadata and metrics of a save, and keep_best: also through kills at any moment."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cairn
import numpy as np
import pytest
from jobs import ENVIRONMENT, SHARED
from ranks import World

Make = Callable[..., cairn.Checkpointer]
BEST = {"keep_last": 1, "keep_best": 2, "best_metric": "loss"}


def save_all(checkpointer: cairn.Checkpointer, losses: list[float], first: int = 1) -> None:
    for step, loss in enumerate(losses, start=first):
        checkpointer.save(step, {"w": np.full(10, step)}, metrics={"loss": loss})
    checkpointer.drain()


def test_metadata_and_metrics_are_listed_and_loaded_apart_from_the_tree(make: Make) -> None:
    checkpointer = make()
    metadata = {"commit": "abc", "args": {"lr": 1e-3, "layers": [1, 2]}, "run": None}
    checkpointer.save(
        1, {"w": np.ones(3)}, metadata=metadata, metrics={"loss": np.float32(0.5), "worst": math.nan}
    ).wait()
    checkpointer.save(2, {"w": np.ones(3)}).wait()

    first, second = make(read_only=True).checkpoints()

    assert first.metadata == metadata
    assert first.metrics["loss"] == 0.5 and math.isnan(first.metrics["worst"])
    assert second.metadata == {} and second.metrics == {}
    assert [*make(read_only=True).load(1)] == ["w"]


def test_what_is_no_metric_or_no_metadata_is_refused(make: Make) -> None:
    checkpointer = make()
    for metrics in ({"loss": "0.1"}, {"loss": None}, {3: 0.1}, {"loss": np.ones(2)}):
        with pytest.raises(cairn.InvalidArgument, match="metrics: expected names with numbers"):
            checkpointer.save(1, {"w": 1}, metrics=metrics)  # type: ignore[arg-type]
    with pytest.raises(cairn.InvalidArgument, match="metadata: expected plain values, found a tensor, a"):
        checkpointer.save(1, {"w": 1}, metadata={"a": np.ones(2)})
    with pytest.raises(cairn.InvalidArgument, match="f: a value of type .* cannot be kept"):
        checkpointer.save(1, {"w": 1}, metadata={"f": print})
    assert checkpointer.steps() == []


def test_the_best_stay_and_the_others_go(make: Make) -> None:
    checkpointer = make(**BEST)
    save_all(checkpointer, [0.5, 0.1, 0.9, 0.2, 0.8, math.nan, 0.7])

    assert checkpointer.steps() == [2, 4, 7]
    assert [one.pinned for one in checkpointer.checkpoints()] == [True, True, False]
    assert checkpointer.best("loss") == 2 and checkpointer.best("loss", "max") == 7
    assert checkpointer.best("other") is None
    save_all(checkpointer, [0.05, 0.6], first=8)
    assert checkpointer.steps() == [2, 8, 9]


def test_the_highest_may_be_the_best_and_of_equals_the_newest(make: Make) -> None:
    checkpointer = make(keep_last=1, keep_best=1, best_metric="accuracy", best_mode="max")
    for step, accuracy in enumerate([0.5, 0.9, 0.9, 0.1], start=1):
        checkpointer.save(step, {"w": step}, metrics={"accuracy": accuracy})
    checkpointer.drain()
    assert checkpointer.steps() == [3, 4]


def test_it_goes_on_after_a_restart_and_with_other_options(make: Make) -> None:
    save_all(make(**BEST), [0.1, 0.2, 0.9])
    assert make(**BEST).steps() == [1, 2, 3]

    save_all(make(**BEST), [0.15, 0.8], first=4)
    assert make(**BEST).steps() == [1, 4, 5]

    save_all(make(**{**BEST, "keep_best": 1}), [0.7], first=6)
    assert make().steps() == [1, 6]
    with pytest.raises(
        cairn.InvalidArgument, match=r"keep_best and best_metric: expected both or neither, found 1 and ''"
    ):
        make(keep_best=1)


def test_the_best_and_the_last_one_kept_are_finite(make: Make) -> None:
    checkpointer = make(**BEST, nonfinite="mark")
    for step, (loss, weight) in enumerate([(0.3, 1), (0.1, math.nan), (0.4, 3), (0.2, math.inf), (0.5, 5)], start=1):
        checkpointer.save(step, {"w": np.full(10, weight)}, metrics={"loss": loss})
    checkpointer.drain()
    assert checkpointer.steps() == [1, 3, 5] and checkpointer.best("loss") == 1

    for step, weight in enumerate([math.inf, math.nan, math.nan], start=6):
        checkpointer.save(step, {"w": np.full(10, weight)}, metrics={"loss": 0.0})
    checkpointer.drain()
    listed = checkpointer.checkpoints()
    assert [(one.step, one.nonfinite) for one in listed] == [(1, None), (3, None), (5, None), (8, "nan")]
    assert [one.pinned for one in listed] == [True, True, False, False]


def test_what_is_marked_takes_no_place_that_finite_ones_leave_free(make: Make) -> None:
    checkpointer = make(keep_last=1, keep_best=2, best_metric="loss", nonfinite="mark")
    for step, (loss, weight) in enumerate([(0.5, 1), (0.1, math.nan), (0.2, math.nan), (0.9, math.nan)], start=1):
        checkpointer.save(step, {"w": np.full(10, weight)}, metrics={"loss": loss})
    checkpointer.drain()
    assert checkpointer.steps() == [1, 4]


@pytest.mark.parametrize("weight", [math.inf, math.nan])
def test_where_all_are_marked_it_is_as_if_none_were(make: Make, weight: float) -> None:
    checkpointer = make(keep_last=1, keep_best=1, best_metric="loss", nonfinite="mark")
    for step, loss in enumerate([0.5, 0.1, 0.9, 0.8], start=1):
        checkpointer.save(step, {"mask": np.full(10, weight)}, metrics={"loss": loss})
    checkpointer.drain()
    assert checkpointer.steps() == [2, 4] and checkpointer.best("loss") == 2


def test_a_finite_one_without_the_metric_is_not_better(make: Make) -> None:
    checkpointer = make(keep_last=1, keep_best=1, best_metric="loss", nonfinite="mark")
    checkpointer.save(1, {"mask": np.zeros(10)}).wait()
    for step, loss in enumerate([0.5, 0.1, 0.9, 0.8], start=2):
        checkpointer.save(step, {"mask": np.full(10, -math.inf)}, metrics={"loss": loss})
    checkpointer.drain()
    assert checkpointer.steps() == [1, 3, 5] and checkpointer.best("loss") == 3


def test_a_pin_of_the_user_s_is_never_taken_away(make: Make) -> None:
    checkpointer = make(**BEST)
    save_all(checkpointer, [0.3, 0.2])
    checkpointer.pin(1)
    save_all(checkpointer, [0.1, 0.9, 0.15, 0.8], first=3)  # 1 and 2 are among the best no more.
    assert checkpointer.steps() == [1, 3, 5, 6]

    checkpointer.pin(3)
    checkpointer.unpin(3)
    checkpointer.unpin(1)
    save_all(checkpointer, [0.7], first=7)
    assert checkpointer.steps() == [3, 5, 7]


def test_a_save_that_pins_pins_for_the_user(make: Make) -> None:
    checkpointer = make(**BEST)
    for step, loss in enumerate([0.9, 0.1, 0.2, 0.8], start=1):
        checkpointer.save(step, {"w": np.full(10, step)}, metrics={"loss": loss}, pin=step == 1)
    checkpointer.drain()
    assert checkpointer.steps() == [1, 2, 3, 4]
    assert [one.pinned for one in checkpointer.checkpoints()] == [True, True, True, False]

    checkpointer.save(2, {"w": 1}, metrics={"loss": 0.7}, replace=True, pin=True)
    save_all(checkpointer, [0.6, 0.3, 0.5], first=5)
    assert checkpointer.steps() == [1, 2, 3, 6, 7]


def test_a_replaced_step_stays_while_it_is_among_the_best(make: Make) -> None:
    checkpointer = make(**BEST)
    save_all(checkpointer, [0.1, 0.2, 0.9])
    checkpointer.save(1, {"w": np.zeros(10)}, metrics={"loss": 0.3}, replace=True).wait()
    checkpointer.drain()

    assert checkpointer.steps() == [1, 2, 3]


def test_a_replaced_step_does_not_inherit_the_pin_of_a_better_one(make: Make) -> None:
    checkpointer = make(keep_last=1, keep_best=1, best_metric="loss")
    save_all(checkpointer, [0.1])
    checkpointer.save(1, {"w": np.zeros(10)}, metrics={"loss": 0.9}, replace=True).wait()
    save_all(checkpointer, [0.5, 0.8], first=2)

    assert checkpointer.steps() == [2, 3]


def test_a_save_that_fails_or_is_cancelled_holds_nobody_up(make: Make) -> None:
    checkpointer = make(**BEST, max_in_flight=4)
    saves = [checkpointer.save(step, {"w": np.full(3_000_000, 1.0)}, metrics={"loss": step}) for step in (1, 2, 3, 4)]
    cancelled = saves[1].cancel()
    for save in (saves[0], *saves[2:]):
        save.wait(60)

    checkpointer.drain()  # Waits for what retention removes, too.
    assert checkpointer.steps() == ([1, 3, 4] if cancelled else [1, 2, 4])


def test_closing_waits_for_the_pins(make: Make, root: Path) -> None:
    with make(**BEST) as checkpointer:
        checkpointer.save(1, {"w": 1}, metrics={"loss": 0.1})
    assert [path.read_bytes() for path in root.glob("step-*/pinned")] == [b"best\n"]


CHILD = """
import random, sys
import cairn, numpy as np
chance = random.Random(7)
losses = [chance.random() for _ in range(400)]
options = dict(host_memory="8MiB", chunk="1MiB", queue_depth=2, keep_last=1, keep_best=2, best_metric="loss")
with cairn.Checkpointer(sys.argv[1], **options) as checkpointer:
    newest = checkpointer.latest() or 0
    for step in range(newest + 1, 400):
        checkpointer.save(step, {"w": np.full(50_000, step)}, metrics={"loss": losses[step]})
        print(step, flush=True)
"""


def test_the_best_outlive_kills_at_any_moment(root: Path) -> None:
    """What was durable and among the best is there after each kill, and there is never more than belongs there."""
    same = random.Random(7)
    losses = [same.random() for _ in range(400)]
    seed = os.getpid()
    chance = random.Random(seed)
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, root], stdout=subprocess.PIPE, env=ENVIRONMENT, text=True
        )
        assert child.stdout
        for _ in range(chance.randrange(3, 20)):
            assert child.stdout.readline(), f"seed {seed}: the child ended by itself, with {child.wait()}"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()

        with cairn.Checkpointer(root, read_only=True, host_memory="8MiB", chunk="1MiB", queue_depth=2) as reader:
            steps = reader.steps()
            best = sorted(range(1, steps[-1] + 1), key=lambda step: losses[step])[:2]
            assert set(best) <= set(steps), f"seed {seed}: a checkpoint that is among the best is gone"
            # The best, keep_last, in flight and one on its way out; and one that was among the best until now.
            assert len(steps) <= 2 + 1 + 3 + 1, f"seed {seed}"

    cairn.Checkpointer(root, keep_last=1, host_memory="8MiB", chunk="1MiB", queue_depth=2).close()
    assert [*root.rglob(".pinned-*")] == [], f"seed {seed}: a killed writer's draft is left"
    assert {path.read_bytes() for path in root.glob("step-*/pinned")} == {b"best\n"}, f"seed {seed}"


def test_in_a_group_rank_0_s_metrics_count(worlds: Callable[..., World], root: Path) -> None:
    world = worlds(2, f'{SHARED}, keep_last=1, keep_best=1, best_metric="loss"')
    for step, loss in enumerate([0.5, 0.1, 0.9], start=1):
        save = f'c.save({step}, tree({step}, rank), metadata={{"rank": rank}}, metrics={{"loss": {loss} + rank}})'
        assert world.all(f"{save}.result()") == [step] * 2
    assert world.all("c.drain()") == [None] * 2
    assert world.all("c.steps(), c.best('loss'), c.checkpoints()[0].metadata") == [[[2, 3], 2, {"rank": 0}]] * 2

    for step in (4, 5):
        world.all(f"c.save({step}, tree({step}, rank), pin=rank == 0 and {step} == 4).result()")
    assert world.all("c.drain()") == [None] * 2
    assert world.all("c.steps()") == [[2, 4, 5]] * 2


def test_metrics_without_the_one_that_counts_are_refused(make: Make) -> None:
    checkpointer = make(keep_best=1, best_metric="loss")
    with pytest.raises(
        cairn.InvalidArgument, match=r"expected 'loss' among them, which is best_metric, found los, acc"
    ):
        checkpointer.save(1, {"a": 1}, metrics={"los": 0.5, "acc": 1.0})
    checkpointer.save(1, {"a": 1})
    checkpointer.drain()
