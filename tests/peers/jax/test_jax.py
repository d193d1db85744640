"""JAX's arrays in a tree: kept as they are, and back as numpy arrays of the same bits, which JAX takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cairn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

SMALL: dict[str, Any] = {"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2}


@jax.jit
def train(parameters: Any, momentum: Any) -> Any:
    gradients = jax.grad(lambda p: jnp.sum((p["w"] @ p["b"].astype(jnp.float32)) ** 2))(parameters)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda p, m: (p - 1e-3 * m).astype(p.dtype), parameters, momentum), momentum


def begin() -> dict[str, Any]:
    key = jax.random.PRNGKey(0)
    parameters = {"w": jax.random.normal(key, (64, 32)), "b": jnp.ones(32, jnp.bfloat16)}
    return {"parameters": parameters, "momentum": jax.tree.map(jnp.zeros_like, parameters), "key": key, "step": 0}


def test_a_pytree_goes_on_bit_by_bit(tmp_path: Path) -> None:
    state = begin()
    with cairn.Checkpointer(tmp_path / "run", **SMALL) as checkpointer:
        for step in range(1, 4):
            state["parameters"], state["momentum"] = train(state["parameters"], state["momentum"])
            state["step"] = step
            checkpointer.save(step, state)  # Arrays never change, so no fence is needed.
    expected = train(*train(state["parameters"], state["momentum"]))

    with cairn.Checkpointer(tmp_path / "run", **SMALL) as checkpointer:
        restored = jax.tree.map(jnp.asarray, checkpointer.restore(begin()))

    assert int(restored["step"]) == 3
    found = train(*train(restored["parameters"], restored["momentum"]))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_dtypes_and_what_numpy_cannot_hold(tmp_path: Path) -> None:
    names = ("bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2")
    tree = {name: jnp.ones((3, 4), getattr(jnp, name if name != "bool" else "bool_")) for name in names}
    with cairn.Checkpointer(tmp_path / "run", **SMALL) as checkpointer:
        checkpointer.save(1, tree).wait()
        loaded = cairn.load(tmp_path / "run")
        with pytest.raises(cairn.InvalidArgument, match="key: an array of type .* convert it first"):
            checkpointer.save(2, {"key": jax.random.key(0)})
    for name in names:
        assert loaded[name].dtype == tree[name].dtype and (loaded[name] == 1).all()
