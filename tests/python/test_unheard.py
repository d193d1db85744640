"""No failed run ends well: whoever ends a Checkpointer hears of the failures that nobody has heard."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cairn
import pytest
import torch
from jobs import take, until

Make = Callable[..., cairn.Checkpointer]
TREE = {"w": torch.ones(10)}


def fail(checkpointer: cairn.Checkpointer, step: int) -> cairn.Save:
    """A save that has failed, which nobody has heard."""
    take(Path(checkpointer.root), step)
    save = checkpointer.save(step, TREE)
    until(save.done)
    return save


END: dict[str, Callable[[cairn.Checkpointer], None]] = {
    "drain": lambda checkpointer: checkpointer.drain(),
    "close": lambda checkpointer: checkpointer.close(),
    "with": lambda checkpointer: checkpointer.__exit__(None, None, None),
}


@pytest.mark.parametrize("how", END)
def test_the_end_raises_a_failure_that_came_before_it(make: Make, how: str) -> None:
    checkpointer = make()
    fail(checkpointer, 1)

    with pytest.raises(cairn.Error, match=r"^step 1 is committed already"):
        END[how](checkpointer)
    END[how](checkpointer)  # Heard now.


@pytest.mark.parametrize("how", END)
def test_the_end_raises_the_first_failure_with_the_number_of_others(make: Make, how: str) -> None:
    checkpointer = make()
    for step in (1, 2, 3):
        fail(checkpointer, step)

    with pytest.raises(cairn.Error, match=r"^step 1 is .* \(and 2 more saves have failed\)"):
        END[how](checkpointer)
    END[how](checkpointer)


HEAR: dict[str, Callable[[cairn.Checkpointer, cairn.Save], object]] = {
    "wait": lambda _, save: save.wait(),
    "result": lambda _, save: save.result(),
    "check": lambda checkpointer, _: checkpointer.check(),
    "drain": lambda checkpointer, _: checkpointer.drain(),
}


@pytest.mark.parametrize("how", HEAR)
@pytest.mark.parametrize("end", END)
def test_what_was_raised_is_not_raised_at_the_end(make: Make, how: str, end: str) -> None:
    checkpointer = make()
    save = fail(checkpointer, 1)
    with pytest.raises(cairn.Error, match="step 1"):
        HEAR[how](checkpointer, save)

    END[end](checkpointer)


def test_captured_raises_it_too(make: Make) -> None:
    checkpointer = make(when_full="skip")
    tensor = torch.ones(1 << 20)
    checkpointer._engine.core.begin_step()  # Nobody checks before `captured`. With when_full="wait" save would end the step.
    before = tensor.data  # The engine may still read it.
    save = checkpointer.save(1, {"w": tensor})
    tensor.data = torch.ones(1 << 20)

    for _ in range(2):
        with pytest.raises(cairn.FailedPrecondition, match='tensor "w"'):
            save.captured()
    checkpointer.close()
    del before


def test_an_await_that_gives_up_has_heard_nothing(make: Make) -> None:
    checkpointer = make(host_memory="8MiB", chunk="1MiB", queue_depth=2)
    weights = torch.zeros(6_000_000)

    async def main() -> None:
        with checkpointer.pause_copies(at_most=60):
            save = checkpointer.save(1, {"w": weights})
            waiting = asyncio.ensure_future(wait(save))
            await asyncio.sleep(0)  # It has begun.
            waiting.cancel()
            weights.add_(1)  # The save fails: nobody has fenced.
        until(save.done)

    async def wait(save: cairn.Save) -> int:
        return await save

    asyncio.run(main())
    with pytest.raises(cairn.FailedPrecondition, match="step 1"):
        checkpointer.close()


def test_what_the_caller_wanted_is_no_failure(make: Make) -> None:
    checkpointer = make()
    assert checkpointer._engine.start(1, lambda sink: sink.add("w", torch.ones(10)) or [], hold=60.0).cancel()

    checkpointer.drain()
    checkpointer.close()


def test_the_error_that_ends_the_block_is_not_replaced(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "cairn"), pytest.raises(ZeroDivisionError), make() as checkpointer:
        fail(checkpointer, 1)
        raise ZeroDivisionError

    assert "step 1" in caplog.text


def test_a_failure_by_a_deadline_is_no_deadline_of_the_drain(make: Make) -> None:
    checkpointer = make()
    checkpointer._engine.start(1, lambda sink: sink.add("w", torch.ones(10)) or [], hold=0.001)  # Nobody releases it.

    with pytest.raises(cairn.DeadlineExceeded, match="step 1: written, but its commit was not released"):
        checkpointer.drain()


PROGRAM = """
import pathlib, cairn, torch
root = pathlib.Path({root!r})
def main():
    global checkpointer
    checkpointer = cairn.Checkpointer(root, host_memory="64MiB")
    (root / "step-00000000000000000001").mkdir()
    (root / "step-00000000000000000001" / "theirs").write_text("")
    save = checkpointer.save(1, {{"w": torch.ones(10)}})
    {end}
main()
"""


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("", "a save has failed: step 1 "),
        ("del checkpointer, save; __import__('gc').collect()", "a cairn.Checkpointer that was not closed"),
    ],
    ids=["exit", "dropped"],
)
def test_a_program_that_never_asks_says_so_in_the_end(root: Path, end: str, says: str) -> None:
    program = PROGRAM.format(root=str(root), end=end)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert says in ended.stderr
    assert "step 1" in ended.stderr
    assert ended.returncode == (1 if end == "" else 0)


def test_a_program_that_has_heard_says_nothing_more(root: Path) -> None:
    end = "\n    try: save.wait()\n    except cairn.Error: pass"
    program = PROGRAM.format(root=str(root), end=end)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert "a save has failed" not in ended.stderr
