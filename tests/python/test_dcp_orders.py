"""An optimizer given itself to cairn.dcp whose parameters come in another order than at the save: its state goes by number."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from dcp_worlds import Worlds, worlds

cairn_dcp = pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
__all__ = ["worlds"]  # A fixture.
BY_NUMBER = "and this state goes by number: make the optimizer as it was"


def job(turned: bool = False, given: str = "module", seed: int = 0) -> dict[str, Any]:
    """Layers of one shape; `given` says what of the model is in the state."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3, bias=False) for _ in range(3)))
    optimizer = torch.optim.AdamW([*model.parameters()][:: -1 if turned else 1])
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()
    weights = {"module": {"model": model}, "state dict": {"model": model.state_dict()}, "none": {}}[given]
    return {**weights, "optim": optimizer}


def contents(state: dict[str, Any]) -> str:
    held = {key: one.state_dict() if hasattr(one, "state_dict") else one for key, one in state.items()}
    return repr(copy.deepcopy(held))


Save = Callable[[Path, Any], None]
Load = Callable[[Path, Any], None]


def save_by_path(root: Path, state: Any) -> None:
    cairn_dcp.save(state, checkpoint_id=root / "step-1", no_dist=True)
    cairn_dcp.checkpointer_for(root / "step-1", no_dist=True).close()


def async_save_by_path(root: Path, state: Any) -> None:
    response = cairn_dcp.async_save(state, checkpoint_id=root / "step-1", no_dist=True)
    getattr(response, "upload_completion", response).result()
    cairn_dcp.checkpointer_for(root / "step-1", no_dist=True).close()


def save_by_plan(root: Path, state: Any) -> None:
    with cairn.Checkpointer(root) as checkpointer:
        writer = cairn_dcp.StorageWriter(checkpointer, 1)
        cairn_dcp.save(state, storage_writer=writer, planner=cairn_dcp.SavePlanner(), no_dist=True)


def load_by_path(root: Path, state: Any) -> None:
    cairn_dcp.load(state, checkpoint_id=root / "step-1", no_dist=True)


def load_by_plan(root: Path, state: Any) -> None:
    cairn_dcp.load(state, checkpoint_id=root / "step-1", planner=cairn_dcp.LoadPlanner(), no_dist=True)


def load_by_reader(root: Path, state: Any) -> None:
    cairn_dcp.load(state, storage_reader=cairn_dcp.StorageReader(root), no_dist=True)


@pytest.mark.parametrize("load", [load_by_path, load_by_plan, load_by_reader])
@pytest.mark.parametrize("save", [save_by_path, async_save_by_path, save_by_plan])
def test_another_order_is_refused_and_the_same_one_loads(root: Path, save: Save, load: Load) -> None:
    saved = job()
    save(root, saved)

    same = job(seed=1)
    load(root, same)
    assert contents(same) == contents(saved)

    turned = job(turned=True, seed=1)
    before = contents(turned)
    with pytest.raises(cairn.Error) as refused:
        load(root, turned)
    message = str(refused.value)
    assert '"optim": parameter 0 is model.2.weight in the state to load into, model.0.weight in the che' in message
    assert BY_NUMBER in message and str(root) in message
    assert contents(turned) == before


@pytest.mark.parametrize(("at_save", "at_load"), [
    ("module", "state dict"), ("state dict", "module"), ("state dict", "state dict"),
])  # fmt: skip
def test_the_order_is_known_by_the_weights_in_the_state(root: Path, at_save: str, at_load: str) -> None:
    save_by_path(root, job(given=at_save))
    load_by_path(root, job(given=at_load, seed=1))
    with pytest.raises(cairn.InvalidArgument, match=BY_NUMBER):
        load_by_path(root, job(turned=True, given=at_load, seed=1))


@pytest.mark.parametrize("given", ["none", "module"])
def test_without_the_weights_at_the_load_state_goes_by_number(root: Path, given: str) -> None:
    save_by_path(root, job(given=given))
    load_by_path(root, job(turned=True, given="none"))


def test_an_older_checkpoint_has_no_order_and_loads_as_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr("cairn._dcp.items.orders_in", lambda *_: {})
        save_by_path(root, job())
    load_by_path(root, job(turned=True))


