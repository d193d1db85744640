"""Lightning's sharded strategies over cairn.lightning: FSDP2 and FSDP1 on gloo, in one and in two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cairn
import cairn.lightning
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.fsdp import fully_shard

ROOT = Path(__file__).parents[3]
TEXT = Path("/usr/share/common-licenses/Apache-2.0")
X = torch.randn(24, 8, generator=torch.Generator().manual_seed(3))


class Plain(LightningModule):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
        )
        self.saved: dict[int, dict[str, torch.Tensor]] = {}

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=4)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class Sharded(Plain):
    def configure_model(self) -> None:
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        whole = {name: getattr(one, "full_tensor", one.clone)() for name, one in checkpoint["state_dict"].items()}
        self.saved[self.global_step] = {name: one.clone() for name, one in whole.items()}


def trainer(folder: Path, strategy: Any, epochs: int = 1, io: Any = None, **given: Any) -> Trainer:
    seed_everything(1, verbose=False)
    return Trainer(
        strategy=strategy,
        plugins=[
            cairn.lightning.CheckpointIO(**{"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, **(io or {})})
        ],
        callbacks=[
            cairn.lightning.Callback(),
            ModelCheckpoint(folder, filename="{step}", **{"save_top_k": -1, "every_n_train_steps": 1, **given}),
        ],
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def sharded() -> Any:
    return cairn.lightning.ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=1)


def test_each_checkpoint_holds_what_was_there_and_one_device_loads_it(tmp_path: Path) -> None:
    model = Sharded(width=20_000)  # Too large to be copied within the call.
    trainer(tmp_path, sharded()).fit(model)

    assert sorted(os.listdir(tmp_path)) == [f"step={step}.ckpt" for step in range(1, 7)]
    for step, state in model.saved.items():
        loaded = cairn.lightning.load_checkpoint(tmp_path / f"step={step}.ckpt")
        assert loaded["global_step"] == step
        for name, tensor in state.items():
            assert torch.equal(loaded["state_dict"][name], tensor), (step, name)
    whole = cairn.lightning.load_from_checkpoint(Plain, tmp_path / "step=6.ckpt")
    assert whole.hparams["width"] == 20_000
    # Adam's state, too, though a sharded optimizer's parameters have names instead of numbers.
    optimizer = whole.configure_optimizers()
    optimizer.load_state_dict(loaded["optimizer_states"][0])
    for name, parameter in whole.named_parameters():
        held, kept = optimizer.state[parameter], loaded["optimizer_states"][0]["state"][name]
        assert held["step"] == 6 and torch.equal(held["exp_avg"], kept["exp_avg"]), name


class Based(Sharded):
    """With a base of more than 1 MiB that does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(600, 600).requires_grad_(False)

    def configure_model(self) -> None:
        super().configure_model()
        fully_shard(self.base, mesh=self.device_mesh["data_parallel"])


@pytest.mark.parametrize("frozen", [True, "state_dict.base*"])
def test_what_is_frozen_is_written_once(tmp_path: Path, frozen: Any) -> None:
    """One save after the other: a save links what an earlier one has committed."""
    model = Based()
    options = {"host_memory": "16MiB", "chunk": "1MiB", "max_in_flight": 1, "frozen": frozen}
    trainer(tmp_path, sharded(), io=options).fit(model)

    files = [*tmp_path.glob("*.ckpt/kept-*")]
    assert len(files) == 6 and len({file.stat().st_ino for file in files}) == 1
    for step, state in model.saved.items():
        loaded = cairn.lightning.load_checkpoint(tmp_path / f"step={step}.ckpt")["state_dict"]
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items()), step


def test_state_that_an_optimizer_makes_at_its_construction_is_kept_of_what_is_frozen(tmp_path: Path) -> None:
    """torch's set_optimizer_state_dict leaves out state of parameters that are frozen at the load."""

    class Frozen(Sharded):
        def configure_optimizers(self) -> Any:
            self.made = torch.optim.Adagrad(self.parameters(), lr=0.1)
            return self.made

        def on_train_batch_end(self, *_: Any) -> None:
            self.net[2].requires_grad_(False)  # After the first step.

        def on_train_start(self) -> None:
            self.net[2].requires_grad_(self.global_step == 0)
            self.loaded = sums(self)

    def sums(model: Any) -> dict[str, list[float]]:
        of = {name: model.made.state[one]["sum"] for name, one in model.named_parameters() if one in model.made.state}
        return {name: one.full_tensor().flatten().tolist() for name, one in of.items()}

    class Refrozen(Frozen):
        def configure_model(self) -> None:
            super().configure_model()
            self.net[2].requires_grad_(False)

    model = Frozen()
    trainer(tmp_path, sharded(), every_n_train_steps=6).fit(model)
    assert set(sums(model)["net.2.weight"]) != {0.0}
    other = Refrozen()
    trainer(tmp_path / "two", sharded(), 2).fit(other, ckpt_path=tmp_path / "step=6.ckpt")
    assert other.loaded == sums(model)


