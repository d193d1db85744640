"""cairn.deepspeed against the real DeepSpeed on the CPU: engine.save_checkpoint and engine.load_checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import cairn.deepspeed
import deepspeed
import pytest
import torch
import torch.distributed as dist
from programs import expect_alone, expect_exact_resume

FEATURES = 512  # Its weights are larger than what a save copies in the call.
Open = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend="gloo")
    yield
    dist.destroy_process_group()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Open]:
    """Makes an engine, attached to the folder unless `attach` is False."""
    attached: list[Any] = []

    def make(seed: int = 1, stage: int = 1, attach: bool = True, root: Path = tmp_path, **config: Any) -> Any:
        torch.manual_seed(seed)
        norm = torch.nn.LayerNorm if "bf16" in config else torch.nn.BatchNorm1d
        model = torch.nn.Sequential(torch.nn.Linear(FEATURES, FEATURES), norm(FEATURES))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
            config={
                "train_micro_batch_size_per_gpu": 4,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
                "steps_per_print": 10**9,
                **config,
            },
        )
        if attach:
            attached.append(cairn.deepspeed.attach(engine, root, host_memory="64MiB", keep_last=2))
        return engine

    yield make
    for one in attached:
        one.checkpointer.close()


def train(engine: Any, steps: int, save: bool = False, folder: Path | None = None) -> None:
    for _ in range(steps):
        torch.manual_seed(engine.global_steps)
        batch = torch.randn(4, FEATURES, dtype=next(engine.module.parameters()).dtype)
        engine.backward(engine(batch).square().mean())
        engine.step()
        if save:
            engine.save_checkpoint(str(folder))


def weights(engine: Any) -> dict[str, torch.Tensor]:
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return {name: one.detach().clone() for name, one in engine.module.state_dict().items()}


def expect_same(engine: Any, expected: dict[str, torch.Tensor]) -> None:
    found = weights(engine)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    ("stage", "config"),
    [(0, {}), (1, {}), (2, {"bf16": {"enabled": True}}), (3, {}), (3, {"bf16": {"enabled": True}})],
)
def test_training_goes_on_bit_by_bit(start: Open, tmp_path: Path, stage: int, config: dict[str, Any]) -> None:
    whole = start(stage=stage, attach=False, **config)
    train(whole, 5)
    first = start(stage=stage, **config)
    train(first, 3)
    first.save_checkpoint(str(tmp_path), client_state={"note": "kept", "numbers": {1: (2, 3)}})
    first.checkpoint_engine.close()

    second = start(seed=2, stage=stage, **config)
    path, client = second.load_checkpoint(str(tmp_path))
    assert path and client["note"] == "kept" and client["numbers"] == {1: (2, 3)}
    train(second, 2)
    expect_same(second, weights(whole))
    assert second.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()
    assert not [one for one in tmp_path.rglob("*.pt") if one.stat().st_size > 100]


def test_a_save_holds_the_step_at_which_it_was_called(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 1)
    expected = weights(engine)
    engine.save_checkpoint(str(tmp_path))
    train(engine, 1)  # Changes weights, and batch norm's averages in forward.
    engine.checkpoint_engine.close()

    other = start(seed=2)
    other.load_checkpoint(str(tmp_path))
    expect_same(other, expected)


def test_a_load_that_would_narrow_the_weights_is_refused(
    start: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    norm = {"stage": 0, "root": tmp_path / "wide"}
    wide = start(**norm)
    train(wide, 1)
    wide.save_checkpoint(str(tmp_path / "wide"))
    wide.checkpoint_engine.close()

    narrow = start(seed=2, **norm)
    narrow.module.bfloat16()
    before = weights(narrow)
    with pytest.raises(cairn.InvalidArgument, match=r'0.weight \(F32 in the checkpoint, BF16 here\).*cast="allow"'):
        narrow.load_checkpoint(str(tmp_path / "wide"))
    expect_same(narrow, before)
    narrow.checkpoint_engine._allow_loss = True
    narrow.basic_optimizer.__class__ = torch.optim.Adam
    narrow.load_checkpoint(str(tmp_path / "wide"))
    assert "the optimizer is Adam, the checkpoint has the state of AdamW" in caplog.text


# As a crash leaves it: it names what was never durable, or DeepSpeed had not written the name.
@pytest.mark.parametrize("left", ["global_step9", ""])
def test_latest_is_the_newest_durable_one(start: Open, tmp_path: Path, left: str) -> None:
    engine = start()
    train(engine, 2, save=True, folder=tmp_path)
    engine.checkpoint_engine.close()
    (tmp_path / "latest").write_text(left)

    other = start(seed=2)
    assert (tmp_path / "latest").read_text() == "global_step2"
    other.load_checkpoint(str(tmp_path))
    assert other.global_steps == 2


def test_a_lost_tag_folder_is_made_again(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 1, save=True, folder=tmp_path)
    engine.checkpoint_engine.close()
    for one in (tmp_path / "global_step1").iterdir():
        one.unlink()
    (tmp_path / "global_step1").rmdir()

    other = start(seed=2)
    assert other.load_checkpoint(str(tmp_path))[0] and other.global_steps == 1


def test_retention_removes_the_tags_too(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 5, save=True, folder=tmp_path)
    engine.checkpoint_engine.close()
    assert sorted(one.name for one in tmp_path.glob("global_step*")) == ["global_step4", "global_step5"]


def test_a_pin_keeps_its_own_tag_and_no_other(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 1, save=True, folder=tmp_path)
    engine.checkpoint_engine.checkpointer.drain()
    engine.checkpoint_engine.checkpointer.pin(1)
    train(engine, 4, save=True, folder=tmp_path)
    engine.checkpoint_engine.close()
    assert sorted(one.name for one in tmp_path.glob("global_step*")) == [f"global_step{step}" for step in (1, 4, 5)]


def test_what_a_crash_left_of_a_text_makes_no_file_of_deepspeeds(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 2, save=True, folder=tmp_path)
    engine.checkpoint_engine.close()
    for one in (tmp_path / "global_step2").iterdir():
        one.rename(f"{one}.new").write_text("")

    other = start(seed=2)
    assert other.load_checkpoint(str(tmp_path))[0] and other.global_steps == 2


def test_dtypes_that_are_kept_as_bytes_come_back(start: Open, tmp_path: Path) -> None:
    engine, kept = start(), torch.tensor([1 + 2j, 3j], dtype=torch.complex128)
    engine.save_checkpoint(str(tmp_path), client_state={"kept": kept})
    _, client = engine.load_checkpoint(str(tmp_path))
    assert client["kept"].dtype == kept.dtype and torch.equal(client["kept"], kept)


def test_an_older_tag_starts_a_new_line(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 2, save=True, folder=tmp_path)
    engine.checkpoint_engine.close()
    other = start(seed=2)
    other.load_checkpoint(str(tmp_path), tag="global_step1")
    train(other, 1, save=True, folder=tmp_path)
    other.checkpoint_engine.close()
    assert (tmp_path / "latest").read_text() == "global_step2"
    expect_same(other, weights(engine))


def test_two_tags_of_one_step(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 1, save=True, folder=tmp_path)
    engine.save_checkpoint(str(tmp_path), tag="best", save_latest=False)
    expected = weights(engine)
    train(engine, 1)
    engine.load_checkpoint(str(tmp_path), tag="best")
    expect_same(engine, expected)


def test_another_tags_state_of_a_step_is_not_replaced(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 2)
    engine.save_checkpoint(str(tmp_path), tag="base")
    train(engine, 1)
    engine.save_checkpoint(str(tmp_path), tag="first", client_state={"loss": 0.5})
    expected = weights(engine)
    with pytest.raises(cairn.InvalidArgument, match="tag second: step 3 has a checkpoint under tag first, with other"):
        engine.save_checkpoint(str(tmp_path), tag="second", client_state={"loss": 0.25})

    engine.load_checkpoint(str(tmp_path), tag="base")
    train(engine, 1)
    with torch.no_grad():
        next(engine.module.parameters()).add_(1)
    with pytest.raises(cairn.InvalidArgument, match="step 3 has a checkpoint under tag first"):
        engine.save_checkpoint(str(tmp_path), tag="third")

    _, client = engine.load_checkpoint(str(tmp_path), tag="first")
    assert client["loss"] == 0.5
    expect_same(engine, expected)


def test_checkpoints_that_deepspeed_wrote_still_load(start: Open, tmp_path: Path) -> None:
    before = start(attach=False)
    train(before, 2, save=True, folder=tmp_path)
    after = start(seed=2)
    after.load_checkpoint(str(tmp_path))
    assert after.global_steps == 2
    expect_same(after, weights(before))
    train(after, 1, save=True, folder=tmp_path)
    after.checkpoint_engine.close()
    again = start(seed=3)
    again.load_checkpoint(str(tmp_path))
    assert again.global_steps == 3


@pytest.mark.parametrize("stage", [1, 3])
def test_an_export_is_read_by_deepspeed_itself(start: Open, tmp_path: Path, stage: int) -> None:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    engine = start(stage=stage)
    train(engine, 2)
    engine.save_checkpoint(str(tmp_path))
    engine.checkpoint_engine.close()
    expected = weights(engine)
    out = tmp_path / "exported"

    assert cairn.deepspeed.export(tmp_path, out) == str(out / "global_step2")

    stock = start(seed=2, stage=stage, attach=False)
    stock.load_checkpoint(str(out))
    expect_same(stock, expected)
    assert torch.equal(get_fp32_state_dict_from_zero_checkpoint(str(out))["0.weight"], expected["0.weight"])


def test_save_16bit_model_is_deepspeeds_own(start: Open, tmp_path: Path) -> None:
    engine = start()
    assert engine.save_16bit_model(str(tmp_path / "model"))
    saved = torch.load(tmp_path / "model/pytorch_model.bin", weights_only=True)
    assert torch.equal(saved["0.weight"], weights(engine)["0.weight"])
    assert engine.checkpoint_engine.checkpointer.steps() == []


def test_a_value_that_needs_pickle_is_refused_by_name(start: Open, tmp_path: Path) -> None:
    engine = start()
    with pytest.raises(cairn.InvalidArgument, match="files/mp_rank_00_model_states.pt/odd"):
        engine.save_checkpoint(str(tmp_path), client_state={"odd": object()})


def test_another_folder_is_refused(start: Open, tmp_path: Path) -> None:
    engine = start()
    with pytest.raises(cairn.InvalidArgument, match="as given to attach"):
        engine.save_checkpoint(str(tmp_path / "elsewhere"))


def test_a_damaged_checkpoint_is_named(start: Open, tmp_path: Path) -> None:
    engine = start()
    train(engine, 1, save=True, folder=tmp_path)
    engine.checkpoint_engine.close()
    shard = next(tmp_path.glob("step-*/shard-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(cairn.Corrupt, match="shard-00000"):
        start(seed=2).load_checkpoint(str(tmp_path))


def test_what_is_not_supported_is_refused_with_a_way_out(start: Open) -> None:
    engine = start(attach=False, checkpoint={"load_universal": True})
    with pytest.raises(cairn.Unsupported, match=r"load_universal.*export"):
        cairn.deepspeed.attach(engine, "unused")
    with pytest.raises(cairn.InvalidArgument, match=r"deepspeed\.initialize"):
        cairn.deepspeed.attach(torch.nn.Linear(1, 1), "unused")


def test_its_import_needs_no_other_framework() -> None:
    expect_alone("deepspeed")


@pytest.mark.parametrize("stage", [1, 3])
def test_the_example_is_killed_and_resumes_bit_exactly(tmp_path: Path, stage: int) -> None:
    expect_exact_resume("deepspeed_text.py", tmp_path, "--stage", stage, lines=20)
