"""Trees of torch tensors on their native way: through DLPack, and by attributes as before torch 2.10."""

from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from cairn import _core
from cairn._tree import tensors as tree_tensors


@pytest.fixture(params=["dlpack", "attributes"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = _core.TorchReader(torch.Tensor, torch.nn.Parameter, tree_tensors._torch_dtypes(), request.param == "dlpack")
    if request.param == "dlpack" and not made.has_dlpack:
        pytest.skip(f"torch {torch.__version__} has no DLPack C exchange API")
    monkeypatch.setattr(tree_tensors, "_torch_reader", made)
    return made


def same(a: Any, b: Any) -> bool:
    b = b.detach().resolve_conj().resolve_neg().contiguous()
    return (
        a.dtype == b.dtype and a.shape == b.shape and bytes(a.untyped_storage()) == bytes(b.clone().untyped_storage())
    )


def every_kind() -> dict[str, Any]:
    kinds: dict[str, Any] = {str(dtype): torch.arange(6).to(dtype) for dtype in tree_tensors._torch_dtypes()}
    grid = torch.arange(24.0).reshape(2, 3, 4)
    return kinds | {
        "scalar": torch.tensor(7.0),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "transposed": grid.transpose(0, 2),
        "strided": grid[:, 1:, ::2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "channels_last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "offset": grid[1],
        "one wide": grid[:, :1, :],
        "conjugated": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj(),
        "negated": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj().imag,
        "Starts with T": torch.ones(1),
        "needs/an~escape": torch.ones(2),
        'and "quotes"': torch.ones(2),
        "ünicode": torch.ones(2),
    }


def test_every_kind_of_tensor_comes_back(root: Path) -> None:
    kinds = every_kind()
    plain = {
        name: tensor for name, tensor in kinds.items() if name.isascii() and name[0] not in "TFN" and '"' not in name
    }
    with cairn.Checkpointer(root, host_memory="16MiB", chunk="1MiB") as checkpointer:
        checkpointer.save(1, {"all": kinds, "plain": plain, "step": 1}).wait()

        loaded = checkpointer.load()

    assert list(loaded["all"]) == list(kinds)
    for of, tensors in (("all", kinds), ("plain", plain)):
        for name, tensor in tensors.items():
            assert same(loaded[of][name], tensor), name


def test_a_later_save_sees_what_has_changed_since(root: Path) -> None:
    tensors = {f"layer{i}": torch.full((300,), float(i)) for i in range(50)}
    steps: dict[int, dict[str, Any]] = {}

    def save(step: int) -> None:
        checkpointer.save(step, {"model": dict(tensors)}).wait()
        steps[step] = {name: tensor.clone() for name, tensor in tensors.items()}

    with cairn.Checkpointer(root, host_memory="16MiB", chunk="1MiB", keep_last=0) as checkpointer:
        save(1)
        tensors["layer7"].fill_(-1)  # In place
        save(2)
        tensors["layer7"] = torch.full((300,), -2.0)  # Other memory
        save(3)
        tensors["layer7"] = tensors["layer7"].view(30, 10)  # The same memory in another shape
        save(4)
        tensors["layer7"] = tensors["layer7"].view(torch.int32)  # and of another dtype
        save(5)
        tensors["layer7"] = tensors["layer7"].t()  # and with other strides
        save(6)
        tensors["other name"] = tensors.pop("layer7")
        save(7)
        del tensors["layer49"]
        save(8)
        tensors["tied"] = tensors["layer1"]
        save(9)

        for step, saved in steps.items():
            loaded = checkpointer.load(step)["model"]
            assert list(loaded) == list(saved)
            assert all(same(loaded[name], tensor) for name, tensor in saved.items()), step


def test_what_cannot_be_kept_is_refused_by_its_path(root: Path) -> None:
    with cairn.Checkpointer(root, host_memory="16MiB", chunk="1MiB") as checkpointer:
        for tensor, why in (
            (torch.ones(2, device="meta"), "meta"),
            (torch.eye(2).to_sparse(), "sparse"),
        ):
            with pytest.raises(cairn.Error, match=f"(?s)layers/odd.*{why}"):
                checkpointer.save(1, {"layers": {"fine": torch.ones(2), "odd": tensor}})
        assert checkpointer.steps() == []
        checkpointer.save(1, {"layers": {"fine": torch.ones(2)}}).wait()
