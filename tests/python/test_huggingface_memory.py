"""The Trainer with cairn_options={"memory": ...}: a killed run goes on with the last step that it has saved."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
from huggingface_trainer import At, a_trainer, assert_same_weights, folders, hf, losses, steps, torch, transformers
from jobs import ENVIRONMENT
from ranks import World
from test_huggingface_ranks import TRAIN, train


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def options(memory: Path) -> dict[str, Any]:
    """The disk gets the first save, and what somebody waits for."""
    return {"memory": str(memory), "disk_every": 1000}


# argv: output_dir, cairn_options, where to resume from
TRAINS_AND_DIES = """
import json, os, sys
from pathlib import Path
from huggingface_trainer import At, a_trainer
trainer = a_trainer(Path(sys.argv[1]), save_steps=1, cairn_options=json.loads(sys.argv[2]))
def die():
    if trainer._run().newest is not None:  # It has saved since it began.
        trainer._run().newest.kept()
    os.kill(os.getpid(), 9)
trainer.add_callback(At(2, lambda: trainer._run().newest.wait()))
trainer.add_callback(At(6, die))
trainer.train(resume_from_checkpoint=json.loads(sys.argv[3]))
"""


def test_a_killed_run_goes_on_with_what_is_in_memory_alone(tmp_path: Path, memory: Path) -> None:
    whole = a_trainer(tmp_path / "whole", save_strategy="no")
    whole.train()
    command = [sys.executable, "-c", TRAINS_AND_DIES, tmp_path, json.dumps(options(memory)), "null"]
    child = subprocess.run(command, check=False, env=ENVIRONMENT, timeout=240)
    assert child.returncode == -9
    assert steps(tmp_path) == [1]
    assert hf.last_checkpoint(tmp_path) == str(folders(tmp_path)[0])

    last = hf.last_checkpoint(tmp_path, memory=memory)
    assert last is not None and last.endswith("/step-00000000000000000005")
    hf.export(tmp_path / "cairn", tmp_path / "exported", memory=memory)
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")

    resumed = a_trainer(tmp_path, save_steps=1, cairn_options=options(memory))
    seen: list[Any] = []
    resumed.add_callback(At(6, lambda: seen.append(resumed.checkpointer.load(5)["transformer.wte.weight"])))
    resumed.train(resume_from_checkpoint=last)

    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed.model, whole.model)
    assert torch.equal(seen[0], exported.state_dict()["transformer.wte.weight"])
    # The disk has what was kept before, if it was free, and the newest.
    assert steps(tmp_path)[-1] == 8 and list(memory.iterdir()) == []
    again = a_trainer(tmp_path, max_steps=10, cairn_options=options(memory))
    again.train(resume_from_checkpoint=True)
    assert losses(again).keys() == {*range(1, 11)}


def test_true_a_step_and_a_folder_mean_what_is_in_memory_too(tmp_path: Path, memory: Path) -> None:
    command = [sys.executable, "-c", TRAINS_AND_DIES, tmp_path, json.dumps(options(memory))]
    begins: Any = None
    for resume in (None, True, 5, str(tmp_path / "cairn/step-00000000000000000005")):
        child = subprocess.run([*command, json.dumps(resume)], check=False, env=ENVIRONMENT, timeout=240)
        assert child.returncode == -9
        with cairn.Checkpointer(tmp_path / "cairn", memory=memory, read_only=True) as reader:
            assert reader.latest() == 5
            weight = reader.load(5)["transformer.wte.weight"]
        begins = weight if begins is None else begins
        assert torch.equal(weight, begins)

    unaware = a_trainer(tmp_path)
    with pytest.raises(cairn.NotFound, match="expected a checkpoint of Cairn"):
        unaware.train(resume_from_checkpoint=str(tmp_path / "cairn/step-00000000000000000099"))


def test_a_checkpoint_has_no_files_of_a_model_folder(tmp_path: Path, memory: Path) -> None:
    trainer = a_trainer(tmp_path, cairn_options=options(memory))
    trainer.train()
    for folder in folders(tmp_path):
        assert {path.name for path in folder.iterdir()} == {"manifest.json", "shard-00000.safetensors"}
    trainer.export(None, tmp_path / "exported")
    assert_same_weights(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported"), trainer.model)


def test_a_best_model_is_refused_by_name(tmp_path: Path, memory: Path) -> None:
    best = {"load_best_model_at_end": True, "eval_strategy": "steps"}
    with pytest.raises(cairn.Unsupported, match="memory with metric_for_best_model, whose best checkpoint"):
        a_trainer(tmp_path, cairn_options=options(memory), **best)


@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp2"])
def test_the_ranks_of_a_killed_job_go_on_with_what_is_in_memory_alone(tmp_path: Path, memory: Path, fsdp: bool) -> None:
    settings = {"fsdp": fsdp, "save_steps": 1, "cairn_options": options(memory)}
    world = World(2, tmp_path)
    world.all(TRAIN)
    world.all("torch.manual_seed(1)")  # The model's weights are drawn before Trainer seeds.
    whole = train(world, tmp_path / "whole", **settings | {"cairn_options": {}})
    world.all("torch.manual_seed(1)")
    given = "".join(f", {name}={value!r}" for name, value in settings.items())
    assert [one["error"] for one in world.answers(f"train({str(tmp_path)!r}, dies=6{given})")] == ["EOFError"] * 2
    world.end()
    assert 5 not in steps(tmp_path)

    world = World(2, tmp_path)
    world.all(TRAIN)
    assert train(world, tmp_path, resume=True, **settings) == whole
    world.end()
    assert steps(tmp_path)[-1] == 8 and list(memory.iterdir()) == []
