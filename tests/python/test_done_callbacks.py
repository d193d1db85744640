"""Save.add_done_callback: when, on which thread, and what may be called in it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import cairn
import numpy as np
import pytest
from jobs import ENVIRONMENT, take

Make = Callable[..., cairn.Checkpointer]
WAIT = 60  # Seconds until a hang counts as one.


def test_callbacks_run_in_order_on_another_thread_once_it_is_durable(make: Make) -> None:
    heard: SimpleQueue[tuple[str, int, bool]] = SimpleQueue()
    save = make().save(1, {"w": np.ones(2_000_000)})
    for name in ("a", "b"):
        save.add_done_callback(
            lambda one, name=name: heard.put(
                (name, one.result(0), threading.current_thread() is threading.main_thread())
            )
        )
    assert [heard.get(timeout=WAIT) for _ in range(2)] == [("a", 1, False), ("b", 1, False)]

    save.add_done_callback(lambda one: heard.put(("late", one.step, one.done())))
    assert heard.get(timeout=WAIT) == ("late", 1, True)


def test_it_may_drain_close_and_save(make: Make, root: Path) -> None:
    checkpointer = make()
    heard: SimpleQueue[object] = SimpleQueue()

    def last(save: cairn.Save) -> None:
        checkpointer.drain()
        checkpointer.close()
        heard.put(save.step)

    def first(save: cairn.Save) -> None:
        checkpointer.drain()
        checkpointer.save(2, {"w": 2}).add_done_callback(last)

    checkpointer.save(1, {"w": np.ones(1_000_000)}).add_done_callback(first)

    assert heard.get(timeout=WAIT) == 2
    assert make(read_only=True).steps() == [1, 2]


def test_it_may_close_while_keep_best_pins_and_while_the_main_thread_drains(make: Make) -> None:
    checkpointer = make(keep_best=1, best_metric="loss")
    heard: SimpleQueue[object] = SimpleQueue()

    def close(save: cairn.Save) -> None:
        with contextlib.suppress(cairn.FailedPrecondition):  # The main thread may have closed it.
            checkpointer.drain()
        checkpointer.close()
        heard.put(None)

    checkpointer.save(1, {"w": np.ones(1_000_000)}, metrics={"loss": 1}).add_done_callback(close)
    checkpointer.close()
    assert heard.get(timeout=WAIT) is None


def test_a_failed_and_a_cancelled_save_call_back_too(make: Make, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = make()
    heard: SimpleQueue[BaseException | None] = SimpleQueue()

    def outcome(save: cairn.Save) -> None:
        try:
            save.result(0)
            heard.put(None)
        except cairn.Error as error:
            heard.put(error)
            raise RuntimeError("of the callback") from error

    with caplog.at_level(logging.ERROR, "cairn"):
        take(root, 1)
        checkpointer.save(1, {"w": np.ones(10)}).add_done_callback(outcome)
        assert "step 1 is committed already" in str(heard.get(timeout=WAIT))

        held = checkpointer._engine.start(2, lambda tensors: [("tree", '{"d": []}')], hold=60.0)
        assert held.cancel()
        held.add_done_callback(outcome)
        assert isinstance(heard.get(timeout=WAIT), cairn.Cancelled)

        for thread in threading.enumerate():
            if thread.name == "cairn-done":
                thread.join(WAIT)
    assert caplog.text.count("RuntimeError: of the callback") == 2


@pytest.mark.parametrize("started", [False, True], ids=["before its thread starts", "once it has started"])
@pytest.mark.parametrize("name", ["cairn-done", "cairn-best"])
def test_an_interrupt_at_a_thread_s_start_leaves_nothing_that_nobody_serves(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, started: bool
) -> None:
    start, interrupts = threading.Thread.start, [KeyboardInterrupt()]

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != name or not interrupts:
            return start(thread)
        if started:
            start(thread)
        raise interrupts.pop()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    checkpointer = make(keep_best=1, best_metric="loss")
    heard: SimpleQueue[int] = SimpleQueue()
    for step in range(1, 4):
        with contextlib.suppress(KeyboardInterrupt):
            save = checkpointer.save(step, {"w": np.ones(10)}, metrics={"loss": 1.0})
            for _ in range(2):
                with contextlib.suppress(KeyboardInterrupt):
                    save.add_done_callback(lambda save: heard.put(save.step))
    checkpointer.drain()
    assert not interrupts
    assert heard.get(timeout=WAIT) in (1, 2)
    assert checkpointer.latest() == 3
    assert caplog.text == ""


def test_python_s_exit_waits_for_callbacks(root: Path) -> None:
    script = """if True:
        import sys, cairn, numpy as np
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
        save = checkpointer.save(1, {"w": np.ones(3_000_000)})
        save.add_done_callback(lambda save: print("durable", save.result()))
    """
    ran = subprocess.run(
        [sys.executable, "-c", script, root], capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=WAIT
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("durable 1\n", "", 0)


def test_threads_may_call_while_another_one_closes(tmp_path: Path) -> None:
    """In a process of its own, because the engine used to be freed under the calls."""
    script = """if True:
        import logging, sys, threading, cairn, numpy as np
        logging.disable()
        for number in range(10):
            c = cairn.Checkpointer(f"{sys.argv[1]}/{number}", host_memory="8MiB", chunk="1MiB", queue_depth=2)
            c.save(1, {"w": np.ones(4_000_000)})
            def work(call):
                try:
                    call()
                except cairn.Error:
                    pass
            calls = (c.drain, c.fence, c.drain, lambda: c.close(0), c.close, c.checkpoints, lambda: c.save(2, {"w": 1}))
            threads = [threading.Thread(target=work, args=(call,)) for call in calls]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
    """
    command = [sys.executable, "-c", script, tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=WAIT)
    assert (ran.stderr, ran.returncode) == ("", 0)


def test_what_the_engine_still_reads_outlives_close(make: Make) -> None:
    """A call of another thread keeps the engine, and with it the save that close has abandoned."""
    checkpointer = make()
    checkpointer.save(1, {"w": np.ones(10)}).wait()
    reading, go_on = threading.Event(), threading.Event()

    def progress(done: int, of: int) -> None:
        reading.set()
        go_on.wait(60)

    reader = threading.Thread(target=lambda: checkpointer.verify(1, progress=progress))
    reader.start()
    assert reading.wait(60)
    array = np.zeros(200_000_000)  # 1.6 GB, so that close does not take longer; nearly all is cancelled.
    freed: SimpleQueue[bool] = SimpleQueue()
    save = checkpointer.save(2, {"w": array})

    def still_read() -> bool:
        try:
            save.captured(0)
        except cairn.DeadlineExceeded:
            return True
        except cairn.Error:
            pass  # Cancelled with the engine.
        return False

    weakref.finalize(array, lambda: freed.put(still_read()))
    del array

    with pytest.raises(cairn.DeadlineExceeded):
        checkpointer.close(0)

    go_on.set()
    reader.join()
    assert freed.empty() or not freed.get()
