"""cairn.torchtitan against the real torchtitan: FSDP2 over gloo on the CPU, its optimizers, schedulers and loader."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn.dcp import LoadPlanner, StorageReader
from cairn.torchtitan import CheckpointManager
from jobs import ENVIRONMENT
from programs import expect_alone, expect_exact_resume
from safetensors.torch import load_file
from torchtitan.components.checkpointer import BaseCheckpointManager
from torchtitan.components.checkpointer import CheckpointManager as DcpManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw


class Progress:
    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


class Run:
    """What torchtitan's Trainer holds, for a model small enough for a test."""

    def __init__(
        self, folder: Path, config: BaseCheckpointManager.Config, seed: int = 1, layer: Any = torch.nn.Linear
    ) -> None:
        torch.manual_seed(seed)
        self.model = layer(8, 8)
        self.progress = Progress()
        self.optimizers = default_adamw(lr=0.1).build(model_parts=[self.model])
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
            optimizers=self.optimizers, training_steps=100
        )
        self.manager = config.build(
            dataloader=None,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.schedulers,
            states={"train_state": self.progress},
            sd_adapter=None,
            base_folder=str(folder),
        )

    def train(self, steps: int, last: int = -1) -> None:
        for _ in range(steps):
            self.progress.step += 1
            self.optimizers.zero_grad()
            self.model(torch.full((8,), float(self.progress.step))).square().sum().backward()
            self.manager.maybe_wait_for_staging()
            self.optimizers.step()
            self.schedulers.step()
            self.manager.save(self.progress.step, last_step=self.progress.step == last)

    def weights(self) -> dict[str, torch.Tensor]:
        return {
            **{name: one.clone() for name, one in self.model.state_dict().items()},
            **{n: one.clone() for n, one in self.optimizers.state_dict().items() if isinstance(one, torch.Tensor)},
        }


Open = Callable[..., Run]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Open]:
    runs: list[Run] = []

    def make(seed: int = 1, kind: Any = CheckpointManager, layer: Any = torch.nn.Linear, **options: Any) -> Run:
        small = {"host_memory": "64MiB"} if kind is CheckpointManager else {}
        config = kind.Config(**{"enable": True, "interval": 2, "last_save_model_only": False, **small, **options})
        runs.append(Run(tmp_path, config, seed, layer))
        return runs[-1]

    yield make
    for run in runs:
        run.manager.close()


class Tenfold(torch.nn.Linear):
    """Its weight was a tenth of what it is, until version 2."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *more: Any) -> None:
        if (metadata.get("version") or 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state, prefix, metadata, *more)


class Former(Tenfold):
    _version = 1


@pytest.mark.parametrize(("kind", "factor"), [(Tenfold, 1), (Former, 10)])
def test_modules_keep_the_version_of_their_state(start: Open, kind: Any, factor: int) -> None:
    run = start(layer=kind)
    run.train(2)
    run.manager.close()
    other = start(seed=2, layer=Tenfold)
    assert other.manager.load()
    assert torch.equal(other.model.weight, run.model.weight * factor)


def expect_same(run: Run, weights: dict[str, torch.Tensor]) -> None:
    found = run.weights()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in found)


def test_its_import_needs_no_other_framework() -> None:
    expect_alone("torchtitan")


def test_its_config_builds_it() -> None:
    built = CheckpointManager.Config().build(
        dataloader=None, model_parts=[], optimizers=None, lr_schedulers=None, states={}, sd_adapter=None
    )
    assert type(built) is CheckpointManager and isinstance(built, BaseCheckpointManager)
    assert not built.load() and not built.save(1)


def test_a_run_resumes_from_the_newest(start: Open, tmp_path: Path) -> None:
    first = start()
    assert not first.manager.load()
    first.train(4)
    weights = first.weights()
    for step in (-1, 4):  # What it has just begun to save.
        assert first.manager.load(step) and first.progress.step == 4
    expect_same(first, weights)
    first.manager.close()

    second = start(seed=2)
    assert second.manager.load() and second.progress.step == 4
    expect_same(second, weights)
    assert second.schedulers.state_dict() == first.schedulers.state_dict()
    assert not list((tmp_path / "checkpoint").rglob("*.distcp"))


def test_the_steps_go_on_as_if_never_stopped(start: Open) -> None:
    whole = start(folder="whole")
    whole.train(9)
    first = start()
    first.train(5)
    first.manager.close()
    second = start(seed=2)
    second.manager.load()
    second.train(5)
    expect_same(second, whole.weights())


def test_a_given_step_loads_and_starts_a_new_line(start: Open) -> None:
    first = start()
    first.train(2)
    weights = first.weights()
    first.train(4)
    first.manager.close()

    second = start(seed=2, load_step=2)
    assert second.manager.load(2)
    expect_same(second, weights)
    second.train(2)
    second.manager.close()
    third = start(seed=3)
    third.manager.load()
    assert third.progress.step == 4
    expect_same(third, second.weights())


TRAINS_AND_DIES = """
import os, sys
from pathlib import Path
import torch.distributed as dist
sys.path.insert(0, sys.argv[3])
from test_torchtitan import CheckpointManager, Run
dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", 0, 1, True), rank=0, world_size=1)
config = CheckpointManager.Config(
    enable=True, interval=2, last_save_model_only=False, host_memory="64MiB", memory=sys.argv[2], disk_every=1000)
