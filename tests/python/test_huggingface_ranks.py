"""The Trainer under DDP: two processes on gloo, one checkpoint of both."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import numpy
import pytest
from huggingface_trainer import (
    a_trainer,
    assert_same_weights,
    exported_by_command,
    folders,
    hf,
    losses,
    steps,
    torch,
    transformers,
)
from ranks import World

# Runs in a rank.
TRAIN = """
import os
from pathlib import Path
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from huggingface_trainer import At, a_gpt2, a_trainer, hf, losses, torch, transformers, versioned
class Sharding(hf.Trainer):
    # accelerate shards only on accelerators; its state says so. FSDP2 itself, and the rest of accelerate, run on CPUs.
    def create_accelerator_and_postprocess(self):
        Accelerator(cpu=True)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["GPT2Block"],
            reshard_after_forward=True)
        AcceleratorState._shared_state["fsdp_plugin"] = plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # Until the next TrainingArguments.
        super().create_accelerator_and_postprocess()
def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
def train(output, fsdp=False, resume=None, dtype=None, tied=True, based=False, dies=0, **settings):
    kind = Sharding if fsdp else hf.Trainer
    settings["model"] = versioned(a_gpt2(tie_word_embeddings=tied)).to(dtype)
    if based:
        settings["model"].base = torch.nn.Linear(600, 1200).requires_grad_(False)
    trainer = a_trainer(Path(output), kind, ddp_backend="gloo", per_device_train_batch_size=2, **settings)
    def die():  # Once the save before is in memory.
        trainer._run().newest.kept()
        os.kill(os.getpid(), 9)
    trainer.add_callback(At(dies, die))
    trainer.train(resume_from_checkpoint=resume)
    weights = {name: whole(tensor).tolist() for name, tensor in trainer.model.state_dict().items()}
    return {"losses": losses(trainer), "weights": weights, "random": torch.rand(1).item(), "world": trainer.args.world_size}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    ranks = World(2, tmp_path_factory.mktemp("world"))
    for answer in ranks.answers(TRAIN):
        assert "error" not in answer, answer
    yield ranks
    ranks.end()


def train(world: World, output: Path, **settings: Any) -> list[Any]:
    given = "".join(f", {name}={value!r}" for name, value in settings.items())
    answers = world.answers(f"train({str(output)!r}{given})")
    for answer in answers:
        assert "value" in answer, answer
    return [answer["value"] for answer in answers]


def test_a_resumed_job_is_the_uninterrupted_one(world: World, tmp_path: Path) -> None:
    whole = train(world, tmp_path)
    resumed = train(world, tmp_path, resume=4)

    assert whole[0]["world"] == 2 and whole[0]["weights"] == whole[1]["weights"]
    assert whole[0]["random"] == whole[1]["random"]
    assert resumed == whole
    assert steps(tmp_path)[-1] == 8


def test_its_folder_is_a_model_folder(world: World, tmp_path: Path) -> None:
    from safetensors import safe_open

    weights = train(world, tmp_path, max_steps=2)[0]["weights"]

    folder = folders(tmp_path)[-1]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert {name: tensor.tolist() for name, tensor in loaded.state_dict().items()} == weights
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    held = {}
    for shard in folder.glob("shard-*"):
        with safe_open(shard, "pt") as file:
            held |= dict.fromkeys(file.keys(), shard.name)
    assert {name: held.get(name) for name in index} == index
    assert "shard-00001.safetensors" in {of for name, of in held.items() if name.startswith("trainer/")}


