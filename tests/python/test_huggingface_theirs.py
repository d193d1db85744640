"""What transformers' own checkpoint tests (tests/trainer/test_trainer_checkpointing.py) demand, written anew for Cairn's
checkpoints. Each test's first line names theirs. docs/integrations.md counts them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import cairn
import pytest
from huggingface_trainer import (
    TEXT,
    a_gpt2,
    a_tokenizer,
    a_trainer,
    assert_same_weights,
    folders,
    hf,
    losses,
    steps,
    torch,
    transformers,
)


class Line(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Not a PreTrainedModel. `seen` grows with each batch, and load_state_dict resizes it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("seen", torch.empty(0, dtype=torch.long))

    def forward(self, input_ids: Any, labels: Any) -> dict[str, Any]:
        self.seen = torch.cat([self.seen, input_ids[:, 0]])
        return {"loss": (self.a * input_ids.float() + self.b - 1).square().mean()}

    def load_state_dict(self, state_dict: Any, *given: Any, **named: Any) -> Any:
        self.seen = torch.empty_like(state_dict["seen"])
        return super().load_state_dict(state_dict, *given, **named)


def a_model(kind: str) -> Any:
    transformers.set_seed(1)
    return a_gpt2() if kind == "pretrained" else Line()


def resumed_is_whole(tmp_path: Path, at: int, make: Any = None, **settings: Any) -> Any:
    """Trains whole, resumes at a step, and compares weights and states."""
    make = make or (lambda: a_model("pretrained"))
    whole = a_trainer(tmp_path, model=make(), save_total_limit=None, **settings)
    whole.train()
    resumed = a_trainer(tmp_path, model=make(), save_total_limit=None, **settings)
    resumed.train(resume_from_checkpoint=at)
    assert_same_weights(resumed.model, whole.model)
    assert resumed.state.global_step == whole.state.global_step
    states = [[{k: v for k, v in log.items() if "loss" in k or k == "step"} for log in one.state.log_history[:-1]]
              for one in (whole, resumed)]  # fmt: skip
    assert states[0] == states[1]
    return resumed


@pytest.mark.parametrize("kind", ["pretrained", "plain"])
def test_checkpoints_are_saved(tmp_path: Path, kind: str) -> None:
    """test_save_checkpoints: every 5 steps and at the end."""
    a_trainer(tmp_path, model=a_model(kind), max_steps=12, save_steps=5).train()
    assert steps(tmp_path) == [5, 10, 12]
    expected = {"trainer_state.json", "model.safetensors.index.json"} | (
        {"config.json"} if kind == "pretrained" else set()
    )
    for folder in folders(tmp_path):
        assert expected <= {path.name for path in folder.iterdir()}


def test_the_collators_tokenizer_is_saved(tmp_path: Path) -> None:
    """test_save_collator_tokenizer_by_default."""

    class Collator:
        tokenizer = a_tokenizer()

        def __call__(self, features: Any) -> Any:
            return transformers.default_data_collator(features)

    trainer = a_trainer(tmp_path, max_steps=2)
    trainer.data_collator = Collator()
    trainer.train()
    loaded = transformers.AutoTokenizer.from_pretrained(folders(tmp_path)[-1])
    assert loaded(TEXT)["input_ids"] == Collator.tokenizer(TEXT)["input_ids"]


@pytest.mark.parametrize("at", [5, 15], ids=["first-epoch", "second-epoch"])
@pytest.mark.parametrize("kind", ["pretrained", "plain"])
def test_training_resumes(tmp_path: Path, kind: str, at: int) -> None:
    """test_can_resume_training, test_resume_training_with_randomness."""
    resumed_is_whole(tmp_path, at, lambda: a_model(kind), max_steps=18, save_steps=5, logging_steps=5)


def test_a_bogus_checkpoint_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    """test_can_resume_training, its failures."""
    for wanted in (tmp_path / "cairn/step-bogus", True):
        with pytest.raises(cairn.NotFound):
            a_trainer(tmp_path).train(resume_from_checkpoint=wanted)


def test_resume_from_checkpoint_may_be_false(tmp_path: Path) -> None:
    """test_training_with_resume_from_checkpoint_false."""
    a_trainer(tmp_path, max_steps=2).train(resume_from_checkpoint=False)
    assert steps(tmp_path) == [2]


def test_a_new_batch_size_is_used(tmp_path: Path) -> None:
    """test_resume_training_with_different_batch_size."""
    a_trainer(tmp_path, max_steps=2, save_steps=1, per_device_train_batch_size=2).train()
    state = transformers.TrainerState.load_from_json(str(folders(tmp_path)[0] / "trainer_state.json"))
    assert state.train_batch_size == 2
    second = a_trainer(tmp_path, max_steps=4, save_steps=1, per_device_train_batch_size=4)
    second.train(resume_from_checkpoint=True)
    assert second._train_batch_size == 4 and second.state.global_step == 4


def test_a_models_weights_in_an_index_resume(tmp_path: Path) -> None:
    """test_resume_training_with_shard_checkpoint, test_resume_training_with_checkpoint: by the folder's path, and by
    the stock Trainer's reader of an index."""
    whole = a_trainer(tmp_path, save_total_limit=None)
    whole.train()
    loaded = a_gpt2()
    transformers.trainer_utils.load_sharded_checkpoint(loaded, str(folders(tmp_path)[1]), strict=False)
    resumed = a_trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(folders(tmp_path)[1]))
    assert_same_weights(resumed.model, whole.model)
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        assert_same_weights(loaded, checkpointer.load(4))


