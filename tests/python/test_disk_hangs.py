"""Training beside a disk that hangs: it goes on, says which file waits, and saves again once the disk answers.

Each program does one step of training and a save for each line that it reads, and says the step when it is done.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import IO

import pytest
from hung_disk import FrozenDisk, Gate
from jobs import ENVIRONMENT, expect_whole, until
from ranks import World

OPTIONS = """
import faulthandler, logging, signal, sys
import cairn, torch
faulthandler.register(signal.SIGUSR2)
torch.set_num_threads(1)
logging.basicConfig(format="%(message)s")
root = sys.argv[1]
small = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}
options = {**small, "io_queue": "threads", "stall_timeout": 1, "group_timeout": 60}
def said(step):
    sys.stderr.write(f"said {step}\\n")  # In one piece: other threads log.
    print(step, flush=True)
    return not sys.stdin.readline()
"""
# 24 MiB, three times the pool: the fence waits for the disk.
TRAIN = """
model = torch.nn.Linear(1 << 10, 1 << 11)
optimizer = torch.optim.AdamW(model.parameters())
def train():
    optimizer.zero_grad()
    model(torch.randn(2, 1 << 10)).sum().backward()
    optimizer.step()
"""
PLAIN = """
with cairn.Checkpointer(root, **options) as checkpointer:
    checkpointer.protect(optimizer)
    step = 0
    while not said(step):
        train()
        step += 1
        checkpointer.save(step, {"model": model, "optimizer": optimizer, "step": step})
    try:
        checkpointer.drain()
    except (cairn.DeadlineExceeded, cairn.UnknownOutcome) as lost:  # Unknown, if it was being committed.
        print("lost:", lost, file=sys.stderr)
"""
DCP = """
import torch.distributed.checkpoint as dcp
from cairn.dcp import StorageWriter
with cairn.Checkpointer(root, **options) as checkpointer:
    checkpointer.protect(optimizer)
    step, uploads = 0, []
    while not said(step):
        train()
        step += 1
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        uploads.append(dcp.async_save(state, storage_writer=StorageWriter(checkpointer, step)))
    for upload in uploads:
        getattr(upload, "upload_completion", upload).exception()
"""
HUGGING_FACE = """
import transformers, cairn.huggingface
from transformers import TrainerCallback, TrainingArguments
class Steps(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if said(state.global_step):
            control.should_training_stop = control.should_epoch_stop = True
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1 << 10, 1 << 11)
    def forward(self, x):
        return {"loss": self.net(x).square().mean()}
settings = TrainingArguments(output_dir=root, use_cpu=True, report_to="none", disable_tqdm=True, max_steps=10_000,
    save_strategy="steps", save_steps=1, save_total_limit=3, per_device_train_batch_size=2)
rows = [{"x": torch.randn(1 << 10)} for _ in range(64)]
trainer = cairn.huggingface.Trainer(model=Model(), args=settings, train_dataset=rows, callbacks=[Steps()],
    cairn_options=options)
