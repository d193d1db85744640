"""Restoring what fits (strict=False), under a compiled module's names, onto a device; and cairn.load by path."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
import torch
from ranks import World

Make = Callable[..., cairn.Checkpointer]


def network(seed: int, out: int = 4, bias: bool = True) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, out, bias=bias))


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in a.state_dict().items())


def test_what_both_have_is_restored_and_the_rest_is_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = make()
    saved = {"same": torch.ones(3), "gone": torch.ones(2), "inner": {"a": torch.ones(1), "epoch": 4}, "step": 7}
    checkpointer.save(1, saved).wait()
    like = {"new": torch.zeros(2), "same": torch.zeros(3), "inner": {"a": torch.zeros(1), "b": torch.zeros(1)}, "k": 5}

    with caplog.at_level(logging.WARNING, "cairn"):
        restored = checkpointer.restore(like, strict=False)

    assert restored == {
        "new": like["new"], "same": like["same"], "inner": {"a": like["inner"]["a"], "b": like["inner"]["b"]}, "k": 5
    }  # fmt: skip
    assert like["same"].tolist() == [1] * 3 and like["new"].tolist() == [0] * 2
    (record,) = caplog.records
    assert "3 only in the checkpoint: gone, step, inner/epoch" in record.getMessage()
    assert "3 only in the given tree: new, k, inner/b" in record.getMessage()


def test_without_it_the_error_names_it(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"a": torch.ones(1)}).wait()
    with pytest.raises(cairn.InvalidArgument, match=r"strict=False"):
        checkpointer.restore({"a": torch.ones(1), "b": torch.ones(1)})


@pytest.mark.usefixtures("device")
def test_a_module_with_other_layers_is_restored_in_part(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = make()
    source, target = network(0), network(1, bias=False)
    extended = torch.nn.Sequential(*network(2), torch.nn.Linear(4, 2))
    checkpointer.save(1, {"model": source}).wait()

    with pytest.raises(cairn.InvalidArgument, match="model/2.bias"):
        checkpointer.restore({"model": target})
    checkpointer.restore({"model": target}, strict=False)
    before = extended[3].weight.detach().clone()
    checkpointer.restore({"model": extended}, strict=False)

    assert same(target, source)
    assert same(source, extended) and torch.equal(extended[3].weight, before)
    assert "only in the given tree: model/3.weight, model/3.bias" in caplog.text


def test_shapes_must_agree_all_the_same(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"model": network(0)}).wait()
    with pytest.raises(cairn.InvalidArgument, match=r"model/2.weight: the tree has F32 \[5, 8\], the checkpoint has"):
        checkpointer.restore({"model": network(1, out=5)}, strict=False)


def compiled(model: torch.nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def partly_compiled(model: Any) -> Any:
    return torch.nn.Sequential(model[0], compiled(model[1]), model[2])


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("to", [compiled, partly_compiled, lambda model: model], ids=["compiled", "partly", "plain"])
@pytest.mark.parametrize("of", [compiled, partly_compiled, lambda model: model], ids=["compiled", "partly", "plain"])
def test_a_compiled_module_and_the_plain_one_restore_each_other(
    make: Make, of: Callable[[Any], Any], to: Callable[[Any], Any]
) -> None:
    source, target = network(0), network(1)
    expected = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    checkpointer = make()
    checkpointer.save(1, {"model": of(source), "state": of(source).state_dict()}).wait()
    given = to(target)
    where = [tensor.data_ptr() for tensor in given.state_dict().values()]

    flat = network(2)
    restored = checkpointer.restore({"model": given, "state": to(flat).state_dict()})

    assert restored["model"] is given
    assert [tensor.data_ptr() for tensor in given.state_dict().values()] == where
    for name, tensor in given.state_dict().items():
        assert torch.equal(tensor, expected[name.replace("_orig_mod.", "")]), name
    assert [*restored["state"]] == [*to(flat).state_dict()] or to is partly_compiled
    assert restored["state"]._metadata.keys() <= to(flat).state_dict()._metadata.keys()


def test_new_tensors_are_made_on_the_device_that_is_asked_for(make: Make, device: str) -> None:
    checkpointer = make()
    checkpointer.save(1, {"a": torch.ones(2)}).wait()

    assert checkpointer.load(map_location=device)["a"].device.type == device
    restored = checkpointer.restore({"a": None}, map_location=torch.device(device))["a"]
    assert restored.device.type == device and restored.tolist() == [1, 1]
    assert checkpointer.load(map_location="cpu")["a"].device.type == "cpu"
    for wrong in ("meta", "nonsense", 1.5, lambda storage, _: storage):
        with pytest.raises(cairn.InvalidArgument, match='map_location: expected a device such as "cpu"'):
            checkpointer.load(map_location=wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_new_tensors_are_read_into_the_gpu(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, {"a": torch.arange(1000.0), "b": 1}).wait()

    loaded = checkpointer.load(map_location="cuda")
    lazy = checkpointer.load(map_location="cuda:0", lazy=True)
    restored = checkpointer.restore({"a": None, "b": 0}, map_location="cuda")

    for tensor in (loaded["a"], lazy["a"].load(), restored["a"]):
        assert tensor.device.type == "cuda" and torch.equal(tensor.cpu(), torch.arange(1000.0))


def test_load_by_path(make: Make, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = make()
    for step in (1, 2):
        checkpointer.save(step, {"t": torch.full((3,), float(step)), "step": step}).wait()
    (one, two) = sorted(root.glob("step-*"))
    shutil.copytree(one, tmp_path / "copy")
    monkeypatch.setenv("HOME", str(root.parent))
    monkeypatch.chdir(root.parent)

    assert cairn.load(root)["step"] == 2  # While a writer has it open.
    assert cairn.load(str(root), step=1)["step"] == 1
    assert cairn.load(root / "step-1")["step"] == cairn.load(f"{root}/step-0001/")["step"] == 1
    assert cairn.load(two)["t"].tolist() == [2] * 3
    assert cairn.load("copy", map_location="cpu")["step"] == 1
    assert cairn.load(f"~/{root.name}", names="t").keys() == {"t"}
    assert cairn.load(tmp_path / "copy", lazy=True)["t"].load().tolist() == [1] * 3
    assert cairn.load(root, lazy=True)["t"].load().tolist() == [2] * 3


def test_load_of_what_is_no_checkpoint(tmp_path: Path, root: Path, make: Make) -> None:
    make()
    (tmp_path / "model.pt").write_bytes(b"PK")
    for path, kind, message in [
        (tmp_path / "nothing", cairn.NotFound, "there is no checkpoint at .*nothing"),
        (tmp_path / "model.pt", cairn.InvalidArgument, "model.pt: expected a Cairn checkpoint.*torch.load"),
        (root, cairn.NotFound, "there is no checkpoint under .*run"),
        ("", cairn.InvalidArgument, "the path: expected a path, found an empty one"),
        ("s3://bucket/run", cairn.Unsupported, "s3://bucket/run: Cairn saves to mounted filesystems only.*s3://"),
    ]:
        with pytest.raises(kind, match=message):
            cairn.load(path)


def test_home_is_expanded_and_a_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    small = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}
    with cairn.Checkpointer("~/run", **small) as checkpointer:
        checkpointer.save(1, {"a": 1})
        checkpointer.drain()
        assert checkpointer.root == str(tmp_path / "run") and (tmp_path / "run").is_dir()
        copied = shutil.copytree(next((tmp_path / "run").glob("step-*")), tmp_path / "copy")
        assert checkpointer.load(folder=f"~/{copied.name}") == {"a": 1}
    for url in ("s3://bucket/run", "gs://bucket/run", "hdfs://host/run"):
        with pytest.raises(cairn.Unsupported, match=url):
            cairn.Checkpointer(url, **small)
    assert not [*Path.cwd().glob("s3:*")]


def test_lazy_tensors_of_a_path_do_not_keep_python_from_ending(make: Make, root: Path) -> None:
    with make() as checkpointer:
        checkpointer.save(1, {"t": np.ones(3)})
    script = "import sys, cairn; tree = cairn.load(sys.argv[1], lazy=True); print(tree['t'].load().sum())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", script, root], capture_output=True, text=True, env=environment, check=True
    )
    assert ran.stderr == ""


def test_an_optimizers_state_dict_gets_the_state_that_it_lacks(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """As the optimizer itself does, which a template without state stands for; and so does any container without content."""
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.Adam(weights)
    sum(weight.sum() for weight in weights).backward()
    optimizer.step()
    checkpointer = make()
    checkpointer.save(1, {"optimizer": optimizer.state_dict(), "loader": {"state": {"at": torch.ones(1)}}}).wait()
    for strict in (True, False):
        fresh = torch.optim.Adam([torch.nn.Parameter(torch.ones(3)) for _ in range(2)])
        restored = checkpointer.restore({"optimizer": fresh.state_dict(), "loader": {"state": {}}}, strict=strict)
        assert torch.equal(restored["optimizer"]["state"][1]["exp_avg"], optimizer.state[weights[1]]["exp_avg"])
        assert torch.equal(restored["loader"]["state"]["at"], torch.ones(1))
    half = fresh.state_dict() | {"state": {0: optimizer.state_dict()["state"][0]}}
    with pytest.raises(cairn.InvalidArgument, match="only in the checkpoint: optimizer/state/1"):
        checkpointer.restore({"optimizer": half, "loader": None})
    restored = checkpointer.restore({"optimizer": half, "loader": None}, strict=False)
    assert torch.equal(restored["optimizer"]["state"][1]["exp_avg"], optimizer.state[weights[1]]["exp_avg"])
    assert caplog.text == ""


def adam(model: torch.nn.Module) -> Any:
    return torch.optim.Adam(model.parameters())


@pytest.mark.parametrize(("tree", "named"), [
    ({"net": network(0)}, "net"),
    ({"model": {"renamed": torch.zeros(1)}}, "model"),
    ({"model": torch.nn.ModuleDict({"inner": network(0)})}, "model"),
    ({"mdoel": network(0), "ema": torch.zeros(1), "step": 0}, "mdoel"),
    ({"model": network(0), "optimzer": adam(network(0))}, "optimzer"),
    ({"model": network(0), "nets": [network(0), network(0)]}, "nets/1"),
    ({"inner": {"first": network(0)}, "ema": torch.zeros(1)}, "inner/first"),
    ({"ema": torch.zeros(1), "nets": [network(0)], "relu": network(0)}, "relu"),
    ({"ema": torch.zeros(1), "model": {"module.0.weight": torch.zeros(8, 8)}}, "model"),
    ({"ema": torch.zeros(1), "random": cairn.RngState()}, "random"),
], ids=["another key", "another name", "a module within another", "beside others", "an optimizer", "a longer list",
        "another container", "saved without tensors", "a state dict", "another object"])  # fmt: skip
def test_what_would_restore_nothing_is_refused(make: Make, tree: dict[str, Any], named: str) -> None:
    checkpointer = make()
    saved: dict[str, Any] = {
        "model": network(1),
        "ema": torch.ones(1),
        "nets": [network(2)],
        "relu": torch.nn.ReLU(),
        "step": 1,
    }
    saved["inner"] = {"second": network(3)}
    checkpointer.save(1, saved).wait()
    with pytest.raises(
        cairn.InvalidArgument,
        match=rf"{checkpointer.root}.*strict=False would restore nothing of {named}: .*only in the checkpoint.*leave out",
    ):
        checkpointer.restore(tree, strict=False)
    assert tree.get("ema", torch.zeros(1)).item() == 0
    assert checkpointer.restore({"step": 0}, strict=False) == {"step": 1}


def test_what_one_rank_would_not_restore_is_refused_on_all(worlds: Callable[..., World]) -> None:
    world = worlds(2, "")
    world.all("model = torch.nn.Linear(2, 2)")
    assert world.all("c.save(1, {'model': model, 'w': torch.ones(1)}).result()") == [1] * 2
    world.all("w, key = torch.zeros(1), 'mdoel' if rank else 'model'")
    for answer in world.answers("c.restore({key: model, 'w': w}, strict=False)"):
        assert answer.get("error") == "InvalidArgument", answer
        assert "strict=False would restore nothing of mdoel" in answer["message"]
    assert world.all("float(w)") == [0.0] * 2


def test_what_is_restored_at_another_path_is_no_object_of_its_own(make: Make) -> None:
    checkpointer = make()
    source, target = network(1), network(0)
    checkpointer.save(1, {"model": source, "relu": network(2)}).wait()
    tree = {
        "model": target,
        "first": target[0],
        "new": torch.nn.ReLU(),
        "relu": torch.nn.ReLU(),
        "value": torch.zeros(1),
    }
    checkpointer.restore(tree, strict=False)
    assert same(target, source)


class Attributes(dict[str, Any]):
    """Its attributes are its items."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Settings:
    """Its attributes are what it holds."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def __getattr__(self, name: str) -> Any:
        return self.held[name]

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


def test_an_objects_attributes_are_not_asked_for(make: Make) -> None:
    checkpointer = make()
    checkpointer.save(1, [Settings({"rate": torch.ones(1)})]).wait()
    (target,) = checkpointer.restore([Settings({"rate": torch.zeros(1)})])
    assert target.held == {"rate": torch.ones(1)}


def test_a_dict_whose_items_are_attributes_is_a_target_as_any_dict(make: Make) -> None:
    checkpointer = make()
    source = torch.nn.Linear(2, 2)
    checkpointer.save(1, {"model": source}).wait()
    target = Attributes(weight=torch.zeros(2, 2), bias=torch.zeros(2))
    checkpointer.restore({"model": target})
    assert torch.equal(target["weight"], source.weight)