def test_the_number_of_ranks_may_change(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    two = train(world, tmp_path, max_steps=2)[0]
    one = a_trainer(tmp_path, max_steps=4)
    one.train(resume_from_checkpoint=True)
    assert losses(one)[1] == two["losses"]["1"]  # Of trainer_state.json.
    assert "another number of ranks saved: each begins with new random numbers" in caplog.text

    three = train(world, tmp_path, max_steps=5, resume=4)
    assert three[0]["weights"] == three[1]["weights"] and sorted(three[0]["losses"]) == ["1", "2", "3", "4", "5"]
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        assert_same_weights(one.model, checkpointer.load(4))
        assert [found.world for found in checkpointer.checkpoints()] == [2, 1, 2]


def test_the_best_model_is_loaded_on_every_rank(world: World, tmp_path: Path) -> None:
    settings = {
        "max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 1,
        "metric_for_best_model": "loss", "greater_is_better": True,  # The first one, which is kept until the end.
    }  # fmt: skip
    trained = train(world, tmp_path, **settings)
    assert steps(tmp_path) == [2, 6]
    best = transformers.AutoModelForCausalLM.from_pretrained(folders(tmp_path)[0]).state_dict()
    for one in trained:
        assert one["weights"] == {name: tensor.tolist() for name, tensor in best.items()}


# FSDP2


def test_a_resumed_fsdp2_job_is_the_uninterrupted_one(world: World, tmp_path: Path) -> None:
    first = train(world, tmp_path, fsdp=True)
    resumed = train(world, tmp_path, fsdp=True, resume=4)

    assert resumed == first and first[0]["weights"] == first[1]["weights"]
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        assert [(found.step, found.world) for found in checkpointer.checkpoints()][-1] == (8, 2)
        checkpointer.verify()
        with pytest.raises(cairn.InvalidArgument, match="saved through cairn.dcp"):
            checkpointer.load()

    # A copy elsewhere is continued too.
    folder = shutil.copytree(folders(tmp_path)[1], tmp_path / "copy")
    assert train(world, tmp_path / "other", fsdp=True, resume=str(folder)) == first
    assert steps(tmp_path / "other") == [6, 8]

    for settings, message in (
        ({"optim": "adagrad"}, "copy: the optimizer is Adagrad, the checkpoint has the state of AdamW"),
        ({"dtype": torch.bfloat16}, 'copy: .*transformer.wte.weight .*F32 in the checkpoint, BF16 here.*cast="allow"'),
    ):
        given = "".join(f", {name}={value!r}" for name, value in settings.items())
        for answer in world.answers(f"train({str(tmp_path / 'no')!r}, fsdp=True, resume={str(folder)!r}{given})"):
            assert answer["error"] == "InvalidArgument" and re.search(message, answer["message"]), answer

    # It is no model folder; an export is.
    hf.export(tmp_path / "cairn", tmp_path / "exported")
    by_command = exported_by_command(tmp_path, "--max-shard-size", "2KB")
    assert len(list(by_command.glob("model-*-of-*.safetensors"))) > 2
    for exported in (tmp_path / "exported", by_command):
        loaded = transformers.AutoModelForCausalLM.from_pretrained(exported)
        assert {name: tensor.tolist() for name, tensor in loaded.state_dict().items()} == first[0]["weights"]
        assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()


def test_what_is_frozen_is_written_once(world: World, tmp_path: Path) -> None:
    """One save after the other: a save links what an earlier one has committed."""
    how = {"fsdp": True, "based": True, "frozen": True, "cairn_options": {"max_in_flight": 1}}
    whole = train(world, tmp_path, **how)
    resumed = train(world, tmp_path, resume=4, **how)

    kept = [{file.stat().st_ino for file in folder.glob("kept-*")} for folder in folders(tmp_path)]
    assert [len(files) for files in kept] == [2] * 4 and kept[0] == kept[1] and kept[2] == kept[3]
    assert resumed == whole


def test_the_best_fsdp2_model_is_loaded_on_every_rank(world: World, tmp_path: Path) -> None:
    settings = {
        "max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 1,
        "metric_for_best_model": "loss", "greater_is_better": True,
    }  # fmt: skip
    trained = train(world, tmp_path, fsdp=True, tied=False, **settings)
    assert steps(tmp_path) == [2, 6]
    hf.export(tmp_path / "cairn", tmp_path / "best", 2)
    for exported in (tmp_path / "best", exported_by_command(tmp_path, "2")):
        best = transformers.AutoModelForCausalLM.from_pretrained(exported).state_dict()
        for one in trained:
            assert one["weights"] == {name: tensor.tolist() for name, tensor in best.items()}


def test_an_fsdp2_job_refuses_what_was_saved_without_it(world: World, tmp_path: Path) -> None:
    train(world, tmp_path, max_steps=2)
    refused = world.answers(f"train({str(tmp_path)!r}, fsdp=True, resume=2)")
    assert {answer["error"] for answer in refused} == {"InvalidArgument"}
    assert all("was not saved through cairn.dcp" in answer["message"] for answer in refused), refused


def test_what_a_scheduler_holds_keeps_its_kind() -> None:
    given = {"wave": torch.tensor([1 + 2j], dtype=torch.complex128), "factors": numpy.arange(3.0), "plain": (1, "x")}
    found = hf.sharded._from_state(hf.sharded._as_state(given))
    assert found["plain"] == (1, "x") and numpy.array_equal(found["factors"], given["factors"])
    assert isinstance(found["factors"], numpy.ndarray) and torch.equal(found["wave"], given["wave"])
