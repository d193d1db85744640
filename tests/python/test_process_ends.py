"""How a process ends in which Cairn is at work: nothing is lost, or it is said, and the exit code is the program's."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import cairn
import pytest

CHILD = """
    import multiprocessing, shutil, sys, threading, time
    from concurrent.futures import ProcessPoolExecutor

    def save(root, *steps):
        import cairn, numpy
        checkpointer = cairn.Checkpointer(root, host_memory="64MiB")
        for step in steps:
            checkpointer.save(step, {"x": numpy.ones(5_000_000, "f4")})
        return checkpointer

    def train(root):
        save(root, 1, 2)

    def thread(root):
        def later():
            threading.main_thread().join()
            checkpointer.save(2, {"x": 2})
        checkpointer = save(root, 1)
        threading.Thread(target=later).start()

    def grandchild(root):
        process = context.Process(target=train, args=(root,))
        process.start()
        process.join()

    def fail(root, code):
        global checkpointer
        checkpointer = save(root)
        shutil.rmtree(root)
        checkpointer.save(1, {"x": 1})
        sys.exit(code)

    context = multiprocessing.get_context(sys.argv[2] if len(sys.argv) > 2 else "spawn")
    if __name__ == "__main__":
        root = sys.argv[1]
"""


def run(tmp_path: Path, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(code)
    command = [sys.executable, "-W", "ignore", str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def run_children(tmp_path: Path, root: Path, method: str, *lines: str) -> subprocess.CompletedProcess[str]:
    """What a slow disk says is not part of its stderr."""
    main = "".join(f"    {line}\n" for line in lines)
    ended = run(tmp_path, textwrap.dedent(CHILD) + main, root, method)
    said = ended.stderr.splitlines(keepends=True)
    ended.stderr = "".join(line for line in said if "has waited for the disk" not in line)
    return ended


CHILDREN = {
    "process": ["p = context.Process(target=train, args=(root,))", "p.start()", "p.join()", "sys.exit(p.exitcode)"],
    "thread": ["p = context.Process(target=thread, args=(root,))", "p.start()", "p.join()", "sys.exit(p.exitcode)"],
    "grandchild": ["p = context.Process(target=grandchild, args=(root,))", "p.start()", "p.join()"],
    "executor": ["with ProcessPoolExecutor(1, context) as p:", "    p.submit(train, root).result()"],
    "pool": ["p = context.Pool(1)", "p.map(train, [root])", "p.close()", "p.join()"],
    "imported": ["import cairn", "p = context.Process(target=train, args=(root,))", "p.start()", "p.join()"],
}


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("child", CHILDREN)
def test_a_process_of_multiprocessing_finishes_its_saves(tmp_path: Path, root: Path, child: str, method: str) -> None:
    ended = run_children(tmp_path, root, method, *CHILDREN[child])

    assert (ended.returncode, ended.stderr) == (0, "")
    assert cairn.Checkpointer(root, read_only=True).steps() == [1, 2]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_process_of_multiprocessing_says_what_is_lost(tmp_path: Path, root: Path, code: int, method: str) -> None:
    start = f"p = context.Process(target=fail, args=(root, {code}))"
    ended = run_children(tmp_path, root, method, start, "p.start()", "p.join()", "sys.exit(p.exitcode)")

    assert ended.returncode == (code or 1)
    assert ended.stderr.count(f"cairn: {root}: a save has failed: ") == 1, ended.stderr


def test_a_fork_of_a_process_of_multiprocessing_leaves_its_parents_saves_alone(tmp_path: Path, root: Path) -> None:
    code = """
        def forks(root):
            import os
            checkpointer = save(root, 1)
            if os.fork() == 0:
                sys.exit(0)
            assert os.wait()[1] == 0
            checkpointer.save(2, {"x": 1})
    """
    start = [*textwrap.dedent(code).splitlines(), *CHILDREN["process"]]
    ended = run_children(tmp_path, root, "fork", *(line.replace("target=train", "target=forks") for line in start))

    assert (ended.returncode, ended.stderr) == (0, "")
    assert cairn.Checkpointer(root, read_only=True).steps() == [1, 2]


def test_a_hook_of_a_spawned_process_may_still_save(tmp_path: Path, root: Path) -> None:
    code = """
        def hooks(root):
            import atexit
            checkpointer = save(root, 1)
            atexit.register(checkpointer.save, 2, {"x": 1})
    """
    text = textwrap.dedent(code) + textwrap.dedent(CHILD)
    main = "".join(f"    {line}\n" for line in CHILDREN["process"]).replace("target=train", "target=hooks")
    ended = run(tmp_path, text + main, root, "spawn")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert cairn.Checkpointer(root, read_only=True).steps() == [1, 2]


CALLS = {
    "stats and checkpoints": "checkpointer.stats, checkpointer.checkpoints()",
    "load": "cairn.load(sys.argv[1])",
    "save and wait": "checkpointer.save(2, {'x': tensor}, replace=True).wait()",
    "drain and fence": "checkpointer.drain(), checkpointer.fence()",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_daemon_thread_in_a_call_does_not_abort_the_process(tmp_path: Path, root: Path, call: str) -> None:
    code = f"""
        import contextlib, sys, threading, numpy, cairn
        tensor = numpy.ones(1_000_000, "f4")
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="64MiB")
        checkpointer.save(1, {{"x": 1}}).wait()
        called = threading.Semaphore(0)
        def work():
            while True:
                with contextlib.suppress(cairn.FailedPrecondition):  # Closed, at the end.
                    {CALLS[call]}
                called.release()
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(20):
            called.acquire()
        sys.exit(7)
    """
    ended = run(tmp_path, textwrap.dedent(code), root)

    assert ended.returncode == 7, ended.stderr
    assert "terminate" not in ended.stderr
    assert 1 in cairn.Checkpointer(root, read_only=True).steps()


def test_a_hook_that_opens_after_cairns_own_does_not_abort_the_process(tmp_path: Path, root: Path) -> None:
    code = """
        import atexit, sys
        def late():
            global checkpointer
            checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="64MiB")
            checkpointer.save(2, {"x": 1}).wait()
        atexit.register(late)
        import cairn
    """
    ended = run(tmp_path, textwrap.dedent(code), root)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert cairn.Checkpointer(root, read_only=True).steps() == [2]


@pytest.mark.parametrize("closed", ["sys.stderr = None", "sys.stderr.close()", "sys.stderr = sys.__stderr__ = None"])
def test_what_is_lost_is_never_said_on_stdout(tmp_path: Path, root: Path, closed: str) -> None:
    code = f"""
        import atexit, sys
        def late():
            try:
                checkpointer.save(2, {{"x": 1}})
            except Exception:
                pass
        atexit.register(late)
        import cairn
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="64MiB")
        {closed}
    """
    ended = run(tmp_path, textwrap.dedent(code), root)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ("step 2 is not saved" in ended.stderr) == (closed == "sys.stderr = None")
