"""torchdata's StatefulDataLoader as a leaf of the tree: it resumes in mid-epoch, within the limits of docs/python.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader


class Rows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, row: int) -> int:
        return row


class Stream(torch.utils.data.IterableDataset[int]):
    """Each worker has its part, and a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        step, first = (worker.num_workers, worker.id) if worker else (1, 0)
        for row in range(first + self.at * step, 50, step):
            self.at += 1
            yield row
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def a_loader(kind: Any, workers: int) -> StatefulDataLoader:
    torch.manual_seed(3)
    return StatefulDataLoader(kind(), batch_size=4, shuffle=kind is Rows, num_workers=workers)


def rows(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Rows, Stream])
def test_it_resumes_in_mid_epoch(tmp_path: Path, kind: Any, workers: int) -> None:
    whole = a_loader(kind, workers)
    expected = rows(whole)
    with cairn.Checkpointer(tmp_path / "run", host_memory="32MiB") as checkpointer:
        loader = a_loader(kind, workers)
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(5)]
        checkpointer.save(5, {"loader": loader, "rng": cairn.RngState()}).wait()
        del batches

        again = a_loader(kind, workers)
        checkpointer.restore({"loader": again, "rng": cairn.RngState()})
        assert seen + rows(again) == expected


def test_another_number_of_workers_is_refused_by_torchdata(tmp_path: Path) -> None:
    with cairn.Checkpointer(tmp_path / "run", host_memory="32MiB") as checkpointer:
        loader = a_loader(Stream, 2)
        next(iter(loader))
        checkpointer.save(1, {"loader": loader}).wait()
        with pytest.raises(AssertionError):
            again = a_loader(Stream, 1)
            checkpointer.restore({"loader": again})
            rows(again)
