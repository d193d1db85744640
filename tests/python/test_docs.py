"""The documentation's Python and its commands work as printed, the README is short, and each link leads somewhere."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from jobs import COMMAND
from pages import ROOT, blocks, run_block
from programs import torchrun

README = ROOT / "README.md"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "bench/results").glob("*.md"),
    ROOT / "examples/README.md",
]
# How many blocks of code each page has. docs/testing.md names those that no test runs; the others run here, in
# test_recipes.py (recipes, SLURM and Kubernetes), in test_metrics.py (monitoring), in test_peers.py (networks), in tests/figures and tests/bench (coming-from), in tests/stores (format), in tests/consumer (C++ and CMake) and in tests/trainer.
BLOCKS = {
    ("CONTRIBUTING.md", "sh"): 1,
    ("README.md", "sh"): 1,
    ("README.md", "python"): 1,
    ("README.md", "cpp"): 1,
    ("coming-from.md", "sh"): 7,
    ("cpp.md", "sh"): 1,
    ("format.md", "sh"): 1,
    ("cpp.md", "cmake"): 2,
    ("cpp.md", "cpp"): 4,
    ("integrations.md", "python"): 5,
    ("integrations.md", "sh"): 1,
    ("monitoring.md", "python"): 1,
    ("monitoring.md", "yaml"): 1,
    ("operations.md", "sh"): 1,
    ("operations.md", "yaml"): 1,
    ("planning.md", "sh"): 4,
    ("planning.md", "cpp"): 1,
    ("python.md", "python"): 4,
    ("recipes.md", "python"): 6,
    ("trainer.md", "sh"): 2,
}


# What `cairn profile` has found out about a job.
PROFILE = """{"version": 1, "command": ["train"], "full": {"cores": 2, "memory_bytes": 0, "peak_bytes": 0},
"memory_note": "", "tolerance": 0.1, "samples": [{"cores": 2, "memory_bytes": 0, "throughput": 9}], "checks": []}"""


def test_every_block_of_code_is_run_or_named_as_not_run() -> None:
    found = Counter(
        (page.name, language)
        for page in PAGES
        for language in re.findall(r"^```(\w+)$", page.read_text(), re.MULTILINE)
        if language not in ("json", "text") and page.name not in ("benchmarks.md", "results.md")
    )
    assert found == BLOCKS, "say in docs/testing.md what runs the new block"


def test_the_first_use_trains_and_goes_on_from_where_it_was(tmp_path: Path) -> None:
    code = blocks("README.md", "python")[0].replace("/mnt/nvme/run7", str(tmp_path / "run7"))

    def run(steps: int) -> dict[str, Any]:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        trained = []

        def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
            optimizer.zero_grad()
            model(torch.rand(4)).sum().backward()
            optimizer.step()
            trained.append(model.weight.detach().clone())

        names = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3),
            "steps": steps,
            "train": train,
            "trained": trained,
        }
        return run_block(code, "README.md", names)

    torch.manual_seed(1)
    first = run(20)
    second = run(40)
    assert second["tree"]["step"] == 20
    assert len(second["trained"]) == 20

    torch.manual_seed(1)
    (tmp_path / "run7").rename(tmp_path / "earlier")
    whole = run(40)
    assert torch.equal(whole["trained"][19], first["trained"][-1])
    assert torch.equal(whole["trained"][-1], second["trained"][-1])
    with cairn.Checkpointer(tmp_path / "run7", host_memory="64MiB", read_only=True) as checkpointer:
        assert checkpointer.steps() == [20, 30, 40]


def test_a_loop_goes_on_while_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sparse = tmp_path / "sparse"
    size = 2 * shutil.disk_usage(tmp_path).total
    with sparse.open("wb") as file:
        file.truncate(size)
    tree: dict[str, Any] = {"step": 0, "large": torch.from_file(str(sparse), True, size, dtype=torch.uint8)}
    trained = []

    def train(*_: Any) -> None:
        trained.append(1)
        if len(trained) in (20, 30):
            with suppress(cairn.NoSpace):
                checkpointer.drain()
            tree.pop("large", None)

    with cairn.Checkpointer(tmp_path / "run", host_memory="64MiB") as checkpointer:
        names = {"checkpointer": checkpointer, "tree": tree, "steps": 30, "train": train}
        run_block(blocks("docs/python.md", "python")[0], "python.md", names | {"model": None, "optimizer": None})
        checkpointer.drain()
        assert checkpointer.steps() == [20, 30]
    assert [message for message in caplog.messages if message.startswith("step 10: ") and " bytes, " in message]


def test_a_loop_that_is_asked_to_stop_saves_and_ends(tmp_path: Path) -> None:
    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        trained.append(model)
        if len(trained) == 13:
            signal.raise_signal(signal.SIGTERM)

    trained: list[torch.nn.Module] = []
    model = torch.nn.Linear(4, 4)
    tree = {"model": model, "step": 0}
    checkpointer = cairn.Checkpointer(tmp_path, host_memory="64MiB")
    names = {
        "checkpointer": checkpointer,
        "tree": tree,
        "steps": 1000,
        "train": train,
        "model": model,
        "optimizer": None,
    }
    run_block(blocks("docs/python.md", "python")[2], "python.md", names)

    assert len(trained) == 13
    with cairn.Checkpointer(tmp_path, host_memory="64MiB", read_only=True) as reader:
        assert reader.steps() == [10, 13]


def test_a_step_is_kept_in_memory_and_durable_after_that(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        cairn.Checkpointer(tmp_path, memory=memory, host_memory="64MiB") as checkpointer,
    ):
        names = {"checkpointer": checkpointer, "step": 5, "tree": {"step": 5}}
        save = run_block(blocks("docs/python.md", "python")[1], "python.md", names)["save"]
        assert save.stats["phase"] == "durable"
        assert save.stats["kept"] > 0


# Ranks


def run_ranks(tmp_path: Path, code: str) -> None:
    """Runs it as a job of two processes. Each has a model, and an optimizer with a state."""
    begin = f"""
