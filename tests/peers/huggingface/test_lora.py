"""PEFT's adapters in the Trainer: only what is trained is saved, and the base model is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cairn
import peft
import pytest
from huggingface_trainer import (
    At,
    a_gpt2,
    a_trainer,
    assert_exact_resume,
    assert_same_weights,
    folders,
    hf,
    losses,
    torch,
    transformers,
)
from safetensors import safe_open
from test_examples import finish, kill_after, start
from test_examples import losses as printed_losses


@pytest.fixture
def base(tmp_path: Path) -> Path:
    transformers.set_seed(5)
    a_gpt2().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def an_adapter(base: Path, seed: int = 1, **settings: Any) -> Any:
    transformers.set_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    settings = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True, "task_type": "CAUSAL_LM"} | settings
    return peft.get_peft_model(model, peft.LoraConfig(**settings))


def names(folder: Path) -> list[str]:
    with safe_open(folder / "shard-00000.safetensors", "pt") as file:
        return [name for name in file.keys() if not name.startswith("trainer")]  # noqa: SIM118


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["ln_f"]}], ids=["lora", "modules-to-save"])
def test_a_resumed_adapter_is_the_uninterrupted_one(tmp_path: Path, base: Path, settings: dict[str, Any]) -> None:
    whole = a_trainer(tmp_path / "run", model=an_adapter(base, **settings), save_total_limit=None)
    whole.train()
    resumed = a_trainer(tmp_path / "run", model=an_adapter(base, seed=2, **settings))
    resumed.train(resume_from_checkpoint=4)

    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed.model, whole.model)
    assert all("lora_" in name or ".ln_f." in name for name in names(folders(tmp_path / "run")[-1]))


def test_what_peft_makes_of_an_adapters_parameters_is_left_to_it(tmp_path: Path, base: Path) -> None:
    """Of prompts its files have what an encoder gives, beside which a checkpoint has the encoder itself."""

    def a_prompt(seed: int) -> Any:
        transformers.set_seed(seed)
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        return peft.get_peft_model(model, peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))

    data = [{"input_ids": torch.arange(i, i + 4), "labels": torch.arange(i, i + 4)} for i in range(16)]

    def trained(seed: int, resume: Any = None) -> Any:
        trainer = a_trainer(tmp_path / "run", model=a_prompt(seed), max_steps=2, per_device_train_batch_size=1)
        trainer.train_dataset = data
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model

    saved = trained(1)
    assert_same_weights(trained(2, resume=True), saved)


def test_its_folder_is_an_adapter_folder(tmp_path: Path, base: Path) -> None:
    trainer = a_trainer(tmp_path / "run", model=an_adapter(base), save_total_limit=1, save_steps=1)
    trainer.train()

    (folder,) = folders(tmp_path / "run")
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "manifest.json", "shard-00000.safetensors",
        "trainer_state.json",
    }  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    assert_same_weights(peft.PeftModel.from_pretrained(model, folder), trainer.model)
    ids = torch.arange(8)[None]
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder)  # Finds the base model by the adapter's config.
    assert torch.equal(whole(ids).logits, trainer.model.eval()(ids).logits)
    with cairn.Checkpointer(tmp_path / "run/cairn", read_only=True) as checkpointer:
        checkpointer.verify()


def test_another_base_model_is_refused_by_name(tmp_path: Path, base: Path) -> None:
    a_trainer(tmp_path / "run", model=an_adapter(base), max_steps=2).train()
    changed = an_adapter(base)
    with torch.no_grad():
        changed.base_model.model.transformer.ln_f.weight[0] += 1
    before = {name: tensor.clone() for name, tensor in changed.state_dict().items()}

    with pytest.raises(cairn.InvalidArgument, match=r"differs in base_model\.model\.transformer\.ln_f\.weight \(.*CRC"):
        a_trainer(tmp_path / "run", model=changed).train(resume_from_checkpoint=True)
    assert_same_weights(changed, before)
    with pytest.raises(cairn.InvalidArgument, match="begin with the base model, dtype and adapter of that run"):
        a_trainer(tmp_path / "run", model=an_adapter(base).to(torch.bfloat16)).train(resume_from_checkpoint=True)


def test_the_best_adapter_is_loaded_at_the_end(tmp_path: Path, base: Path) -> None:
    best: dict[str, Any] = {}
    settings = {
        "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 1,
        "metric_for_best_model": "loss", "greater_is_better": True, "learning_rate": 1e-1,
    }  # fmt: skip
    trainer = a_trainer(tmp_path / "run", model=an_adapter(base), **settings)
    trainer.add_callback(At(2, lambda: best.update({n: t.clone() for n, t in trainer.model.state_dict().items()})))
    trainer.train()
    assert trainer.state.best_global_step == 2
    assert_same_weights(trainer.model, best)
    base_model = transformers.AutoModelForCausalLM.from_pretrained(base)
    assert_same_weights(peft.PeftModel.from_pretrained(base_model, trainer.state.best_model_checkpoint), best)


def test_several_adapters_resume(tmp_path: Path, base: Path) -> None:
    """What transformers' own test_multiple_peft_adapters demands: one is trained, the other stays."""

    def two(seed: int) -> Any:
        model = an_adapter(base, seed)
        transformers.set_seed(9)
        model.add_adapter("other", peft.LoraConfig(r=3, target_modules=["c_proj"], fan_in_fan_out=True))
        return model

    whole = a_trainer(tmp_path / "run", model=two(1), save_total_limit=None)
    whole.train()
    resumed = a_trainer(tmp_path / "run", model=two(2))
    resumed.train(resume_from_checkpoint=4)
    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed.model, whole.model)


