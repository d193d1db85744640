"""examples/notebook.ipynb runs in a real kernel, cell by cell; a cell may be run again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "examples/notebook.ipynb"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[NotebookClient]:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel(env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}):
        yield client


def run(client: NotebookClient, number: int) -> str:
    """What the cell prints or shows."""
    cell = client.execute_cell(client.nb.cells[number], number)
    return "".join(one.get("text") or one["data"]["text/plain"] for one in cell.outputs)


def test_it_runs_from_top_to_bottom(client: NotebookClient) -> None:
    code = [number for number, cell in enumerate(client.nb.cells) if cell.cell_type == "code"]
    shown = [run(client, number) for number in code]
    assert shown[1].startswith("step=50 ") and shown[2] == "[40, 50]\ntorch.Size([64])"


def test_its_cells_may_be_run_again(client: NotebookClient) -> None:
    opens, trains = (
        number for number, cell in enumerate(client.nb.cells) if "restore" in cell.source or "protect" in cell.source
    )
    assert [run(client, number).partition(" ")[0] for number in (opens, trains, trains, opens, trains)] == [
        "", "step=50", "step=100", "", "step=150"
    ]  # fmt: skip


def test_the_stop_button_still_interrupts_and_other_signals_are_heard(client: NotebookClient) -> None:
    # The kernel sets a handler of its own for SIGINT, anew for each cell.
    code = client.nb.cells[1].copy()
    code.source += """
import os, signal
checkpointer.stop_on()
"""
    client.execute_cell(code, 1)
    code.source = """
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted", checkpointer.stop_requested())
os.kill(os.getpid(), signal.SIGTERM)
print(checkpointer.stop_requested())
checkpointer.close()
"""
    cell = client.execute_cell(code, 1)
    assert "".join(one["text"] for one in cell.outputs if one.get("name") == "stdout") == "interrupted False\nTrue\n"
