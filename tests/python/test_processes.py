"""Checkpointers in processes that are killed, interrupted, forked, or simply end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch

Make = Callable[..., cairn.Checkpointer]


def run_child(code: str, root: Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_sigkill_loses_nothing_acknowledged(make: Make, root: Path) -> None:
    child = run_child(
        """
        import itertools, sys, torch, cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2, keep_last=2)
        for step in itertools.count(1):
            save = checkpointer.save(step, {"t": torch.full((500_000,), float(step)), "step": step})
            if step > 1:
                print(before.result(), flush=True)
            before = save
        """,
        root,
    )
    assert child.stdout is not None
    acknowledged = 0
    while acknowledged < 12:
        acknowledged = int(child.stdout.readline())
    child.kill()
    acknowledged = max([acknowledged] + [int(line) for line in child.stdout.read().split()])
    child.wait()

    loaded = make().load()
    assert loaded["step"] >= acknowledged
    assert bool((loaded["t"] == loaded["step"]).all())


def test_ctrl_c_interrupts_a_wait(root: Path) -> None:
    child = run_child(
        """
        import signal, sys, threading, torch, cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
        checkpointer.save(1, {"t": torch.ones(200_000_000)})
        try:
            print("waiting", flush=True)
            checkpointer.drain()
            print("drained", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        root,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    # A fast disk may have been first.
    assert out in ("interrupted\n", "drained\n"), err


def test_exit_drains_what_is_in_flight(make: Make, root: Path) -> None:
    child = run_child(
        """
        import sys, torch, cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
        checkpointer.save(5, {"t": torch.ones(5_000_000)})
        """,
        root,
    )
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert make().steps() == [5]


ENDINGS = {
    "a thread that outlives the main thread": "threading.Thread(target=train).start()",
    "a pool that does": "concurrent.futures.ThreadPoolExecutor(1).submit(train)",
    "a hook of atexit": "atexit.register(lambda: checkpointer.save(2, {'x': 1}))",
    "a hook that waits": "atexit.register(lambda: checkpointer.save(2, {'x': 1}).wait())",
    "a hook that adds a callback": "atexit.register(lambda: checkpointer.save(2, {'x': 1}).add_done_callback(print))",
    "keep_best": "atexit.register(lambda: checkpointer.save(2, {'x': 1}, metrics={'loss': 1.0}))",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_save_is_made_as_long_as_python_code_runs(root: Path, ending: str) -> None:
    code = f"""
        import atexit, concurrent.futures.thread, sys, threading, cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], keep_best=1, best_metric="loss")
        ended = threading.Event()
        threading._register_atexit(ended.set)  # Once the main thread is through.
        def train():
            ended.wait()
            checkpointer.save(2, {{"x": 1}})
        {ENDINGS[ending]}
    """
    child = run_child(code, root)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert cairn.Checkpointer(root, read_only=True).steps() == [2]


@pytest.mark.parametrize("code", [0, 3])
def test_a_save_that_comes_too_late_is_said_on_stderr_and_in_the_exit_code(root: Path, code: int) -> None:
    child = run_child(
        f"""
        import atexit, sys
        atexit.register(lambda: checkpointer.save(2, {{"x": 1}}))
        import cairn
        checkpointer = cairn.Checkpointer(sys.argv[1])
        sys.exit({code})
        """,
        root,
    )
    _, err = child.communicate(timeout=60)
    assert child.returncode == (code or 1)
    assert f"cairn: {root}: step 2 is not saved: the process ends" in err


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_what_a_process_without_standard_streams_prints_goes_into_no_file(root: Path, io: str) -> None:
    code = """
        import os, sys, threading, numpy, cairn
        def print_always():
            while not ended:
                for stream in range(3):
                    try:
                        os.write(stream, b"a line")
                    except OSError:
                        pass
        ended = False
        others = [threading.Thread(target=print_always) for _ in range(2)]
        for other in others:
            other.start()
        checkpointer = cairn.Checkpointer(sys.argv[1], keep_last=0, io_queue=sys.argv[2])
        for step in range(1, 31):
            save = checkpointer.save(step, {"t": numpy.full(5000, step)})
            os.system("echo of a child; echo of a child >&2")
            save.wait()
            checkpointer.pin(step)
        checkpointer.close()
        ended = True
        for other in others:
            other.join()
        assert os.open(sys.argv[0], os.O_RDONLY) > 2
        for stream in range(3):
            assert os.readlink(f"/proc/self/fd/{stream}") == "/dev/null"
            os.dup2(os.open(sys.argv[1] + f".{stream}", os.O_CREAT | os.O_WRONLY), stream)
            os.write(stream, b"mine")
        sys.exit(10)
    """
    program = root.parent / "program.py"
    program.write_text(textwrap.dedent(code))
    started = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, str(program), str(root), io]
    assert subprocess.run(started, check=False, timeout=120).returncode == 10

    with cairn.Checkpointer(root) as checkpointer:
        assert checkpointer.steps() == list(range(1, 31))
        for step in checkpointer.steps():
            checkpointer.verify(step)
    assert [(root.parent / f"{root.name}.{stream}").read_text() for stream in range(3)] == ["mine"] * 3
    for file in root.rglob("*"):
        assert not file.is_file() or b"a line" not in file.read_bytes(), file


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_a_stream_that_is_closed_later_is_no_file_of_the_root(root: Path, io: str) -> None:
    code = """
        import os, sys, numpy, cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], io_queue=sys.argv[2])
        os.close(1)
        checkpointer.save(1, {"t": numpy.ones(5000)}).wait()
        assert os.readlink("/proc/self/fd/1") == "/dev/null"
        os.close(1)
        assert os.open(sys.argv[1] + ".log", os.O_CREAT | os.O_WRONLY) == 1
        checkpointer.save(2, {"t": numpy.ones(5000)}).wait()
        os.write(1, b"mine")
    """
    started = [sys.executable, "-c", textwrap.dedent(code), str(root), io]
    assert subprocess.run(started, check=False, timeout=120).returncode == 0

    assert (root.parent / f"{root.name}.log").read_text() == "mine"


def test_a_forked_worker_is_refused_and_harms_nothing(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"t": torch.ones(2_000_000)})
    pid = os.fork()
    if pid == 0:
        try:
            checkpointer.save(2, {"t": torch.ones(1)})
        except cairn.FailedPrecondition:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    checkpointer.drain()
    assert checkpointer.steps() == [1]


def test_a_forked_worker_that_ends_says_nothing_of_its_parents_saves(root: Path) -> None:
    child = run_child(
        """
        import multiprocessing, sys, torch, cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
        checkpointer.save(5, {"t": torch.ones(5_000_000)})
        worker = multiprocessing.get_context("fork").Process(target=lambda: None)
        worker.start()
        worker.join()
        print(worker.exitcode)
        """,
        root,
    )
    out, err = child.communicate(timeout=60)

    assert (out, err) == ("0\n", "")


def test_a_forked_child_that_drops_the_checkpointer_ends_at_once_and_says_nothing(root: Path) -> None:
    child = run_child(
        """
        import os, sys, torch, cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
        checkpointer.save(5, {"t": torch.ones(5_000_000)})
        pid = os.fork()
        if pid == 0:
            del checkpointer
            import gc; gc.collect()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        root,
    )
    out, err = child.communicate(timeout=60)

    assert (out, err) == ("7\n", "")
