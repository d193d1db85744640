"""The errors as Python's own classes, and their texts: no C++, no empty path, and the way out."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
from cairn._errors import OPEN_IN_THIS_PROCESS

Make = Callable[..., cairn.Checkpointer]

PYTHON_CLASSES = {
    cairn.NotFound: (FileNotFoundError, LookupError, OSError),
    cairn.AlreadyExists: (FileExistsError, OSError),
    cairn.DeadlineExceeded: (TimeoutError, OSError),
    cairn.InvalidArgument: (ValueError,),
    cairn.IoError: (OSError,),
    cairn.NoSpace: (OSError,),
}


@pytest.mark.parametrize("kind", PYTHON_CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_is_also_python_s_own_and_survives_pickling(kind: type[cairn.Error]) -> None:
    error = kind("/mnt/run7: it is gone")

    assert all(isinstance(error, base) for base in (*PYTHON_CLASSES[kind], cairn.Error))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error) == "/mnt/run7: it is gone"


def test_a_first_start_can_be_caught_as_a_missing_file(make: Make) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        make().restore({})
    assert cairn.NoSpace("full").errno == errno.ENOSPC


# Words


def test_a_root_in_unicode_where_names_have_another_encoding_says_the_way_out(tmp_path: Path) -> None:
    code = "import sys, cairn\ncairn.Checkpointer(sys.argv[1] + chr(228))"
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False, env=env)
    assert "expected a path of UTF-8" in ended.stderr and "is ascii: set PYTHONUTF8=1" in ended.stderr, ended.stderr
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, env={**env, "PYTHONUTF8": "1"})


HUGE: Any = 10**5000  # Python shows no int of so many digits.


class Proxy:
    @property
    def __class__(self) -> Any:
        raise ReferenceError("it is gone")


def test_no_argument_of_a_wrong_type_is_answered_in_c_plus_plus(make: Make, tmp_path: Path) -> None:
    checkpointer = make()
    save = checkpointer.save(1, {"w": np.ones(3)})
    save.wait()
    small = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}
    calls: dict[str, Callable[[], Any]] = {
        "step: expected a whole number.*found '2'": lambda: checkpointer.save("2", {}),  # type: ignore[arg-type]
        "step: expected a whole number.*found -1": lambda: checkpointer.save(-1, {}),
        "step: expected a whole number.*found 1.5": lambda: checkpointer.save(1.5, {}),  # type: ignore[arg-type]
        "step: expected a whole number.*found None": lambda: checkpointer.save(None, {}),  # type: ignore[arg-type]
        "step: expected a whole number.*found True": lambda: checkpointer.pin(True),
        "step: expected .*found 18446744073709551616": lambda: checkpointer.restore({}, 2**64),
        "step: expected .*found 'newest'": lambda: checkpointer.load("newest"),  # type: ignore[arg-type]
        "step: expected .*found \\[1\\]": lambda: checkpointer.verify([1]),  # type: ignore[arg-type]
        "timeout: expected seconds, 0 or more, found '1s'": lambda: save.wait("1s"),  # type: ignore[arg-type]
        "timeout: expected seconds, 0 or more, found \\[\\]": lambda: checkpointer.drain([]),  # type: ignore[arg-type]
        "timeout: expected seconds.*found 'soon'": lambda: checkpointer.fence(timeout="soon"),  # type: ignore[arg-type]
        "progress: expected a function, found 3": lambda: checkpointer.load(progress=3),  # type: ignore[arg-type]
        "folder: expected a path, found 3": lambda: checkpointer.load(folder=3),  # type: ignore[arg-type]
        "root: expected a path, found None": lambda: cairn.Checkpointer(None),  # type: ignore[arg-type]
        "root: expected a path, found an empty one": lambda: cairn.Checkpointer(""),
        "root: expected a path of UTF-8 without NUL, found '/a.udcff'": lambda: cairn.Checkpointer(b"/a\xff"),
        "root: expected a path of UTF-8 without NUL, found '/a.x00b'": lambda: cairn.Checkpointer("/a\0b"),
        "map_location: expected a device that is there, found cuda:99": lambda: checkpointer.load(
            map_location="cuda:99"
        ),
        "names: expected Unicode text, found b'w'": lambda: checkpointer.load(names=b"w"),  # type: ignore[arg-type]
        "names: expected Unicode text, found 3": lambda: checkpointer.load(names=["w", 3]),  # type: ignore[list-item]
        "names: expected Unicode text, found '.udce9'": lambda: checkpointer.load(names="\udce9"),
        "metric: expected Unicode text, found None": lambda: checkpointer.best(None),  # type: ignore[arg-type]
        "metrics: expected names with numbers, found '.udce9'": lambda: checkpointer.save(3, {}, metrics={"\udce9": 1}),
        "metrics: expected names with numbers, found 'loss': 1000": lambda: checkpointer.save(
            3, {}, metrics={"loss": 10**400}
        ),
        "metrics: expected names with numbers, found 'loss': a value of type int": lambda: checkpointer.save(
            3, {}, metrics={"loss": HUGE}
        ),
        "metrics: expected a dict, found 3": lambda: checkpointer.save(3, {}, metrics=3),  # type: ignore[arg-type]
        "metadata: expected a dict, found \\[1\\]": lambda: checkpointer.save(3, {}, metadata=[1]),  # type: ignore[arg-type]
        "step: expected a whole number.*found a value of type int": lambda: checkpointer.save(HUGE, {}),
        "x: the key a value of type int of type int cannot be kept": lambda: checkpointer.save(3, {"x": {HUGE: 1}}),
        "x/0: .*Proxy cannot be kept: its __class__ raises ReferenceError": lambda: checkpointer.save(
            3, {"x": [Proxy()]}
        ),
        'cast: expected "allow", .*found a value of type int': lambda: checkpointer.restore({}, cast=HUGE),  # type: ignore[arg-type]
        "fall_back: expected True or False, found 'x'": lambda: checkpointer.restore({}, fall_back="x"),  # type: ignore[arg-type]
        "streams: expected several, found 3": lambda: checkpointer.save(3, {}, streams=3),  # type: ignore[arg-type]
        "streams: expected a torch.cuda.Stream, found 4": lambda: checkpointer.save(3, {}, streams=[4]),
        "stream: expected a torch.cuda.Stream, found 3": lambda: checkpointer.fence(3),
        'mode: expected "min" or "max", found \'most\'': lambda: checkpointer.best("loss", "most"),
        "signals: expected several, found 3": lambda: checkpointer.stop_on(3),  # type: ignore[arg-type]
        "every: expected seconds, 0 or more, found '1s'": lambda: checkpointer.stop_on(every="1s"),  # type: ignore[arg-type]
        "best_metric: expected Unicode text, found '.udce9'": lambda: cairn.Checkpointer(
            tmp_path / "x", **small, keep_best=1, best_metric="\udce9"
        ),
        'best_mode: expected "min" or "max", found 3': lambda: cairn.Checkpointer(
            tmp_path / "x",
            **small,
            keep_best=1,
            best_metric="loss",
            best_mode=3,  # type: ignore[arg-type]
        ),
        "keep_best and best_metric: expected both or neither, found 0 and 'loss'": lambda: cairn.Checkpointer(
            tmp_path / "x", **small, best_metric="loss"
        ),
        "io_queue: expected Unicode text, found '.udce9'": lambda: cairn.Checkpointer(
            tmp_path / "x", **small, io_queue="\udce9"
        ),
        "the path: expected a path, found an empty one": lambda: checkpointer.publish(1, ""),
    }
    for option, value in {
        "keep_last": "3", "max_in_flight": 1.5, "worker_threads": 2**40, "file_mode": "644", "io_queue": 3,
        "when_full": None, "full_timeout": "1h", "open_timeout": None, "take_over": "no", "cuda_devices": "cuda:0",
        "close_timeout": HUGE, "stall_timeout": float("nan"), "group_timeout": -1, "keep_best": "2", "interval": "1h",
        "replicated": None, "per_rank": 5, "keep_every": HUGE, "exist_ok": "no", "group": HUGE,
    }.items():  # fmt: skip
        calls[f"{option}: expected .*"] = lambda o=option, v=value: cairn.Checkpointer(tmp_path / "x", **small | {o: v})
    for option, value, name in [
        ("max_in_flight", 0, "max_in_flight: expected 1 to 64, found 0"),
        ("worker_threads", 5000, "worker_threads: expected 0 to 1024, found 5000"),
        ("chunk", 12345, "^chunk: expected"),
        ("staging", "4 gigs", "^staging: expected a size"),
        ("file_mode", 0, "^file_mode, directory_mode"),
        ("nonfinite", "no", '^nonfinite: expected one of "auto", "off", "mark", found "no"'),
        ("queue_depth", 1025, "^queue_depth: expected 0 to 1024"),
    ]:
        calls[name] = lambda o=option, v=value: cairn.Checkpointer(tmp_path / "x", **small | {o: v})

    for message, call in calls.items():
        with pytest.raises(cairn.Error, match=message) as caught:
            call()
        text = str(caught.value)
        assert not any(word in text for word in ("::", "incompatible", "std", "Options", "uint64", "0x", '""')), text


def test_a_step_that_is_there_is_told_how_to_replace_it(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"w": 1}).wait()
    with pytest.raises(FileExistsError, match=r"step 1 is committed already.*replace=True\) writes it again"):
        checkpointer.save(1, {"w": 1})


def test_names_of_options_in_a_path_stay(tmp_path: Path) -> None:
    with pytest.raises(cairn.NotFound, match="/chunk_bytes run/host_memory_bytes: no such directory"):
        cairn.Checkpointer(tmp_path / "chunk_bytes run/host_memory_bytes", read_only=True).latest()


# Open already


def test_a_root_that_is_open_here_names_close_and_exist_ok(make: Make, root: Path) -> None:
    first = make()
    small: dict[str, Any] = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}
    with pytest.raises(
        cairn.FailedPrecondition, match=r"open for writing in this process.*close\(\).*exist_ok=True"
    ) as caught:
        cairn.Checkpointer(root, **small)
    assert caught.value.detail == OPEN_IN_THIS_PROCESS

    first.save(1, {"w": np.ones(1_000_000)})
    (root.parent / "link").symlink_to(root)
    with cairn.Checkpointer(root.parent / "link", exist_ok=True, **small) as again:
        assert again.steps() == [1]
        with pytest.raises(cairn.FailedPrecondition, match="closed"):
            first.save(2, {"w": 1})
        again.save(2, {"w": 1})
    assert make(read_only=True, exist_ok=True).steps() == [1, 2]


OTHER = """
import sys, cairn
checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
print("open", flush=True)
sys.stdin.readline()
checkpointer.close()
"""


def test_it_says_at_once_that_it_waits_for_another_process(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    small: dict[str, Any] = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert other.stdin and other.stdout and other.stdout.readline() == "open\n"
    with pytest.raises(cairn.FailedPrecondition, match=rf"in process {other.pid}: end that process.*take_over=True"):
        cairn.Checkpointer(root, open_timeout=0, **small)
    with monkeypatch.context() as torchrun:
        torchrun.setenv("WORLD_SIZE", "8")
        with pytest.raises(cairn.FailedPrecondition, match=r"one rank of 8: give each rank's Checkpointer the group"):
            cairn.Checkpointer(root, open_timeout=0, **small)
    assert caplog.text == ""

    class LetGo(logging.Handler):
        """Ends the other writer once it is told that this one waits: so it was told before."""

        def emit(self, record: logging.LogRecord) -> None:
            other.stdin.write("\n")  # type: ignore[union-attr]
            other.stdin.flush()  # type: ignore[union-attr]

    handler = LetGo()
    logging.getLogger("cairn").addHandler(handler)
    try:
        cairn.Checkpointer(root, open_timeout=60, **small).close()
    finally:
        logging.getLogger("cairn").removeHandler(handler)
        other.communicate()
    assert f"is open for writing in process {other.pid}: waiting up to 60 s for it" in caplog.text


SPAWNING = """
import multiprocessing, sys, cairn
checkpointer = cairn.Checkpointer(ROOT, host_memory="8MiB", chunk="1MiB", queue_depth=2, open_timeout=0)
def work(): pass
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
"""


def test_a_spawned_worker_that_opens_it_again_is_told_of_main(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNING.replace("ROOT", repr(str(root))))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment)

    assert 'open the Checkpointer below `if __name__ == "__main__":`' in ran.stderr


NO_THREADS = """
import os, resource, sys
import cairn, numpy as np
c = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
save = c.save(1, {"w": np.ones(4)})
save.wait()
if os.getuid() == 0:  # Root has no limit.
    os.setgid(65534), os.setuid(65534)
before = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
for call in (lambda: save.add_done_callback(print), lambda: cairn.Checkpointer(sys.argv[1] + "-2")):
    try:
        print("no error:", call())
    except cairn.ResourceExhausted as error:
        print(error)
resource.setrlimit(resource.RLIMIT_NPROC, before)
save.add_done_callback(lambda save: print("durable:", save.result(), flush=True))
"""


def test_a_thread_that_cannot_start_is_named_with_the_limit(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_THREADS, root], capture_output=True, text=True, check=False, timeout=60
    )

    lines = done.stdout.splitlines()
    assert len(lines) == 3, (lines, done.stderr)
    assert lines[0].startswith("cannot start thread cairn-done: ")
    assert "see ulimit -u (1) and pids.max of the control group" in lines[0]
    assert lines[1].startswith("cannot start thread cairn-") and "see ulimit -u" in lines[1]
    assert lines[2] == "durable: 1"