def test_gradient_accumulation_resumes(tmp_path: Path) -> None:
    """test_resume_training_with_gradient_accumulation."""
    resumed_is_whole(tmp_path, 5, gradient_accumulation_steps=2, per_device_train_batch_size=2, save_steps=5)


@pytest.mark.parametrize(
    "how", [{}, {"save_only_trainable": True}, {"frozen": True}], ids=["all", "left-out", "linked"]
)
def test_frozen_parameters_stay_frozen(tmp_path: Path, how: dict[str, bool]) -> None:
    """test_resume_training_with_frozen_params. Linked, they are in one file, which from_pretrained reads in each folder."""

    def make() -> Any:
        transformers.set_seed(1)
        model = a_gpt2(n_inner=20_000)  # More than 1 MiB.
        for part in (model.transformer.wte, model.transformer.h[0].mlp):
            part.requires_grad_(False)
        return model

    class Waits(cairn.huggingface.Trainer):
        """Until a save is durable: only then can the next one link what it holds."""

        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            super()._save_checkpoint(*args, **kwargs)
            self._cairn.newest.wait()

    resumed = resumed_is_whole(tmp_path, 4, make, kind=Waits, **how)

    assert not resumed.model.transformer.wte.weight.requires_grad
    files = [[*folder.glob("kept-*")] for folder in folders(tmp_path)]
    assert [len(found) for found in files] == [int("frozen" in how)] * 4
    if "frozen" in how:
        # A restore is a write.
        inodes = [found[0].stat().st_ino for found in files]
        assert inodes[0] == inodes[1] != inodes[2] == inodes[3]
        for step, folder, found in zip((2, 4, 6, 8), folders(tmp_path), files, strict=True):
            saved = cairn.load(tmp_path / "cairn", step=step)
            loaded, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
            assert_same_weights(loaded, saved)
            assert not info["missing_keys"]
            where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
            assert where["transformer.h.0.mlp.c_fc.weight"] == found[0].name
            assert where["transformer.ln_f.weight"] == "shard-00000.safetensors"


