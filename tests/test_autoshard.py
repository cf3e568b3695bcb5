"""`autoshard`: `jax.jit` that plans, once for each shape."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import floats
from forced import device_mesh
from jax.sharding import NamedSharding, PartitionSpec

from planner import autoshard
from planner.plan import plan

P = PartitionSpec
MESH = device_mesh(x=2, y=4)
X, W = floats(64, 32), floats(32, 16)


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """relu(x w)"""
    return jax.nn.relu(x @ w)


@pytest.fixture
def plannings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The example arguments of every call of `plan`."""
    seen: list[Any] = []

    def recording(fn: Any, args: Any, *rest: Any, **options: Any) -> Any:
        seen.append(args)
        return plan(fn, args, *rest, **options)

    monkeypatch.setattr(importlib.import_module("planner.autoshard"), "plan", recording)
    return seen


def test_plans_once_for_each_shape_dtype_and_structure(plannings: list[Any]) -> None:
    step = autoshard(lambda x, w: {"y": layer(x, w["a"])}, MESH)
    for args in [(X, {"a": W})] * 3:
        np.testing.assert_allclose(step(*args)["y"], layer(X, W), rtol=1e-5)
    assert len(plannings) == 1
    step(X[:32], {"a": W})
    assert len(plannings) == 2
    step(X.astype(np.float16), {"a": W.astype(np.float16)})
    assert len(plannings) == 3
    step(X, {"a": W, "b": X})
    assert len(plannings) == 4
    step(X[:32], {"a": W})
    assert len(plannings) == 4, "the earlier ones are remembered"


def test_where_arrays_lie_does_not_plan_again(plannings: list[Any]) -> None:
    step = autoshard(layer, MESH)
    for x in (X, jnp.asarray(X), jax.device_put(X, jax.devices()[3]), jax.device_put(X, NamedSharding(MESH, P("y")))):
        np.testing.assert_allclose(step(x, W), layer(X, W), rtol=1e-5)
    assert len(plannings) == 1


def test_weak_types_are_kept_apart(plannings: list[Any]) -> None:
    step = autoshard(lambda x, scale: x * scale, MESH)
    half = X.astype(jnp.bfloat16)
    assert step(half, 2.0).dtype == jnp.bfloat16
    assert step(half, 3.0).dtype == jnp.bfloat16
    assert len(plannings) == 1
    with jax.numpy_dtype_promotion("standard"):
        assert step(half, np.float32(2)).dtype == jnp.float32
    assert len(plannings) == 2


def test_options_reach_the_planner() -> None:
    step = autoshard(lambda x, w: x + w.sum(), MESH, in_specs=(P("y"), None), donate_argnums=0)
    planned = step.plan_for(X, W)
    assert planned.in_specs[0] == P("y")
    x, w = planned.place(X, W)
    step(x, w)
    assert x.is_deleted()
    assert not w.is_deleted()


def test_looks_like_the_function() -> None:
    step = autoshard(layer, MESH)
    assert step.__name__ == "layer"
    assert step.__doc__ == layer.__doc__
    assert step.__wrapped__ is layer


def test_lowers() -> None:
    assert "layer" in autoshard(layer, MESH).lower(X, W).as_text()


def test_inside_transformations(plannings: list[Any]) -> None:
    step = autoshard(layer, MESH)

    def loss(w: jax.Array) -> jax.Array:
        return step(X, w).sum()

    wanted = jax.grad(lambda w: layer(X, w).sum())(W)
    np.testing.assert_allclose(jax.grad(loss)(W), wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(W), wanted, rtol=1e-5)
    assert len(plannings) == 1


def test_a_train_loop() -> None:
    @jax.jit
    def reference(w: jax.Array) -> jax.Array:
        return w - np.float32(0.01) * jax.grad(lambda w: layer(X, w).sum())(w)

    step = autoshard(reference, MESH, donate_argnums=0)
    sharded, whole = jnp.asarray(W), jnp.asarray(W)
    for _ in range(3):
        sharded, whole = step(sharded), reference(whole)
    np.testing.assert_allclose(sharded, whole, rtol=1e-5, atol=1e-6)
