"""The README is short, its Python works as printed, and no link of the documentation leads nowhere."""

import re
import textwrap
from pathlib import Path

import cairn
import torch

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def code_under(heading: str) -> str:
    section = README.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 1, f"expected one block of Python under {heading}, found {len(blocks)}"
    return textwrap.dedent(blocks[0])


def test_the_first_use_trains_and_goes_on_from_where_it_was(tmp_path: Path) -> None:
    code = code_under("Python").replace("/mnt/nvme/run7", str(tmp_path / "run7")).replace("4GiB", "64MiB")

    def run(steps: int) -> dict[str, object]:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        trained = []

        def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
            optimizer.zero_grad()
            model(torch.rand(4)).sum().backward()
            optimizer.step()
            trained.append(model.weight.detach().clone())

        names: dict[str, object] = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3),
            "steps": steps,
            "train": train,
            "trained": trained,
        }
        exec(compile(code, str(README), "exec"), names)  # noqa: S102
        return names

    torch.manual_seed(1)
    first = run(20)
    second = run(40)
    assert isinstance(second["tree"], dict) and second["tree"]["step"] == 20
    assert len(second["trained"]) == 20  # type: ignore[arg-type]

    torch.manual_seed(1)
    (tmp_path / "run7").rename(tmp_path / "earlier")
    whole = run(40)
    assert torch.equal(whole["trained"][19], first["trained"][-1])  # type: ignore[index]
    assert torch.equal(whole["trained"][-1], second["trained"][-1])  # type: ignore[index]
    with cairn.Checkpointer(tmp_path / "run7", host_memory="64MiB", read_only=True) as checkpointer:
        assert checkpointer.steps() == [20, 30, 40]


def test_its_first_use_is_ten_lines_or_so() -> None:
    assert len([line for line in code_under("Python").splitlines() if line.strip()]) <= 12


def test_it_ends_within_150_lines() -> None:
    assert len(README.read_text().splitlines()) <= 150


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