@pytest.mark.parametrize(
    ("limit", "best", "kept"), [(2, None, [8, 10]), (2, 2, [2, 8, 10]), (1, 10, [10]), (1, 2, [2, 10])]
)
def test_checkpoints_rotate(tmp_path: Path, limit: int, best: int | None, kept: list[int]) -> None:
    """test_checkpoint_rotation. Theirs counts the best one, ours keeps it beside the limit."""
    settings: dict[str, Any] = {"max_steps": 10, "save_total_limit": limit}
    if best is not None:
        settings |= {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
        settings |= {"metric_for_best_model": "score", "greater_is_better": True}
    a_trainer(tmp_path, scoring({best: 1.0}), **settings).train()
    assert steps(tmp_path) == kept


def scoring(scores: dict[Any, float]) -> Any:
    """A Trainer whose evaluation gives these scores by step, else 0."""

    class Scoring(hf.Trainer):  # type: ignore[misc]
        def _evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return {"eval_score": scores.get(self.state.global_step, 0.0)}

    return Scoring


def test_other_arguments_are_logged_at_resume(tmp_path: Path) -> None:
    """test_compare_trainer_and_checkpoint_args_logging."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    a_trainer(tmp_path, max_steps=4, save_steps=2).train()
    handler = Kept()
    logging.getLogger("transformers").addHandler(handler)
    try:
        second = a_trainer(tmp_path, max_steps=6, save_steps=3, per_device_train_batch_size=2)
        second.train(resume_from_checkpoint=2)
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    text = "\n".join(lines)
    assert "save_steps: 3 (from args) != 2 (from trainer_state.json)" in text
    assert "per_device_train_batch_size: 2 (from args) != 4 (from trainer_state.json)" in text


def test_interrupted_training_finishes_in_another_folder(tmp_path: Path) -> None:
    """test_resume_from_interrupted_training."""
    settings = {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2, "save_steps": 1}
    a_trainer(tmp_path / "first", model=Line(), max_steps=2, **settings).train()
    second = a_trainer(tmp_path / "second", model=Line(), max_steps=7, **settings)
    second.train(resume_from_checkpoint=folders(tmp_path / "first")[-1])
    assert second.state.global_step == 7 and steps(tmp_path / "second")[-1] == 7


def test_the_order_of_the_data_is_kept(tmp_path: Path) -> None:
    """test_resume_batch_order: within the second epoch, with a buffer that grows."""
    settings = {"max_steps": 24, "save_steps": 1, "optim": "sgd"}
    resumed = resumed_is_whole(tmp_path, 13, Line, **settings)
    assert len(resumed.model.seen) == 24 * 4


def test_save_strategy_best(tmp_path: Path) -> None:
    """test_save_best_checkpoint: only what is better than before is saved."""
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best", "metric_for_best_model": "score"}
    a_trainer(tmp_path, scoring({2: 0.6, 4: 0.65, 6: 0.64}), max_steps=6, greater_is_better=True, **settings).train()
    assert steps(tmp_path) == [2, 4]


@pytest.mark.parametrize(
    ("settings", "best", "saved"),
    [
        ({"eval_strategy": "no"}, None, [2, 4, 6]),
        ({"eval_strategy": "no", "save_total_limit": 1}, None, [6]),
        ({"eval_steps": 2}, 2, [2, 4, 6]),
        ({"eval_steps": 2, "save_steps": 1}, 2, [1, 2, 3, 4, 5, 6]),
        ({"eval_steps": 3}, None, [2, 4, 6]),  # The best step, 3, was not saved.
    ],
    ids=["never-evaluated", "never-evaluated-limit", "same-steps", "saved-more-often", "other-steps"],
)
def test_the_best_models_checkpoint(
    tmp_path: Path, settings: dict[str, Any], best: int | None, saved: list[int]
) -> None:
    """test_best_model_checkpoint_behavior."""
    settings = {"eval_strategy": "steps", "metric_for_best_model": "score", "greater_is_better": True} | settings
    trainer = a_trainer(tmp_path, scoring({2: 0.9, 3: 0.9}), max_steps=6, **{"save_steps": 2} | settings)
    trainer.train()
    folder = trainer.state.best_model_checkpoint
    assert folder == (None if best is None else str(tmp_path / f"cairn/step-{best:020}"))
    assert steps(tmp_path) == saved


@pytest.mark.parametrize("kind", ["pretrained", "plain"])
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_the_best_model_is_loaded_at_the_end(tmp_path: Path, kind: str, strategy: str) -> None:
    """test_load_best_model_at_end, test_load_best_model_with_save, test_load_best_model_from_safetensors."""
    best = 10 if strategy == "epoch" else 5
    trainer = a_trainer(
        tmp_path, scoring({best: 1.0}), model=a_model(kind), max_steps=21, save_strategy=strategy, save_steps=5,
        eval_strategy=strategy, eval_steps=5, load_best_model_at_end=True, metric_for_best_model="score",
        greater_is_better=True, save_total_limit=2,
    )  # fmt: skip
    trainer.train()
    with cairn.Checkpointer(tmp_path / "cairn", read_only=True) as checkpointer:
        assert_same_weights(trainer.model, checkpointer.load(best))
    assert best in steps(tmp_path) and steps(tmp_path)[-1] >= 20
    assert json.loads((folders(tmp_path)[0] / "trainer_state.json").read_text())["global_step"] == best
    assert losses(trainer)