trainer.train()
"""
LIGHTNING = """
import cairn.lightning
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1 << 10, 1 << 11)
    def training_step(self, batch, _):
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
class Steps(Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        if said(trainer.global_step):
            trainer.should_stop = True
            return -1
saves = ModelCheckpoint(root, filename="{step}", every_n_train_steps=1, save_top_k=3, monitor="step", mode="max")
trainer = Trainer(accelerator="cpu", max_epochs=-1, logger=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[saves, Steps(), cairn.lightning.Callback()], plugins=[cairn.lightning.CheckpointIO(**options)])
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(64, 1 << 10), batch_size=2))
"""


class Training:
    """A program that trains. Its log is read as it comes."""

    def __init__(self, program: str, root: Path, environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | environment,
        )
        self._lines: list[str] = []
        self._said: queue.Queue[str] = queue.Queue()
        self._logged: queue.Queue[str] = queue.Queue()  # What it said: all that it logged before is read.
        assert self._child.stdout is not None and self._child.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._child.stdout, self._said.put), daemon=True),
            threading.Thread(target=self._read, args=(self._child.stderr, self._take_log), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], take: Callable[[str], object]) -> None:
        for line in iter(stream.readline, ""):
            take(line)
        take("")

    def _take_log(self, line: str) -> None:
        (self._logged.put if line.startswith("said ") else self._lines.append)(line)

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def step(self, go: bool = True) -> int:
        """The step that it has done; it goes on with the next one."""
        line = " "
        while line and not line.strip().isdigit():
            try:
                line = self._said.get(timeout=60)
            except queue.Empty:
                self.signal(signal.SIGUSR2)  # Says where it stands.
                until(lambda: "most recent call first" in self.log)
                line = ""
        assert line, self.log
        while self._logged.get(timeout=60).split()[1] != line.strip():
            pass
        if go:
            self.go()
        return int(line)

    def go(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def signal(self, number: int) -> None:
        self._child.send_signal(number)

    def end(self, within: float = 60) -> int:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=within)
        for reader in self._readers:
            reader.join()
        return self._child.returncode

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()


@contextmanager
def training(program: str, root: Path, gate: Gate) -> Iterator[Training]:
    one = Training(program, root, gate.environment)
    try:
        yield one
    finally:
        gate.open()
        one.kill()


def newest(root: Path) -> int:
    """The highest number among the names of checkpoints."""
    # Folders come and go meanwhile.
    names = [os.path.basename(folder) for folder, _, files in os.walk(root) if "manifest.json" in files]
    return max((int(re.findall(r"\d+", name)[-1]) for name in names if name[0] != "."), default=0)


PROGRAMS = {
    "plain": OPTIONS + TRAIN + PLAIN,
    "dcp": OPTIONS + TRAIN + DCP,
    "huggingface": OPTIONS + HUGGING_FACE,
    "lightning": OPTIONS + LIGHTNING,
}


@pytest.mark.parametrize("plug", PROGRAMS)
def test_training_goes_on_and_saves_again(tmp_path: Path, root: Path, plug: str) -> None:
    pytest.importorskip({"huggingface": "transformers"}.get(plug, plug if plug == "lightning" else "torch"))
    gate = Gate(tmp_path)
    with training(PROGRAMS[plug], root, gate) as job:
        while newest(root) < 1:
            job.step()
        with gate.hold("write", "create", "fsync", "rename", "mkdir", path=root.parent):
            steps = [job.step() for _ in range(8)]
            assert steps == list(range(steps[0], steps[0] + 8))
            until(lambda: "beyond stall_timeout (1 s): saves that wait for it fail" in job.log)
            assert re.search(r"(write|open|mkdir|fsync|rename) of .*has waited for the disk for 1", job.log), job.log
            assert "not begun" in job.log
            held = newest(root)
        until(lambda: "the disk answers again" in job.log)
        last = job.step()
        while newest(root) <= max(held, last):
            job.step()
        job.step(go=False)
        assert job.end() == 0, job.log


def expect_ranks_go_on(world: World, options: str, hang: Callable[[], AbstractContextManager[None]], file: str) -> int:
    """While the disk hangs each rank's fence returns, and its save fails with the file's name; the first step that is
    durable after that."""
    world.open(f"stall_timeout=1, {options}", timeout=30)
    world.all("t = {'w': torch.ones(4 << 20)}; c.save(1, t).wait()")
    with hang():
        begun = time.monotonic()
        assert world.all("s = c.save(2, t); c.fence()") == [None] * 3
        errors = [answer["message"] for answer in world.answers("s.wait()")]
        assert time.monotonic() - begun < 15
        assert all(file in error and "beyond stall_timeout" in error for error in errors), errors
    step = 3
    while world.all(f"c.save({step}, t).wait()") != [None] * 3:
        step += 1
    assert world.all("c.close()") == [None] * 3
    return step


def test_ranks_fail_together_by_name_and_go_on(tmp_path: Path, root: Path) -> None:
    gate = Gate(tmp_path)
    world = World(3, root, fresh=True, **gate.environment)
    try:
        step = expect_ranks_go_on(
            world, "io_queue='threads'", lambda: gate.hold("write", path="shard-00001"), "shard-00001"
        )
    finally:
        gate.open()
        world.end()
    expect_whole(root, 1, step)


@pytest.mark.parametrize(("filesystem", "io_queue"), [("ext4", "io_uring"), ("xfs", "io_uring"), ("ext4", "threads")])
def test_ranks_go_on_beside_a_frozen_disk(tmp_path: Path, filesystem: str, io_queue: str) -> None:
    with closing(FrozenDisk(tmp_path, filesystem)) as disk:
        world = World(3, disk.path / "run")
        try:
            step = expect_ranks_go_on(world, f"io_queue='{io_queue}'", disk.frozen, "/run/.attempt-")
        finally:
            world.end()
        expect_whole(disk.path / "run", 1, step)


NEVER_HUNG = OPTIONS.replace('"stall_timeout": 1', '"stall_timeout": 0')


def test_a_signals_grace_ends_a_fence_and_closing(tmp_path: Path, root: Path) -> None:
    gate = Gate(tmp_path)
    stops = PLAIN.replace("checkpointer.protect", "checkpointer.stop_on(grace=1); checkpointer.protect")
    with training(NEVER_HUNG + TRAIN + stops, root, gate) as job:
        job.step()
        with gate.hold("write", path="shard-"):
            for _ in range(9):
                job.go()
            until(lambda: "a fence waits for the disk" in job.log)
            begun = time.monotonic()
            job.signal(signal.SIGTERM)
            job.end(within=20)
            assert time.monotonic() - begun < 8
        assert "DeadlineExceeded" in job.log and "this goes on behind: " in job.log, job.log


CLOSES = """
import time
checkpointer = cairn.Checkpointer(root, **options)
said(0)
checkpointer.save(1, {"t": torch.ones(9)})
begun = time.monotonic()
try:
    checkpointer.close(2)
