"""Checkpoints that the first version of the format's code wrote (tests/format/corpus-v1), read by today's package, by
the safetensors library, and by the reader that was written from docs/format.md alone."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import corpus_v1
import pytest
import safetensors
import torch
from corpus_v1 import CPP_ROOTS, FOLDER, PYTHON_ROOTS
from flat import flatten
from ranks import World
from trees import same

SHARDS = {str(path.relative_to(FOLDER)): path for path in sorted(FOLDER.glob("*/step-*/*.safetensors"))}


def shards_of(roots: list[str]) -> list[str]:
    return [name for name in SHARDS if name.split("/")[0] in roots]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    def listing() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in [FOLDER, *FOLDER.rglob("*")]}

    before = listing()
    yield
    assert listing() == before


def reader_of(root: str) -> cairn.Checkpointer:
    return cairn.Checkpointer(FOLDER / root, read_only=True, host_memory="8MiB", chunk="1MiB", queue_depth=2)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def members(metadata: dict[str, str], key: str) -> dict[str, Any]:
    found = json.loads(metadata.get(key, "{}"))
    assert isinstance(found, dict)
    return found


def test_the_files_are_those_that_were_committed() -> None:
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()

    assert corpus_v1.sums(FOLDER) == {path: digest for digest, path in (line.split("  ") for line in lines)}


@pytest.mark.parametrize("root", CPP_ROOTS + PYTHON_ROOTS)
def test_every_checkpoint_verifies(root: str) -> None:
    with reader_of(root) as reader:
        checkpoints = reader.checkpoints()

        assert [one.damage for one in checkpoints] == [None] * {"single": 3, "kept": 2}.get(root, 1)
        for one in checkpoints:
            reader.verify(one.step)


def test_the_tree_is_restored_in_place() -> None:
    want, target = corpus_v1.tree(), corpus_v1.tree(first=8)
    tied, module = target["model"]["embed.weight"], target["module"]

    with reader_of("tree") as reader:
        got = reader.restore(target, 4)

    assert got["model"]["embed.weight"] is tied and got["module"] is module
    assert same(got.pop("module").state_dict(), want.pop("module").state_dict())
    assert same(got, want)


def test_the_tree_is_loaded_with_nothing_given() -> None:
    want = corpus_v1.tree()
    want["module"] = want["module"].state_dict()
    del want["classes"]  # They come back as stand-ins.

    with reader_of("tree") as reader:
        got = reader.load()

    assert got["model"]["embed.weight"] is got["model"]["head.weight"]
    mode, point = got.pop("classes").values()
    assert mode == "EVAL" and point._fields == ("x", "y") and same(point.x, corpus_v1.ramp(1, 2)) and point.y == [1]
    assert same(got, want)


def test_values_in_the_data_of_a_shard_are_read() -> None:
    with reader_of("long_values") as reader:
        assert same(reader.load(), corpus_v1.long_tree())
        assert same(
            reader.restore({"model": {"weight": torch.zeros(5, 2)}, "seen": [], "records": []}), corpus_v1.long_tree()
        )


def test_one_process_restores_what_two_ranks_held_alike() -> None:
    want, target = corpus_v1.replicas_tree(0), corpus_v1.replicas_tree(0, first=8)
    for rank_s_own in ("mine", "rank"):
        del want[rank_s_own], target[rank_s_own]

    with reader_of("replicas") as reader:
        got = reader.restore(target)

    assert same(got, want)


def test_two_ranks_restore_their_trees() -> None:
    world = World(corpus_v1.RANKS, FOLDER / "replicas")
    try:
        world.open(f"read_only=True, replicated={corpus_v1.REPLICATED!r}")

        restored = world.all(
            "import corpus_v1, trees\n"
            "trees.same(c.restore(corpus_v1.replicas_tree(rank, first=8)), corpus_v1.replicas_tree(rank))"
        )

        assert restored == [True] * corpus_v1.RANKS
    finally:
        world.end()


def test_dcp_loads_what_two_ranks_saved_through_it() -> None:
    pytest.importorskip("cairn.dcp", exc_type=ImportError)  # Torch may be older than it needs; see test_package.py.
    from torch.distributed import checkpoint as dcp

    state = {name: child.clone() for name, child in corpus_v1.dcp_state(first=8).items() if name != "values"}
    state["values"] = dict.fromkeys(corpus_v1.dcp_state()["values"])

    with reader_of("dcp") as reader:
        dcp.load(state, storage_reader=cairn.dcp.StorageReader(reader), planner=cairn.dcp.LoadPlanner())

    want = corpus_v1.dcp_state()
    assert state.keys() == want.keys()
    assert all(same(state[name], want[name]) for name in want)


@pytest.mark.parametrize("shard", shards_of(CPP_ROOTS))
def test_safetensors_reads_what_the_formula_says(shard: str) -> None:
    with safetensors.safe_open(SHARDS[shard], "pt") as file:
        metadata = file.metadata()
        parts = members(metadata, "cairn.parts")

        assert ("cairn.crc32c" in metadata) == (not shard.startswith("unchecked/"))
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            tensor, dtype = file.get_tensor(name), file.get_slice(name).get_dtype()
            shape = list(tensor.shape)
            part = parts.get(name, {"name": name, "shape": shape, "offset": [0] * len(shape)})
            want = corpus_v1.formula(
                part["name"],
                int(metadata["cairn.step"]),
                dtype,
                part["shape"],
                part["offset"],
                shape,
                tensor.element_size(),
            )
            assert bytes_of(tensor) == want, name


def test_safetensors_reads_the_tree_s_tensors() -> None:
    want = flatten(corpus_v1.tree()).tensors

    with safetensors.safe_open(SHARDS[shards_of(["tree"])[0]], "pt") as file:
        aliases = members(file.metadata(), "cairn.aliases")
        assert aliases == {"model/head.weight": "model/embed.weight"}
        assert set(file.keys()) == set(want) - set(aliases)
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            assert same(file.get_tensor(name), torch.as_tensor(want[name]).detach()), name


def test_safetensors_reads_what_ranks_held_alike_from_one_shard() -> None:
    mine: dict[int, torch.Tensor] = {}
    model: dict[str, torch.Tensor] = {}

    for rank, shard in enumerate(shards_of(["replicas"])):
        with safetensors.safe_open(SHARDS[shard], "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                assert name not in model, "a replicated tensor twice"
                if name == "mine":
                    mine[rank] = file.get_tensor(name)
                else:
                    model[name.removeprefix("model/")] = file.get_tensor(name)

    assert len(mine) == corpus_v1.RANKS
    for rank in range(corpus_v1.RANKS):
        assert same(mine[rank], corpus_v1.replicas_tree(rank)["mine"])
    assert same(dict(sorted(model.items())), dict(sorted(corpus_v1.replicas_tree(0)["model"].items())))


def test_safetensors_reads_what_dcp_saved_in_two_shards() -> None:
    want = corpus_v1.dcp_state()
    rows: list[torch.Tensor] = []
    whole: dict[str, torch.Tensor] = {}

    for shard in shards_of(["dcp"]):
        with safetensors.safe_open(SHARDS[shard], "pt") as file:
            rows.append(file.get_tensor("sharded"))
            whole |= {name: file.get_tensor(name) for name in file.keys() if name != "sharded"}  # noqa: SIM118

    assert same(torch.cat(rows), want["sharded"])
    assert same(whole, {"replicated": want["replicated"]})


@pytest.mark.parametrize("root", [root for root in CPP_ROOTS + PYTHON_ROOTS if root != "unchecked"])
def test_the_documented_reader_reads_it(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    cairn_reader = importlib.import_module("cairn_reader")

    for folder in (FOLDER / root).glob("step-*"):
        manifest = cairn_reader.read_manifest(folder)
        assert int(folder.name.removeprefix("step-")) == manifest["step"]
        for rank, entry in enumerate(manifest["shards"]):
            own, tensors, _, _ = cairn_reader.read_shard(folder, entry)
            assert own["cairn.attempt"] == manifest["attempt"] and own["cairn.shard"] == str(rank)
            assert tensors
