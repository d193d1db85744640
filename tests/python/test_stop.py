"""A signal or a notice ends training after the step, with one more save, in time."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from jobs import alone, until

Make = Callable[..., cairn.Checkpointer]


@pytest.fixture(autouse=True)
def same_handlers_afterwards() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    yield
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    for number, handler in zip((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1), before, strict=True):
        signal.signal(number, handler)
    assert after == before


# Signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_is_a_request_to_stop(make: Make, name: str) -> None:
    checkpointer = make()
    checkpointer.stop_on()
    assert not checkpointer.stop_requested() and checkpointer.stop_reason is None

    signal.raise_signal(signal.Signals[name])

    assert checkpointer.stop_requested() and checkpointer.stop_requested()
    assert checkpointer.stop_reason == name
    checkpointer.close()
    assert checkpointer.stop_reason == name


def test_the_second_ctrl_c_is_as_without_cairn(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    checkpointer = make()
    checkpointer.stop_on()
    signal.raise_signal(signal.SIGINT)
    assert "Ctrl-C again ends it at once" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)  # torchrun sends one of its own, so it may come twice.
    signal.raise_signal(signal.SIGTERM)
    assert checkpointer.stop_reason is None and checkpointer.stop_requested()
    checkpointer.close()


def test_only_what_is_asked_for_is_handled(make: Make) -> None:
    before = signal.getsignal(signal.SIGHUP)  # nohup ignores it.
    checkpointer = make()
    checkpointer.stop_on(["SIGUSR2", signal.SIGHUP])
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not checkpointer.stop_requested()
    signal.raise_signal(signal.SIGUSR2)
    assert checkpointer.stop_requested() and checkpointer.stop_reason == "SIGUSR2"
    checkpointer.close()
    assert (signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGUSR2)) == (before, signal.SIG_DFL)


def test_a_ctrl_c_that_is_ignored_stays_ignored(make: Make) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    checkpointer = make()
    checkpointer.stop_on()
    signal.raise_signal(signal.SIGINT)
    assert not checkpointer.stop_requested()
    checkpointer.close()
    signal.signal(signal.SIGINT, before)


def test_earlier_handlers_are_called_too_and_come_back(make: Make) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    checkpointer = make()
    checkpointer.stop_on()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM] and checkpointer.stop_requested()
    checkpointer.close()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM] * 2
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("first", [0, 1])
def test_two_checkpointers_hear_it_whichever_closes_first(tmp_path: Path, first: int) -> None:
    both = [cairn.Checkpointer(tmp_path / str(i), host_memory="8MiB", chunk="1MiB", queue_depth=2) for i in range(2)]
    for one in both:
        one.stop_on()
    signal.raise_signal(signal.SIGTERM)
    assert [one.stop_requested() for one in both] == [True, True]
    both[first].close()
    both[1 - first].close()


def test_a_handler_above_that_passes_it_on_reaches_the_one_below(make: Make) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    checkpointer = make()
    checkpointer.stop_on()
    ours: Any = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda number, frame: ours(number, frame))
    signal.raise_signal(signal.SIGUSR1)
    assert checkpointer.stop_requested()
    checkpointer.close()

    signal.raise_signal(signal.SIGUSR1)

    assert heard == [signal.SIGUSR1] * 2
    signal.signal(signal.SIGUSR1, before)


def test_handlers_need_the_main_thread_and_notices_do_not(make: Make) -> None:
    checkpointer = make()
    raised: list[cairn.Error] = []

    def elsewhere() -> None:
        try:
            checkpointer.stop_on()
        except cairn.FailedPrecondition as error:
            raised.append(error)
        checkpointer.stop_on((), notice=lambda: True)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
    until(checkpointer.stop_requested)
    assert checkpointer.stop_reason == "notice"


def test_a_close_in_another_thread_lets_signals_pass(make: Make) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    checkpointer = make()
    checkpointer.stop_on(["SIGTERM"])
    thread = threading.Thread(target=checkpointer.close)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, before)


def test_a_checkpointer_that_is_dropped_handles_nothing(make: Make, tmp_path: Path) -> None:
    checkpointer = cairn.Checkpointer(tmp_path / "dropped", host_memory="8MiB", chunk="1MiB", queue_depth=2)
    checkpointer.stop_on()
    del checkpointer
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_is_no_use_is_refused(make: Make) -> None:
    checkpointer = make()
    with pytest.raises(cairn.FailedPrecondition, match="stop_on before"):
        checkpointer.stop_requested()
    for wrong in ("SIGKILL", "SIGSTOP", "TERM", 0, 4711):
        with pytest.raises(cairn.InvalidArgument, match=f"expected signals that can be caught.*{wrong}"):
            checkpointer.stop_on([wrong])
    wrongs: dict[str, dict[str, Any]] = {
        "notice: expected a function": {"notice": 3},
        "every: expected seconds above 0": {"every": 0},
        "grace: expected seconds": {"grace": -1},
    }
    for message, given in wrongs.items():
        with pytest.raises(cairn.InvalidArgument, match=message):
            checkpointer.stop_on(**given)
    checkpointer.stop_on()
    with pytest.raises(cairn.FailedPrecondition, match="close the Checkpointer first"):
        checkpointer.stop_on()


# At bad moments


def test_a_signal_in_the_midst_of_save_leaves_the_save_whole(make: Make) -> None:
    class Stateful:
        def state_dict(self) -> dict[str, Any]:
            os.kill(os.getpid(), signal.SIGTERM)
            return {"t": torch.arange(4.0)}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    checkpointer = make()
    checkpointer.stop_on()
    checkpointer.save(1, {"big": torch.ones(1 << 20), "object": Stateful()}).wait()

    assert checkpointer.stop_requested()
    assert checkpointer.load(1)["object"]["t"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("wait", ["wait", "drain", "close"])
def test_handlers_run_while_the_main_thread_waits_for_a_save(make: Make, wait: str) -> None:
    handled = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: handled.set())
    checkpointer = make()
    checkpointer.stop_on()
    core = checkpointer._engine.start(1, lambda tensors: [("tree", '{"d": []}')], hold=60.0)

    def release() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert handled.wait(60)
        core._release()

    thread = threading.Thread(target=release)
    thread.start()
    {"wait": core.wait, "drain": checkpointer.drain, "close": checkpointer.close}[wait]()
    thread.join()
    assert handled.is_set() and core.done()
    checkpointer.close()
    signal.signal(signal.SIGTERM, before)


def test_a_forked_child_is_ended_by_sigterm_and_ignores_the_rest(make: Make) -> None:
    checkpointer = make()
    checkpointer.stop_on()
    to_parent, from_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGINT)
        os.write(from_child, b"lives")
        signal.pause()
        os._exit(7)
    assert os.read(to_parent, 5) == b"lives"
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert not checkpointer.stop_requested()


# Notices


def test_a_notice_says_why(make: Make) -> None:
    checkpointer = make()
    said = iter(["", None, False, "preempted by the cloud"])
    checkpointer.stop_on((), notice=lambda: next(said), every=1e-3)
    until(checkpointer.stop_requested)
    assert checkpointer.stop_reason == "preempted by the cloud"


def test_a_notice_that_fails_is_logged_once_and_asked_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def notice() -> bool:
        calls.append(1)
        if len(calls) < 4:
            raise OSError("no route to the metadata server")
        return True

    calls: list[int] = []
    checkpointer = make()
    with caplog.at_level(logging.WARNING, "cairn"):
        checkpointer.stop_on((), notice=notice, every=1e-3)
        until(checkpointer.stop_requested)
    assert len(calls) == 4
    assert [record.getMessage() for record in caplog.records if "notice" in record.getMessage()] == [
        "stop_on: notice failed, and is called again every 0.001 s",
        "stopping: notice",
    ]


def test_a_notice_that_blocks_does_not_hold_up_the_end(make: Make) -> None:
    checkpointer = make()
    begun = threading.Event()
    blocked = threading.Event()
    checkpointer.stop_on((), notice=lambda: begun.set() or blocked.wait())
    assert begun.wait(60)
    checkpointer.close()
    blocked.set()


# Grace


def test_the_end_waits_no_longer_than_grace(root: Path) -> None:
    with pytest.raises(cairn.DeadlineExceeded), cairn.Checkpointer(root, host_memory="32MiB") as checkpointer:
        checkpointer.stop_on(grace=0.05)
        checkpointer.save(1, {"a": 1}).wait()
        checkpointer._engine.start(2, lambda tensors: [("tree", '{"d": []}')], hold=60.0)
        signal.raise_signal(signal.SIGTERM)
    with alone(root) as reader:
        assert reader.steps() == [1]


def test_a_last_save_waits_for_its_place_no_longer_than_grace(make: Make) -> None:
    checkpointer = make(max_in_flight=1)
    checkpointer.stop_on(grace=0)
    held = checkpointer._engine.start(1, lambda tensors: [("tree", '{"d": []}')], hold=60.0)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(cairn.DeadlineExceeded):
        checkpointer.save(2, {})
    held._release()
    with pytest.raises(cairn.DeadlineExceeded):
        held.wait()  # By itself it does not wait any more.
    held.wait(60)
    checkpointer.close(60)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("steps", [[], [1, 2]])
def test_a_stop_that_nobody_asks_for_is_said_when_grace_ends(
    make: Make, capfd: pytest.CaptureFixture[str], steps: list[int], asked: bool
) -> None:
    checkpointer = make()
    checkpointer.stop_on(grace=0.05)
    for step in steps:
        checkpointer.save(step, {"a": 1}).wait()
    [thread] = [one for one in threading.enumerate() if one.name == "cairn-grace"]
    signal.raise_signal(signal.SIGTERM)
    if asked:
        assert checkpointer.stop_requested()
    thread.join()
    last = "the newest durable checkpoint is step 2" if steps else "no checkpoint is durable"
    said = f"SIGTERM came 0.05 s ago, and nobody has called stop_requested() since: {last}\n"
    assert capfd.readouterr().err == ("" if asked else f"cairn: {checkpointer.root}: {said}")
    checkpointer.close()


def test_grace_limits_nothing_before_a_signal(make: Make) -> None:
    checkpointer = make()
    checkpointer.stop_on(grace=0)
    checkpointer.save(1, {"t": torch.ones(1 << 20)})
    checkpointer.close()
    assert make(read_only=True).steps() == [1]


# Whole jobs

LOOP = """
import os, signal, sys, torch, cairn
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, i): return torch.tensor(i)
def rows(**options):
    return torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, **options)