def test_the_order_of_a_later_save_is_that_of_then(root: Path) -> None:
    """As of layers that change places in a module that trains."""
    state, turned = job(), job(turned=True, seed=1)
    with cairn.Checkpointer(root) as checkpointer:
        for step in (1, 2, 3):
            cairn_dcp.save(state, storage_writer=cairn_dcp.StorageWriter(checkpointer, step), no_dist=True)
            if step == 2:
                model = state["model"]
                model[0], model[2] = model[2], model[0]
    for step in (2, 3):
        into = [job(seed=1), turned][step - 2]
        cairn_dcp.load(into, checkpoint_id=root / f"step-{step}", no_dist=True)
    with pytest.raises(cairn.InvalidArgument, match=BY_NUMBER):
        cairn_dcp.load(job(), checkpoint_id=root / "step-3", no_dist=True)


def test_layers_that_have_changed_places_are_refused(root: Path) -> None:
    """As of a model whose layers are made in another order under the same names."""

    def made(order: str) -> dict[str, Any]:
        model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in order})
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        sum(one.sum() for one in model.parameters()).backward()  # type: ignore[union-attr]
        optimizer.step()
        return {"m": model, "o": optimizer}

    save_by_path(root, made("ab"))
    load_by_path(root, made("ab"))
    with pytest.raises(cairn.InvalidArgument, match='"o": parameter 0 is m.b.weight .* m.a.weight in the checkpoint'):
        load_by_path(root, made("ba"))


def test_tied_empty_and_foreign_parameters_have_the_same_names_at_both(root: Path) -> None:
    def made() -> dict[str, Any]:
        model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "abc"})
        model["b"].weight = model["a"].weight
        model["c"].register_parameter("none", torch.nn.Parameter(torch.zeros(0)))
        free = torch.nn.Parameter(torch.ones(2))
        return {"m": model, "o": torch.optim.SGD([free, *model.parameters()], lr=0.1)}

    save_by_path(root, made())
    load_by_path(root, made())


@pytest.mark.parametrize(("save", "planner"), [
    ("cairn.dcp.save(saved, storage_writer=writer)", "None"),
    ("done(cairn.dcp.async_save(saved, storage_writer=writer, planner=cairn.dcp.SavePlanner(), process_group=saving))",
     "cairn.dcp.LoadPlanner()"),
])  # fmt: skip
def test_ranks_refuse_another_order_together(worlds: Worlds, save: str, planner: str) -> None:
    """Of FSDP2, of which rank 1 has no rows of some layers; and if it has another order alone."""
    two = worlds(2)
    two.all(
        "def made(turned, seed=1):\n"
        "    torch.manual_seed(seed)\n"
        "    sizes = [(4, 4), (4, 4), (1, 4), (1, 4)]\n"
        "    net = torch.nn.Sequential(*(torch.nn.Linear(b, a, bias=False) for a, b in sizes))\n"
        "    fully_shard(net, mesh=mesh)\n"
        "    optimizer = torch.optim.AdamW([net[i].weight for i in ([1, 0, 2, 3] if turned else [0, 1, 2, 3])])\n"
        "    for one in net.parameters(): one.grad = torch.ones_like(one)\n"
        "    optimizer.step()\n"
        "    return {'net': net, 'optim': optimizer}\n"
        "def shown(state):\n"
        "    return digests({key: one.state_dict() for key, one in state.items()})\n"
        "def refused(state):\n"
        "    before = shown(state)\n"
        f"    try: cairn.dcp.load(state, storage_reader=cairn.dcp.StorageReader(c, 1), planner={planner})\n"
        "    except BaseException as error: return str(error), shown(state) == before\n"
        "    return 'loaded', shown(state) == shown(saved)\n"
        "def done(response): getattr(response, 'upload_completion', response).result()\n"
        "saved, writer = made(False), cairn.dcp.StorageWriter(c, 1)\n"
        f"{save}; None"
    )
    assert two.all("refused(made(False, 2))") == [["loaded", True]] * 2
    for turned in ("True", "rank == 1"):
        for text, unchanged in two.all(f"refused(made({turned}, 2))"):
            assert (
                unchanged and '"optim": parameter 0 is net.1.weight in the state to load into, net.0.weight in' in text
            )