def test_everything_is_saved_on_request(tmp_path: Path) -> None:
    base = tmp_path / "base"
    a_gpt2(n_inner=20_000).save_pretrained(base)  # More than 1 MiB that is frozen: it is written once.
    first = a_trainer(tmp_path / "run", model=an_adapter(base), save_only_trainable=False, save_total_limit=None)
    first.train()
    kept = [file for folder in folders(tmp_path / "run") for file in folder.glob("kept-*")]
    # Linked from what is committed: the second save may begin before the first is.
    assert len(kept) == 4 and len({file.stat().st_ino for file in kept}) <= 2
    with safe_open(kept[0], "pt") as file:
        assert any("base_layer" in name for name in file.keys())  # noqa: SIM118
    newest = names(folders(tmp_path / "run")[-1])
    assert newest and all("lora_" in name for name in newest)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    assert_same_weights(peft.PeftModel.from_pretrained(model, folders(tmp_path / "run")[-1]), first.model)

    second = a_trainer(tmp_path / "run", model=an_adapter(base, seed=2), max_steps=9)
    frozen = second.model.base_model.model.transformer.ln_f.weight
    saved = frozen.detach().clone()
    with torch.no_grad():
        frozen[0] += 1
    second.train(resume_from_checkpoint=True)
    assert not frozen.requires_grad and torch.equal(frozen, saved)


def test_a_plain_model_with_frozen_parameters(tmp_path: Path) -> None:
    def a_model() -> Any:
        transformers.set_seed(3)
        model = a_gpt2()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".mlp." in name)
        return model

    whole = a_trainer(tmp_path, model=a_model(), save_only_trainable=True, save_total_limit=None)
    whole.train()
    resumed = a_trainer(tmp_path, model=a_model(), save_only_trainable=True)
    resumed.train(resume_from_checkpoint=4)
    assert losses(resumed) == losses(whole)
    assert_same_weights(resumed.model, whole.model)
    assert names(folders(tmp_path)[-1]) and all(".mlp." in name for name in names(folders(tmp_path)[-1]))
    assert hf.last_checkpoint(tmp_path)


def test_the_example_is_killed_and_resumes_bit_exactly(tmp_path: Path) -> None:
    killed = start("huggingface_lora.py", tmp_path / "killed", "--steps", 30)
    before = printed_losses(kill_after(killed, 4, tmp_path / "killed", "run/cairn/step-*"))
    runs = [start("huggingface_lora.py", tmp_path / folder, "--steps", 30) for folder in ("killed", "whole")]
    resumed, whole = (printed_losses(finish(run)) for run in runs)
    assert_exact_resume(before, resumed, whole)
