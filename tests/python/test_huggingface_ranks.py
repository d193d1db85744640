"""The Trainer under DDP: two processes on gloo, one checkpoint of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
from huggingface_trainer import a_trainer, assert_same_weights, folders, losses, steps, transformers
from ranks import World

# Runs in a rank.
TRAIN = """
from pathlib import Path
from huggingface_trainer import a_trainer, hf, losses, torch, transformers
def train(output, kind=None, resume=None, **settings):
    trainer = a_trainer(Path(output), kind, ddp_backend="gloo", per_device_train_batch_size=2, **settings)
    trainer.train(resume_from_checkpoint=resume)
    weights = {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()}
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
    assert "2 ranks saved: each begins with new random numbers" in caplog.text

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
