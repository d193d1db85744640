"""A reader waits for the saves of its process that it would read. Here a save commits once a reader waits for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from cairn import _tree
from cairn._loading import reader_of
from ranks import World
from test_path_store import being_read

Make = Callable[..., cairn.Checkpointer]
HELD = 60.0  # Seconds: longer than any test.


def tree(value: float = 0.0) -> dict[str, Any]:
    return {"t": torch.full((100_000,), float(value)), "value": float(value)}


def value_of(loaded: Any) -> float:
    assert bool((loaded["t"] == loaded["value"]).all())
    return float(loaded["value"])


class Released(logging.Handler):
    """Lets a held save commit, or cancels it, once a reader says that it waits for its step."""

    def __init__(self, checkpointer: cairn.Checkpointer) -> None:
        super().__init__(logging.DEBUG)
        self.checkpointer = checkpointer
        self.saves: dict[int, cairn._save.Save] = {}
        self.waited_for: list[int] = []
        self.then: Callable[[cairn._save.Save], object] = cairn._save.Save._release

    def hold(self, step: int, value: float, **options: Any) -> cairn._save.Save:
        fill = lambda sink: [("tree", _tree.flatten(tree(value), sink))]
        self.saves[step] = self.checkpointer._engine.start(step, fill, hold=HELD, **options)
        return self.saves[step]

    def emit(self, record: logging.LogRecord) -> None:
        if "reading waits for step" in record.getMessage():
            assert isinstance(record.args, tuple)
            self.waited_for.append(int(str(record.args[1])))
            self.then(self.saves[self.waited_for[-1]])


@pytest.fixture
def released(make: Make, caplog: pytest.LogCaptureFixture) -> Iterator[Released]:
    checkpointer = make(keep_last=0, max_in_flight=4, close_timeout=20)
    checkpointer.save(1, tree(1)).wait()
    handler = Released(checkpointer)
    with caplog.at_level(logging.DEBUG, "cairn"):
        logging.getLogger("cairn").addHandler(handler)
        yield handler
        logging.getLogger("cairn").removeHandler(handler)


READERS: dict[str, Callable[[cairn.Checkpointer, int | None], Any]] = {
    "restore": lambda c, step: c.restore(tree(), step),
    "load": lambda c, step: c.load(step),
    "lazy": lambda c, step: {key: getattr(one, "load", lambda one=one: one)() for key, one in c.load(step, lazy=True).items()},
    "names": lambda c, step: {"t": (t := c.load(step, names="t")["t"]), "value": float(t[0])},
    "verify": lambda c, step: c.verify(step) or c.load(step),
    "path of the root": lambda c, step: cairn.load(c.root, step=step),
    "path of the step": lambda c, step: cairn.load(Path(c.root, f"step-{step or 3:020}")),
    "another reader": lambda c, step: reader_of(c.root + f"/step-{step or 3:020}", {}).restore(tree(), step),
    "a folder": lambda c, step: c.restore(tree(), folder=Path(c.root, f"step-{step or 3:020}")),
    "fall_back": lambda c, step: c.restore(tree(), step, fall_back=True),
}  # fmt: skip


def test_a_reader_waits_for_the_step_that_it_asks_for(released: Released, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(released.checkpointer.root)
    readers = {**READERS, "a link": lambda c, step: cairn.load(tmp_path / "link", step=step)}
    for value, (how, read) in enumerate(readers.items(), start=100):
        save = released.hold(2, value, replace=value > 100)

        assert value_of(read(released.checkpointer, 2)) == value, how

        assert save.result() == 2 and released.waited_for[-1] == 2
    assert len(released.waited_for) == len(readers)


def test_a_reader_of_the_newest_waits_for_all_and_one_of_an_older_step_for_none(released: Released) -> None:
    released.hold(2, 2)
    newest = released.hold(3, 3)

    assert value_of(released.checkpointer.restore(tree(), 1)) == 1
    assert released.checkpointer.latest() == 1 and released.waited_for == []

    assert value_of(released.checkpointer.restore(tree())) == 3
    assert released.waited_for == [2, 3] and newest.done()


@pytest.mark.parametrize("step", [1, 2])
def test_after_a_save_that_fails_what_is_committed_counts(
    released: Released, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    failing = released.hold(step, 5, replace=True)
    released.then = cairn._save.Save.cancel

    if step == 1:
        assert value_of(released.checkpointer.restore(tree(), step)) == 1
    else:
        with pytest.raises(cairn.NotFound, match="step 2"):
            released.checkpointer.restore(tree(), step)
        assert value_of(released.checkpointer.load()) == 1

    assert f"the save of step {step} has ended without a checkpoint" in caplog.text
    with pytest.raises(cairn.Cancelled):
        failing.wait()


def test_within_a_step_of_the_optimizer_it_waits_too(released: Released) -> None:
    weight = torch.nn.Parameter(torch.zeros(100_000))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    found: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: found.append(value_of(released.checkpointer.load(2))))
    released.hold(2, 2)

    optimizer.step()

    assert found == [2]


def test_a_save_that_takes_too_long_is_named(make: Make, root: Path) -> None:
    checkpointer = make(close_timeout=0.1)
    checkpointer.save(1, tree(1)).wait()
    released = Released(checkpointer)
    late = released.hold(1, 2, replace=True)
    target = tree()

    for read in (lambda: checkpointer.restore(target, 1), lambda: checkpointer.restore(target), checkpointer.load):
        with pytest.raises(cairn.DeadlineExceeded, match=rf"{root}: expected step 1, .* found it \w+ after 0.1 s"):
            read()

    assert value_of(target) == 0
    late._release()
    assert late.result() == 1 and value_of(checkpointer.load(1)) == 2


def test_all_ranks_wait_and_give_up_together(worlds: Callable[..., World]) -> None:
    world = worlds(2, "close_timeout=0.3 if rank else 0.1")
    new = "t = lambda value: {'t': torch.full((9,), float(value)), 'n': value}"
    assert world.all(f"{new}; c.save(1, t(1)).result()") == [1, 1]
    fill = "lambda sink: [('tree', cairn._tree.flatten(t(2), sink))]"

    assert world.all(f"save = c._engine.start(1, {fill}, replace=True, hold={HELD}); None") == [None, None]
    late = world.answers("c.restore(t(0), 1)['n']")
    assert [answer.get("error") for answer in late] == ["DeadlineExceeded"] * 2, late
    assert all("expected step 1" in answer["message"] for answer in late)

    assert (
        world.all("save._release(); [save.result(), c.restore(t(0), 1)['n'], float(c.restore(t(0))['t'][0])]")
        == [[1, 2, 2.0]] * 2
    )
    assert world.all("c._engine.reading._timeout = 60; c.save(2, t(3)); c.restore(t(0))['n']") == [3, 3]


def test_a_replacement_waits_for_readers(make: Make, root: Path) -> None:
    checkpointer = make()
    checkpointer.save(1, tree(1)).wait()
    lazy = checkpointer.load(lazy=True)

    with being_read(root / f"step-{1:020}"):
        later = checkpointer.save(1, tree(2), replace=True)
        with pytest.raises(TimeoutError):
            later.wait(0.3)
        assert bool((lazy["t"].load() == 1).all())  # What it was made of, as long as that is there.
    later.wait()

    assert value_of(checkpointer.load(1)) == 2
    with pytest.raises(cairn.FailedPrecondition, match="step 1 was replaced"):
        lazy["t"].load()


def test_a_reader_without_end_is_named_and_holds_up_no_closing(make: Make, root: Path) -> None:
    checkpointer = make(group_timeout=0.4)
    checkpointer.save(1, tree(1)).wait()

    with being_read(root / f"step-{1:020}"):
        failed = checkpointer.save(1, tree(2), replace=True)
        with pytest.raises(cairn.DeadlineExceeded, match=rf"still being read after 0.2\d* s by process {os.getpid()}"):
            failed.wait(60)
        checkpointer = make(group_timeout=1e6)
        checkpointer.restore(tree())
        checkpointer.save(1, tree(3), replace=True)
        with pytest.raises(cairn.DeadlineExceeded):
            checkpointer.close(0.1)

    assert value_of(cairn.load(root)) == 1