run = Run(Path(sys.argv[1]), config)
run.train(7)
run.manager.save_future.result()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("step", [-1, 6])
def test_a_killed_run_goes_on_with_what_is_in_memory_alone(start: Open, tmp_path: Path, step: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        command = [sys.executable, "-c", TRAINS_AND_DIES, tmp_path, memory, Path(__file__).parent]
        assert subprocess.run(command, check=False, env=ENVIRONMENT, timeout=240).returncode == -9
        with cairn.Checkpointer(tmp_path / "checkpoint", read_only=True) as reader:
            assert 6 not in reader.steps()

        resumed = start(seed=2, memory=memory)
        assert resumed.manager.load(step) and resumed.progress.step == 6
        resumed.train(6)
        resumed.manager.close()
        with cairn.Checkpointer(tmp_path / "checkpoint", read_only=True) as reader:
            assert reader.latest() == 12
        assert list(Path(memory).iterdir()) == []
    whole = start(folder="whole")
    whole.train(12)
    for name, tensor in whole.weights().items():
        assert torch.equal(tensor, resumed.weights()[name]), name


def test_weights_may_change_after_the_wait_for_staging(start: Open) -> None:
    run = start()
    run.model.blob = torch.nn.Parameter(torch.ones(6 << 20))  # Larger than what a save copies in the call.
    run.manager.states["model"].cached_state_dict = dict(run.model.state_dict())
    run.manager.save(2)
    run.manager.maybe_wait_for_staging()
    run.model.blob.data.zero_()
    run.manager.close()

    with cairn.Checkpointer(run.manager.folder, read_only=True) as reader:
        state = {"blob": torch.zeros(6 << 20)}
        dcp.load(state, storage_reader=StorageReader(reader), planner=LoadPlanner())
    assert bool((state["blob"] == 1).all())


def test_it_keeps_the_latest_k(start: Open, tmp_path: Path) -> None:
    run = start(keep_latest_k=2, interval=1, max_in_flight=3)
    run.train(6)
    run.manager.close()
    assert sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*")) == [f"step-{n:020}" for n in (5, 6)]


def test_a_disabled_async_mode_is_durable_on_return(start: Open) -> None:
    run = start(async_mode="disabled")
    run.train(2)
    assert run.manager.checkpointer.steps() == [2]


def test_the_last_save_may_be_model_only_and_exported(start: Open, tmp_path: Path) -> None:
    run = start(last_save_model_only=True, export_dtype="bfloat16")
    run.train(3, last=3)
    run.manager.close()

    other = start(seed=2, folder="fine", initial_load_path=str(next((tmp_path / "checkpoint").glob("step-*3"))))
    assert other.manager.load() and other.progress.step == 0
    assert torch.equal(other.model.weight, run.model.weight.bfloat16().float())


class Adapter:
    """As torchtitan's models have one, for names that are already Hugging Face's."""

    fqn_to_index_mapping = None

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return state


def test_a_last_save_for_hugging_face_is_beside_the_checkpoints(start: Open, tmp_path: Path) -> None:
    run = start(last_save_model_only=True)
    run.manager.last_save_in_hf, run.manager.sd_adapter = True, Adapter()
    run.train(3, last=3)
    run.manager.close()

    saved = load_file(next((tmp_path / "checkpoint/step-3").glob("*.safetensors")))
    assert torch.equal(saved["weight"], run.model.weight)
    again = start(seed=2)
    assert again.manager.load() and again.progress.step == 2
    assert again.manager.checkpointer.steps() == [2]


def as_adam(optimizer: Any) -> None:
    optimizer.param_groups[0]["decoupled_weight_decay"] = False


def as_of_another_library(optimizer: Any) -> None:
    optimizer.__class__ = type("Twin", (torch.optim.AdamW,), {})


@pytest.mark.parametrize("become", [as_adam, as_of_another_library])
def test_the_state_of_another_optimizer_class_is_refused(start: Open, become: Any) -> None:
    first = start()
    become(first.optimizers.optimizers[0])
    first.train(2)
    first.manager.close()
    other = start(seed=2)
    before = other.weights()

    with pytest.raises(cairn.InvalidArgument, match="the state of another optimizer class"):
        other.manager.load()

    expect_same(other, before)


def test_states_are_left_out_when_asked(start: Open) -> None:
    start_run = start()
    start_run.train(2)
    start_run.manager.close()
    other = start(seed=2, exclude_from_loading=["train_state"])
    assert other.manager.load() and other.progress.step == 0
    assert torch.equal(other.model.weight, start_run.model.weight)


def test_a_folder_that_dcp_wrote_is_continued(start: Open, tmp_path: Path) -> None:
    before = start(kind=DcpManager)
    before.train(2)
    weights = before.weights()
    before.manager.close()

    after = start(seed=2)
    assert after.manager.load() and after.progress.step == 2
    expect_same(after, weights)
    after.train(2)
    after.manager.close()
    assert sorted(path.name for path in (tmp_path / "checkpoint").glob("step-*")) == [f"step-{4:020}", "step-2"]
    again = start(seed=3)
    assert again.manager.load() and again.progress.step == 4


def test_a_failed_save_raises_at_the_next(start: Open) -> None:
    run = start()
    run.train(2)
    run.manager.maybe_wait_for_saving()
    run.manager.states["odd"] = {"value": object()}
    with pytest.raises(cairn.InvalidArgument, match="odd.value"):
        run.train(2)
    del run.manager.states["odd"]
    run.train(2)
    run.manager.maybe_wait_for_saving()
    assert run.manager.checkpointer.steps() == [2, 6]


def test_a_damaged_checkpoint_is_named(start: Open, tmp_path: Path) -> None:
    run = start()
    run.train(2)
    run.manager.close()
    shard = next((tmp_path / "checkpoint").glob("step-*2/shard-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BaseException, match="shard-00000"):
        start(seed=2).manager.load()


def test_a_remote_folder_is_refused(start: Open) -> None:
    with pytest.raises(cairn.Unsupported, match="local filesystems"):
        start(folder="s3://bucket/run")


def test_the_example_is_killed_and_resumes_bit_exactly(tmp_path: Path) -> None:
    expect_exact_resume("torchtitan_text.py", tmp_path, lines=20, folder="checkpoint")