except cairn.DeadlineExceeded as error:
    print(f"{error}; after {time.monotonic() - begun:.1f} s", file=sys.stderr)
said(1)
with cairn.Checkpointer(root, **options, recycle=False, keep_last=1, open_timeout=60) as again:
    again.drain()
    said(2)
    for step in (2, 3):
        again.save(step, {"t": torch.ones(9)}).wait()
    again.close(0)
try:
    cairn.Checkpointer(root, **options, open_timeout=0)
except cairn.FailedPrecondition as error:
    print(error, file=sys.stderr)
said(3)
with cairn.Checkpointer(root, **options, open_timeout=60) as again:
    print("opened with", again.steps(), file=sys.stderr)
"""


def test_closing_takes_no_longer_than_its_timeout(tmp_path: Path, root: Path) -> None:
    gate = Gate(tmp_path)
    with training(NEVER_HUNG + CLOSES, root, gate) as job, gate.hold("write", path="shard-"):
        job.step()
        job.step(go=False)
        assert re.search(
            r"^abandoned at close: still in flight: 1 save \(step 1\).*; after 2\.[0-4] s$", job.log, re.MULTILINE
        ), job.log
        # Removals lose nothing, so closing raises nothing for them. The root is free again once they have ended.
        gate.open()
        job.go()
        job.step(go=False)
        with gate.hold("unlink", path=".retired-"):
            job.go()
            job.step()
        job.end()
        *_, behind, refused, opened = job.log.splitlines()
        assert behind.startswith(f"{root} is closed, and this goes on behind: removals of older checkpoints;"), job.log
        assert refused.startswith(f"{root} was closed in this process ("), job.log
        assert opened == "opened with [3]", job.log