def test_what_an_optimizers_state_has_beside_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Counts(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict() | {"counted": 3}

    class Counting(Sharded):
        def configure_optimizers(self) -> Any:
            return Counts(self.parameters(), lr=0.1)

    trainer(tmp_path, sharded(), every_n_train_steps=3).fit(Counting())
    said = "Counts: sharded checkpoints do not keep what its state_dict() has beside groups and the state of parameters: counted"
    assert caplog.messages.count(said) == 1


def test_what_is_refused_says_what_to_use(tmp_path: Path) -> None:
    trainer(tmp_path / "one", "auto", every_n_train_steps=6).fit(Plain())
    with pytest.raises(cairn.InvalidArgument, match="found one of a single device"):
        trainer(tmp_path / "two", sharded(), 2).fit(Sharded(), ckpt_path=tmp_path / "one" / "step=6.ckpt")

    trainer(tmp_path / "light", sharded(), every_n_train_steps=6, save_weights_only=True).fit(Sharded())
    with pytest.raises(cairn.InvalidArgument, match="save_weights_only"):
        trainer(tmp_path / "two", sharded(), 2).fit(Sharded(), ckpt_path=tmp_path / "light" / "step=6.ckpt")

    class Own(torch.optim.AdamW):
        """Its state is AdamW's in all that DCP keeps."""

    class Owned(Sharded):
        def configure_optimizers(self) -> Any:
            return Own(self.parameters(), lr=0.1)

    trainer(tmp_path / "owned", sharded(), every_n_train_steps=6).fit(Owned())
    with pytest.raises(cairn.InvalidArgument, match="the optimizer is AdamW, the checkpoint has the state of Own"):
        trainer(tmp_path / "two", sharded(), 2).fit(Sharded(), ckpt_path=tmp_path / "owned" / "step=6.ckpt")

    class Unkept(Sharded):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = object()

    with pytest.raises(cairn.InvalidArgument, match="mine"):
        trainer(tmp_path / "three", sharded()).fit(Unkept())
    with pytest.raises(cairn.Unsupported, match="save_distributed_checkpoint"):
        cairn.lightning.ModelParallelStrategy(save_distributed_checkpoint=False)
    with pytest.raises(cairn.Unsupported, match="state_dict_type"):
        cairn.lightning.FSDPStrategy(state_dict_type="full")


# Two processes


def start(program: Path, *arguments: Any) -> subprocess.Popen[str]:
    """In a session of its own: Lightning starts the second process."""
    lightning = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # Set by the Trainers above.
    environment = {key: value for key, value in os.environ.items() if key not in lightning}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, program, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return [line for line in out.splitlines() if "digest=" in line or line.startswith("step=")]


def test_the_example_is_killed_and_resumes_bit_exactly(tmp_path: Path) -> None:
    if not TEXT.exists():
        pytest.skip(f"no text to train on: {TEXT}")
    program, seen = ROOT / "examples/lightning_sharded.py", []
    killed = start(program, tmp_path / "killed", "--epochs", 1)
    assert killed.stdout is not None and killed.stderr is not None
    while len(seen) < 25 or not (tmp_path / "killed" / "last.ckpt").exists():
        seen.append(killed.stdout.readline())
        assert seen[-1], killed.stderr.read()
    os.killpg(killed.pid, signal.SIGKILL)
    seen += killed.stdout.readlines()
    killed.communicate()
    before = [line.rstrip("\n") for line in seen if line.startswith("step=") and line.endswith("\n")]

    resumed = finish(start(program, tmp_path / "killed", "--epochs", 1))
    whole = finish(start(program, tmp_path / "whole", "--epochs", 1))

    assert before == whole[: len(before)] and len(before) < 60 and whole[-1].startswith("digest=")
    assert resumed == whole[-len(resumed) :] and 0 < len(whole) - len(resumed) <= len(before)


@pytest.mark.parametrize(("strategy", "shards"), [("fsdp", 2), ("ddp", 1)])
def test_two_processes_resume_bit_exactly(tmp_path: Path, strategy: str, shards: int) -> None:
    program = Path(__file__).with_name("two_processes.py")
    (first,) = finish(start(program, tmp_path / "a", 1, strategy))
    (resumed,) = finish(start(program, tmp_path / "a", 2, strategy))
    (whole,) = finish(start(program, tmp_path / "b", 2, strategy))

    assert resumed == whole and first.startswith("epoch=1") and whole.startswith("epoch=2")
    assert len([*(tmp_path / "a" / "last.ckpt").glob("*.safetensors")]) == shards