import cairn, torch
root = {str(tmp_path / "run")!r}
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
model(torch.rand(4)).sum().backward()
optimizer.step()
"""
    script = tmp_path / "job.py"
    script.write_text(begin + code)
    job = torchrun(2, script)
    said = job.communicate(timeout=300)[0]
    assert job.returncode == 0, said


def test_the_ranks_of_a_job_save_together(tmp_path: Path) -> None:
    after = """
mine = {"mine": torch.full((2,), float(checkpointer.rank)), "optimizer": optimizer, "scheduler": scheduler, "step": 3}
checkpointer.save(3, mine).wait()
restored = checkpointer.restore(mine | {"mine": torch.zeros(2), "step": 0})
assert restored["step"] == 3 and restored["mine"].tolist() == [checkpointer.rank] * 2
checkpointer.close()
"""
    run_ranks(tmp_path, blocks("docs/python.md", "python")[3] + after)

    with cairn.Checkpointer(tmp_path / "run", host_memory="64MiB", read_only=True) as checkpointer:
        assert [one.world for one in checkpointer.checkpoints()] == [2]


def test_dcp_saves_and_loads(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import state_dict_saver

    if not hasattr(state_dict_saver, "AsyncSaveResponse"):
        pytest.skip(f"torch {torch.__version__}: async_save returns no AsyncSaveResponse")
    before = """
def now():
    "Weights and moments, whole."
    with torch.no_grad():
        mine = [*model.parameters(), *(one["exp_avg"] for one in optimizer.state.values())]
        return torch.cat([one.full_tensor().reshape(-1) for one in mine]).tolist()
def train(model, optimizer):
    trained.append(now())
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()  # FSDP communicates over the default group.
    optimizer.step()
steps, trained = 20, []
"""
    between = """
first, end, steps, trained = len(trained), now(), 30, []
torch.manual_seed(2)
model = torch.nn.Linear(4, 4)
"""
    after = """