def train(batches):
    with cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        checkpointer.stop_on(grace=60)
        for step, batch in enumerate(batches, 1):
            stopping = checkpointer.stop_requested()
            if stopping or step % 1000 == 0:
                checkpointer.save(step, {"last": batch, "step": step})
            if stopping:
                break
            if step == 3:
                print("trains", flush=True)
    print(checkpointer.stop_reason, step)
    raise SystemExit(75)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_to_all_processes_of_a_job_with_workers(root: Path, name: str) -> None:
    code = LOOP + "train(rows(worker_init_fn=cairn.shield_worker))"
    with subprocess.Popen(
        [sys.executable, "-c", code, root], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "trains\n"
        os.killpg(child.pid, signal.Signals[name])
        reason, step = child.stdout.readline().split()
    assert child.returncode == 75 and reason == name
    with alone(root) as reader:
        saved = reader.load()
        assert saved["step"] == int(step) and saved["last"].tolist() == [4 * int(step) - i for i in (4, 3, 2, 1)]


def test_after_the_end_a_signal_does_what_it_did(root: Path) -> None:
    code = """
        checkpointer = cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2)
        checkpointer.stop_on()
        ours = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *given: ours(*given))  # So that close cannot put the earlier one back.
        checkpointer.close()
        os.kill(os.getpid(), signal.SIGTERM)
        print("lives")
    """
    child = subprocess.run([sys.executable, "-c", LOOP + textwrap.dedent(code), root], capture_output=True, check=False)
    assert (child.returncode, child.stdout) == (-signal.SIGTERM, b"")
