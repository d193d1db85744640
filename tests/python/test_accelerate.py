"""accelerate's save_state and load_state over the real engine, in one process. tests/peers/accelerate has DDP. Where
accelerate is not installed, skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch

pytest.importorskip("accelerate", reason="accelerate is not installed")

import cairn.accelerate
from accelerate import Accelerator as Stock
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    for one in (AcceleratorState, GradientState, PartialState):
        one._reset_state()


class Counter:
    value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Run:
    """A training whose forward changes buffers and draws from the generator."""

    def __init__(self, seed: int = 1, width: int = 8, **given: Any) -> None:
        torch.manual_seed(seed)
        self.accelerator = cairn.accelerate.Accelerator(
            cpu=True,
            cairn_options={"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2},
            **{"dataloader_config": DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5), **given},
        )
        layers = (
            torch.nn.Linear(4, width),
            torch.nn.BatchNorm1d(width),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(width, 1),
        )
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        loader = torch.utils.data.DataLoader(X, batch_size=8, shuffle=True)
        prepared = self.accelerator.prepare(model, optimizer, scheduler, loader)
        self.model, self.optimizer, self.scheduler, self.loader = prepared
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)

    def epoch(self, after: Any = lambda: None) -> list[float]:
        losses = []
        for batch in self.loader:
            loss = self.model(batch).square().mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.counter.value += 1
            losses.append(loss.item())
            after()
        return losses

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_loaded_run_continues_as_the_one_that_saved(tmp_path: Path) -> None:
    first = Run()
    first.epoch()
    first.accelerator.save_state(str(tmp_path / "one"))
    losses = first.epoch()
    first.accelerator.end_training()

    second = Run(seed=2)
    second.accelerator.load_state(str(tmp_path / "one"))
    assert second.epoch() == losses and second.counter.value == 10
    assert same(second.weights(), first.weights())
    assert os.listdir(tmp_path) == ["one"]


def test_each_checkpoint_holds_what_was_there_when_it_was_saved(tmp_path: Path) -> None:
    run, saved = Run(width=400_000), []  # Larger than the pool: not captured before some of it is written.

    def save() -> None:
        saved.append(run.weights())
        run.accelerator.save_state(str(tmp_path / str(len(saved))))

    run.epoch(save)
    run.accelerator.wait_for_checkpoints()

    for number, weights in enumerate(saved, 1):
        run.accelerator.load_state(str(tmp_path / str(number)))
        assert same(run.weights(), weights), number
    run.accelerator.end_training()


def test_a_load_right_after_a_save_reads_what_it_saves(tmp_path: Path) -> None:
    run, path = Run(width=100_000), str(tmp_path / "last")
    for other in (run, Run(seed=2, width=100_000), run):
        run.epoch()
        run.accelerator.save_state(path)
        other.accelerator.load_state(path)
        assert same(other.weights(), run.weights()) and other.counter.value == run.counter.value

    run.epoch()
    run.accelerator.save_state(path)
    assert cairn.load(path)["registered"] == [{"value": 20}]
    run.accelerator.end_training()


def test_automatic_names_go_on_and_the_oldest_go(tmp_path: Path) -> None:
    named = {"automatic_checkpoint_naming": True, "total_limit": 2}
    first = Run(project_config=ProjectConfiguration(str(tmp_path), **named))
    with pytest.raises(cairn.NotFound, match="checkpoints"):
        first.accelerator.load_state()
    first.epoch(first.accelerator.save_state)
    first.accelerator.end_training()
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["checkpoint_3", "checkpoint_4"]

    second = Run(project_config=ProjectConfiguration(str(tmp_path), **named))
    with pytest.raises(cairn.FailedPrecondition, match=r"checkpoint_3 .*load_state"):
        second.accelerator.project_configuration.iteration = 3
        second.accelerator.save_state()
    second.accelerator.load_state()
    assert second.counter.value == 5 and same(second.weights(), first.weights())
    assert second.accelerator.save_state() == str(tmp_path / "checkpoints" / "checkpoint_5")
    second.accelerator.end_training()
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["checkpoint_4", "checkpoint_5"]


def test_a_path_may_be_a_url_of_a_file(tmp_path: Path) -> None:
    run, url = Run(), f"file://{tmp_path}/one"
    saved = run.weights()
    run.accelerator.save_state(url)
    run.epoch()
    run.accelerator.load_state(url)
    assert same(run.weights(), saved) and os.listdir(tmp_path) == ["one"]
    run.accelerator.end_training()


def test_what_it_cannot_do_is_refused_with_the_way_out(tmp_path: Path) -> None:
    run = Run()
    handle = run.accelerator.register_save_state_pre_hook(lambda *_: None)
    with pytest.raises(cairn.Unsupported, match="register_for_checkpointing"):
        run.accelerator.save_state(str(tmp_path / "a"))
    handle.remove()
    with pytest.raises(cairn.InvalidArgument, match="automatic_checkpoint_naming"):
        run.accelerator.save_state()
    run.counter.value = object()  # type: ignore[assignment]
    with pytest.raises(cairn.InvalidArgument, match="registered/0/value"):
        run.accelerator.save_state(str(tmp_path / "a"))
    run.counter.value = 0
    with pytest.raises(cairn.NotFound):
        run.accelerator.load_state(str(tmp_path / "nothing"))
    stock = Stock(cpu=True)
    stock.prepare(torch.nn.Linear(1, 1))
    stock.save_state(str(tmp_path / "theirs"))
    with pytest.raises(cairn.InvalidArgument, match="if accelerate wrote it"):
        run.accelerator.load_state(str(tmp_path / "theirs"))


def test_a_model_and_optimizer_unlike_the_checkpoints_are_refused_unless_allowed(tmp_path: Path) -> None:
    path = str(tmp_path / "one")
    first = Run()
    first.epoch()
    first.accelerator.save_state(path)
    first.accelerator.end_training()
    run = Run(seed=2)
    run.model.bfloat16()
    before = run.weights()
    with pytest.raises(cairn.InvalidArgument, match=r'(?s)one:.*models/0/0.weight: the tree has BF16.*cast="allow"'):
        run.accelerator.load_state(path)
    assert same(run.weights(), before)
    run.accelerator.load_state(path, cast="allow")
    run.accelerator.backward(run.model(X.bfloat16()).float().square().mean())
    run.optimizer.step()

    rated = Run(seed=2)
    rated.accelerator._schedulers[0].scheduler = torch.optim.lr_scheduler.ExponentialLR(rated.optimizer.optimizer, 0.9)
    with pytest.raises(
        cairn.InvalidArgument, match="schedulers/0: the tree has ExponentialLR, the checkpoint has the state"
    ):
        rated.accelerator.load_state(path)

    swapped = Run(seed=2)
    swapped.counter.__class__ = type("Other", (), {**vars(Counter)})
    with pytest.raises(
        cairn.InvalidArgument, match="registered/0: the tree has Other, the checkpoint has the state of Co"
    ):
        swapped.accelerator.load_state(path)

    more = Run(seed=2)
    more.accelerator.register_for_checkpointing(Counter())
    with pytest.raises(cairn.InvalidArgument, match=r"(?s)only in the given tree: registered/1.*strict=False"):
        more.accelerator.load_state(path)
    more.accelerator.load_state(path, strict=False)
    assert same(more.weights(), first.weights())


KINDS = ["models", "optimizers", "schedulers", "dataloaders", "registered", "scaler"]


def without(run: Run, kind: str) -> Run:
    """As if it had prepared or registered none of this kind."""
    if kind != "scaler":
        getattr(run.accelerator, "_custom_objects" if kind == "registered" else f"_{kind}").clear()
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_one_side_has_is_refused_unless_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    def a_run(seed: int, scale: float) -> Run:
        run = Run(seed)
        run.accelerator.scaler = torch.amp.GradScaler("cpu", scale) if kind == "scaler" else None
        return run

    first, (all_of_it, some) = a_run(1, 8.0), (str(tmp_path / name) for name in ("all", "some"))
    first.epoch()
    first.accelerator.save_state(all_of_it)
    without(first, kind).accelerator.scaler = None
    first.accelerator.save_state(some)
    first.accelerator.end_training()

    lacks, has = without(a_run(2, 2.0), kind), a_run(2, 2.0)
    lacks.accelerator.scaler = None
    before = lacks.weights()
    for run, path, message in (
        (lacks, all_of_it, rf"(?s)1 only in the checkpoint: {kind}.*strict=False"),
        (
            has,
            some,
            "scaler: the tree has .*GradScaler" if kind == "scaler" else f"1 only in the given tree: {kind}/0",
        ),
    ):
        with pytest.raises(cairn.InvalidArgument, match=message):
            run.accelerator.load_state(path)
        assert same(run.weights(), before) and run.counter.value == 0 and not run.optimizer.state_dict()["state"]

    lacks.accelerator.load_state(some)
    lacks.accelerator.load_state(all_of_it, strict=False)
    assert f"all in part: 1 only in the checkpoint: {kind}" in caplog.text
    assert same(lacks.weights(), before if kind == "models" else first.weights())
    assert lacks.counter.value == (0 if kind == "registered" else 5)


def test_another_number_of_data_loaders_is_refused_unless_allowed(tmp_path: Path) -> None:
    def a_run(seed: int, more: int) -> Run:
        run = Run(seed)
        for _ in range(more):
            run.accelerator.prepare(torch.utils.data.DataLoader(X))
        return run

    first = a_run(1, 1)
    first.epoch()
    first.accelerator.save_state(str(tmp_path / "two"))
    first.accelerator.end_training()
    for more, message in ((0, "only in the checkpoint: dataloaders/1"), (2, "only in the given tree: dataloaders/2")):
        run = a_run(2, more)
        before = run.weights()
        with pytest.raises(cairn.InvalidArgument, match=rf"(?s){message}.*strict=False"):
            run.accelerator.load_state(str(tmp_path / "two"))
        assert same(run.weights(), before) and run.loader.iteration == 0
        run.accelerator.load_state(str(tmp_path / "two"), strict=False)
        assert same(run.weights(), first.weights()) and run.loader.iteration == 1


def test_a_scheduler_of_groups_in_another_order_is_refused(tmp_path: Path) -> None:
    def job(turned: bool) -> tuple[Any, Any]:
        run = Run()
        run.accelerator._optimizers.clear()
        run.accelerator._schedulers.clear()
        groups = [{"params": run.model[i].parameters(), "lr": 0.1 * (i + 1)} for i in (0, 3)]
        optimizer = torch.optim.AdamW(groups[::-1] if turned else groups)
        run.accelerator.prepare(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step))
        return run.accelerator, run.weights

    first, _ = job(False)
    first.save_state(str(tmp_path / "one"))
    first.end_training()
    accelerator, weights = job(True)
    before = weights()
    with pytest.raises(
        cairn.InvalidArgument, match="schedulers/0: its base_lrs are of the optimizer's groups in the order"
    ):
        accelerator.load_state(str(tmp_path / "one"))
    assert same(weights(), before)


def test_a_loader_of_another_order_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Run()
    first.accelerator.save_state(str(tmp_path / "one"))
    first.accelerator.end_training()
    other = Run(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=False))
    caplog.set_level("WARNING", "cairn")
    other.accelerator.load_state(str(tmp_path / "one"))
    assert "a data loader without a seedable sampler gets the state of one with: its rows may come in" in caplog.text


def test_what_a_checkpoint_cannot_have_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "cairn")
    run = Run(gradient_accumulation_steps=2)
    for number in range(2):
        with run.accelerator.accumulate(run.model):
            run.accelerator.backward(run.model(X[:8]).square().mean())
            run.optimizer.step()
        run.accelerator.save_state(str(tmp_path / str(number)))
    said = "a save in the midst of gradient accumulation does not keep the gradients so far"
    assert caplog.messages == [f"{tmp_path / '0'}: {said}"]
    caplog.clear()
    run.accelerator.prepare(torch.optim.SGD([*run.model.parameters(), torch.nn.Parameter(torch.ones(5))]))
    run.accelerator.save_state(str(tmp_path / "two"))
    run.accelerator.save_state(str(tmp_path / "three"))
    assert caplog.messages == [
        "SGD: no module has 1 of its parameters ([5]): their values are in no checkpoint, unless your code saves them"
    ]
    run.accelerator.end_training()


def test_a_failed_save_is_raised_at_the_end(tmp_path: Path) -> None:
    run = Run()
    run.accelerator.save_state(str(tmp_path / "a"))
    run.accelerator.wait_for_checkpoints()
    checkpointer = run.accelerator._cairn.checkpointer
    assert checkpointer is not None
    taken = Path(checkpointer.root) / f"step-{2:020}"
    taken.mkdir()
    (taken / "theirs").write_text("")
    run.accelerator.save_state(str(tmp_path / "b"))
    with pytest.raises(cairn.Error, match="step 2"):
        run.accelerator.end_training()
    assert sorted(os.listdir(tmp_path)) == ["a"]
