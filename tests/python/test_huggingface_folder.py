"""A checkpoint's folder is a model folder: what from_pretrained reads is committed with the shard, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cairn
import pytest
from cairn._huggingface.model_folder import Companions
from huggingface_trainer import (
    TEXT,
    a_gpt2,
    a_tokenizer,
    a_trainer,
    assert_same_weights,
    folders,
    hf,
    torch,
    transformers,
)

MODEL = {"config.json", "generation_config.json", "model.safetensors.index.json", "trainer_state.json"}
CAIRN = {"manifest.json", "shard-00000.safetensors"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_from_pretrained_reads_a_checkpoint_where_it_is(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, save_total_limit=None)
    trainer.train()

    newest = hf.last_checkpoint(tmp_path)
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(newest, output_loading_info=True)
    assert_same_weights(loaded, trainer.model)
    assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert all(key.startswith(("trainer/", "trainer_rank/")) for key in info["unexpected_keys"])
    assert_same_weights(transformers.AutoModel.from_pretrained(newest), trainer.model.transformer)

    # Each step has its own weights and state, and no file but the shard holds weights.
    for step, folder in enumerate(folders(tmp_path), start=1):
        assert names(folder) == MODEL | CAIRN
        with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
            assert_same_weights(transformers.AutoModelForCausalLM.from_pretrained(folder), checkpointer.load(2 * step))
            checkpointer.verify(2 * step)
        assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 2 * step
        assert sum((folder / name).stat().st_size for name in MODEL) < 10_000
    trainer.model.save_pretrained(tmp_path / "theirs")
    for name in ("config.json", "generation_config.json"):
        assert (folder / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


def test_from_pretrained_reads_no_checkpoint_that_it_would_read_wrongly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = a_gpt2(tie_word_embeddings=False)
    model.lm_head.weight = model.transformer.wte.weight
    a_trainer(tmp_path, model=model).train()
    with pytest.raises(OSError, match="model.safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(hf.last_checkpoint(tmp_path))
    assert caplog.text.count("does not tie them (lm_head.weight): from_pretrained would give them other values") == 1


def test_the_tokenizer_is_in_it(tmp_path: Path) -> None:
    a_trainer(tmp_path, processing_class=a_tokenizer()).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf.last_checkpoint(tmp_path))
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT


def test_the_best_models_checkpoint_is_a_model(tmp_path: Path) -> None:
    best: dict[str, Any] = {}

    class Scored(hf.Trainer):  # type: ignore[misc]
        def _evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            if self.state.global_step == 4:
                best.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            return {"eval_score": 1.0 if self.state.global_step == 4 else 0.0}

    trainer = a_trainer(
        tmp_path, Scored, eval_strategy="steps", eval_steps=2, save_total_limit=1, load_best_model_at_end=True,
        metric_for_best_model="score", greater_is_better=True,
    )  # fmt: skip
    trainer.train()
    assert Path(trainer.state.best_model_checkpoint).name == "step-00000000000000000004"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(trainer.state.best_model_checkpoint)
    assert_same_weights(loaded, best)


def test_a_recycled_shard_brings_no_file_of_an_earlier_checkpoint(tmp_path: Path) -> None:
    recycled: list[int] = []

    class Watching(hf.Trainer):  # type: ignore[misc]
        def _finalize_training(self, *given: Any) -> Any:
            self.checkpointer.drain()
            recycled.append(self.checkpointer.stats["shards_recycled"])
            return super()._finalize_training(*given)

    first = a_trainer(tmp_path, Watching, save_steps=1, save_total_limit=1, processing_class=a_tokenizer())
    first.train()
    second = a_trainer(tmp_path, Watching, save_steps=1, max_steps=12, save_total_limit=1)
    second.train(resume_from_checkpoint=True)

    assert min(recycled) > 0
    assert [names(folder) for folder in folders(tmp_path)] == [MODEL | CAIRN]  # No tokenizer.
    assert all("manifest.json" not in names(left) for left in (tmp_path / "cairn").glob(".spare-*"))


# The files and the commit


def a_checkpointer(root: Path) -> Any:
    return cairn.Checkpointer(root, host_memory="16MiB", chunk="1MiB", queue_depth=2, max_in_flight=3, keep_last=0)


def start(checkpointer: Any, companions: Companions, step: int, files: dict[str, bytes]) -> Any:
    def fill(tensors: Any) -> list[tuple[str, str]]:
        return [("tree", cairn._tree.flatten({"x": torch.full((300_000,), float(step))}, tensors))]

    companions.prepare()
    save = checkpointer._engine.start(step, fill, hold=60.0)
    companions.add(save, files)
    return save


def test_each_save_in_flight_gets_its_own_files_durable_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, bool] = {}
    fsync = os.fsync

    def note(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)
        synced[path.read_text()] = path.parent.name.startswith(".attempt-")

    monkeypatch.setattr(os, "fsync", note)
    with a_checkpointer(tmp_path / "root") as checkpointer, Companions(tmp_path / "root") as companions:
        saves = [start(checkpointer, companions, step, {"a": b"a%d" % step, "b": b"b%d" % step}) for step in range(9)]
        for save in saves:
            save.wait()
        companions.check()

    for step in range(9):
        folder = tmp_path / f"root/step-{step:020}"
        assert (folder / "a").read_text() == f"a{step}" and (folder / "b").read_text() == f"b{step}"
    assert synced == {f"{name}{step}": True for name in "ab" for step in range(9)}


def test_a_save_whose_files_cannot_be_written_is_no_checkpoint(tmp_path: Path) -> None:
    with a_checkpointer(tmp_path / "root") as checkpointer, Companions(tmp_path / "root") as companions:
        start(checkpointer, companions, 1, {"a": b"1"})
        failed = start(checkpointer, companions, 2, {"a": b"2", "no/such/folder": b""})
        start(checkpointer, companions, 3, {"a": b"3"}).wait()

        with pytest.raises(cairn.Cancelled):
            failed.wait()
        with pytest.raises(FileNotFoundError, match="no/such/folder"):
            companions.check()
        companions.check()
        assert checkpointer.steps() == [1, 3]
    assert sorted(names(tmp_path / "root") - {".lock", ".writer"}) == [f"step-{step:020}" for step in (1, 3)]


def test_a_save_that_fails_by_itself_raises_its_own_error(tmp_path: Path) -> None:
    with a_checkpointer(tmp_path / "root") as checkpointer, Companions(tmp_path / "root") as companions:
        (tmp_path / "root/step-00000000000000000001").mkdir()
        (tmp_path / "root/step-00000000000000000001/theirs").write_text("")
        with pytest.raises(cairn.Error, match="step 1"):
            start(checkpointer, companions, 1, {"a": b"1"}).wait()
        companions.check()
        with pytest.raises(cairn.Error, match="step 1"):
            checkpointer.check()


def test_saves_beside_the_trainers_do_not_get_its_files(tmp_path: Path) -> None:
    with a_checkpointer(tmp_path / "root") as checkpointer, Companions(tmp_path / "root") as companions:
        start(checkpointer, companions, 1, {"a": b"1"})
        checkpointer.save(2, {"x": torch.zeros(10)}).wait()
        start(checkpointer, companions, 3, {"a": b"3"}).wait()
    assert not (tmp_path / "root/step-00000000000000000002/a").exists()
    assert (tmp_path / "root/step-00000000000000000003/a").read_text() == "3"