assert (first, len(trained), len(end)) == (20, 10, 40) and trained[0] == end
root, step, state = root + "/by-path", 6, {"n": 6}
dcp.checkpointer_for(f"{root}/step-{step}", host_memory="64MiB")
"""
    end = """
dcp.checkpointer_for(f"{root}/step-{step}").close()
dist.destroy_process_group()
"""
    program, by_path, *_ = blocks("docs/integrations.md", "python")
    program = program.replace("4GiB", "64MiB").replace("dist.destroy_process_group()\n", "")
    again = program.replace("dist.init_process_group()\n", "")
    run_ranks(tmp_path, before + program + between + again + after + by_path + end)

    with cairn.Checkpointer(tmp_path / "run", host_memory="64MiB", read_only=True) as checkpointer:
        assert [(one.step, one.world) for one in checkpointer.checkpoints()] == [(10, 2), (20, 2), (30, 2)]


def test_pipeline_stages_save_and_load(tmp_path: Path) -> None:
    before = """
torch.distributed.init_process_group("gloo")
rank, step = torch.distributed.get_rank(), 5
stage_module = torch.nn.ModuleDict({str(rank): torch.nn.Linear(4, 4)})
optimizer = torch.optim.AdamW(stage_module.parameters())
stage_module[str(rank)](torch.rand(4)).sum().backward()
optimizer.step()
checkpointer = cairn.Checkpointer(root, group=torch.distributed.group.WORLD, host_memory="64MiB")
"""
    block = blocks("docs/integrations.md", "python")[2]
    saved, loaded = block.split("\n\ndcp.load")
    between = """
whole = stage_module[str(rank)].weight.detach().clone()
with torch.no_grad():
    stage_module[str(rank)].weight.zero_()
"""
    after = """
assert torch.equal(stage_module[str(rank)].weight, whole) and state["step"] == 5
checkpointer.close()
torch.distributed.destroy_process_group()
"""
    run_ranks(tmp_path, before + saved + between + "dcp.load" + loaded + after)

    with cairn.Checkpointer(tmp_path / "run", host_memory="64MiB", read_only=True) as checkpointer:
        assert [one.world for one in checkpointer.checkpoints()] == [2]


# Frameworks


def test_hugging_face_trains_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    row = torch.arange(8)
    sizes = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    names = {
        "model": transformers.GPT2LMHeadModel(sizes),
        "args": transformers.TrainingArguments(
            "run", max_steps=4, save_steps=2, use_cpu=True, report_to="none", disable_tqdm=True
        ),
        "dataset": [{"input_ids": row, "labels": row}] * 8,
    }
    run_block(blocks("docs/integrations.md", "python")[3].replace("1000", "4"), "integrations.md", names)

    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert torch.equal(exported.lm_head.weight, names["model"].lm_head.weight)


def test_lightning_trains_and_loads(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss = self.layer(batch).square().mean()
            self.log("loss", loss)
            return loss

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(torch.rand(8, 4))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Model()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    names = {
        "Trainer": partial(pl.Trainer, max_epochs=1, accelerator="cpu", **quiet),
        "ModelCheckpoint": pl.callbacks.ModelCheckpoint,
        "Model": Model,
        "model": model,
        "folder": str(tmp_path),
    }
    ran = run_block(blocks("docs/integrations.md", "python")[4], "integrations.md", names)

    assert ran["model"] is not model and torch.equal(ran["model"].layer.weight, model.layer.weight)


# The command


def commands() -> list[str]:
    """Each `cairn ... ROOT` (or of a mirror, of two checkpoints, or of an example's shapes) of the README, of operations.md
    and of planning.md, with and without its options."""
    found = []
    for page in ("README.md", "docs/operations.md", "docs/planning.md"):
        text = (ROOT / page).read_text()
        lines = [line.partition(" #")[0].strip() for block in blocks(page, "sh") for line in block.splitlines()]
        for command in [*lines, *re.findall(r"`(cairn [^`]*)`", text)]:
            known = r"cairn (\w+ (ROOT|TARGET|A B|/mnt|examples/)|profile --out)"
            if re.match(known, command) and not command.endswith("ROOT ..."):
                found += [re.sub(r"\[(.*?)\]", r"\1", command), re.sub(r" \[.*?\]", "", command)]
    return sorted(set(found))


def test_the_documented_commands_are_all_of_them() -> None:
    assert {command.split()[1] for command in commands()} == {
        "diff", "doctor", "export", "fetch", "gc", "ls", "mirror", "pin", "plan", "profile", "rm", "show", "tune", "unpin", "verify"
    }  # fmt: skip


@pytest.mark.parametrize("command", commands())
def test_a_documented_command_runs(tmp_path: Path, command: str) -> None:
    root = tmp_path / "run"
    with cairn.Checkpointer(root, host_memory="64MiB", keep_last=0) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"model": {"weight": torch.full((1000,), float(step))}})
    if command.split()[2] == "TARGET":
        subprocess.run([COMMAND, "mirror", root, tmp_path / "mirror", "--once"], check=True)
        root = tmp_path / "lost"
    for printed, given in {
        "ROOT...": str(root),
        "ROOT": str(root),
        "/mnt/nvme/run7": str(root),
        "/mnt/backup/run7": str(tmp_path / "mirror"),
        "s3://bucket/run7": str(tmp_path / "bucket"),  # Those are in tests/stores.
        " TARGET": f" {tmp_path / 'mirror'}",
        " A B": "".join(f" {root}/step-{step:020}" for step in (1, 2)),
        " N": " 1",
        " M": " 2",
        "FILE": str(tmp_path / "exported.safetensors"),
        "--model-folder DIR": f"--model-folder {tmp_path / 'model'} --config-from {tmp_path / 'base'}",
        "PATTERN...": "model/*",
        "examples/": f"{ROOT}/examples/",
        "12GB": "20MB",
        "--device cuda": "--device host",
        "profile.json": str(tmp_path / "profile.json"),
        "python train.py": str(tmp_path / "train"),
    }.items():
        command = command.replace(printed, given)
    (tmp_path / "train").write_text("#!/bin/sh\nwhile :; do i=$((i+1)); echo step=$i; done\n")
    (tmp_path / "train").chmod(0o755)
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text("{}")
    (tmp_path / "profile.json").write_text(PROFILE)
    arguments = command.split()[1:]
    arguments += ["--probe-time=100ms"] if arguments[0] in ("doctor", "tune") else []
    arguments += ["--once"] if arguments[0] == "mirror" else []
    arguments[1:1] = ["--least-time=0", "--cores=1", "--cores-only"] if arguments[0] == "profile" else []

    ran = subprocess.run(
        [COMMAND, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )

    assert ran.returncode == (1 if arguments[0] == "diff" else 0), ran.stderr  # 1: they differ.
    assert ran.stdout or arguments[0] in ("export", "verify")


# The pages


def test_its_first_use_is_ten_lines_or_so() -> None:
    assert len([line for line in blocks("README.md", "python")[0].splitlines() if line.strip()]) <= 13


def test_it_ends_within_165_lines() -> None:
    assert len(README.read_text().splitlines()) <= 165


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_event_that_is_documented_is_one_of_the_code() -> None:
    files = [path for folder in ("src", "bindings") for path in (ROOT / folder).rglob("*")]
    source = "".join(path.read_text() for path in files if path.suffix in (".cc", ".h", ".py"))
    source = re.sub(r'"\s*f?"', "", source)  # What is split over lines.
    events = re.findall(
        r"^\| `([^`]+)` \|", (ROOT / "docs/operations.md").read_text().partition("| event |")[2], re.MULTILINE
    )

    assert len(events) > 10
    for event in events:
        for part in re.split(r"\.\.\.|\b(?:[A-Z]|REASON|FILE)\b", event):  # Between what differs from time to time.
            assert part.strip(" :,") in source, (event, part)


def test_each_page_s_links_lead_somewhere() -> None:
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            if "://" in link:
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []
