"""Numbers of sixteen bits on CPUs, which compute in float32: what memory that takes, against the compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import Case
from forced import device_mesh, priced_on, random_assignments
from jax import lax
from jax.sharding import PartitionSpec as P
from peaks import ONE

from costmodel.model import measured_model
from executor import audit
from planner import plan
from planner.predict import predict

S = jax.ShapeDtypeStruct
X, W, V = (256, 128), (128, 512), (512, 128)


def ratio(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any) -> float:
    """Predicted over compiled peak memory, on one device."""
    args = [S(shape, dtype) for shape in shapes]
    found = jax.jit(fn).lower(*args).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return plan(fn, args, ONE).prediction.peak_bytes / compiled


def _residual(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    y = x + 1
    return y + jnp.tanh(y @ w) @ v


def _gradients(x: jax.Array, w: jax.Array, v: jax.Array) -> Any:
    return jax.vjp(lambda x, w, v: jax.nn.relu(x @ w) @ v, x, w, v)[1](x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, w: x @ w, (X, W)),
        (lambda x, w, v: x @ w @ v, (X, W, V)),
        (lambda x, w, v: jax.nn.relu(x @ w) @ v, (X, W, V)),
        (lambda x, w: (jnp.tanh(x) @ w, jnp.tanh(x) @ (2 * w)), (X, W)),
        (_residual, (X, W, V)),
        (_gradients, (X, W, V)),
        (lambda x, w: lax.fori_loop(0, 5, lambda _, x: jnp.tanh(x @ w), x), (X, (128, 128))),
        (lambda x, w: x.astype(jnp.float32) @ w.astype(jnp.float32), (X, W)),
        (lambda x: jnp.tanh(2 * x) + x, (X,)),
    ],
    ids=["product", "two", "layers", "shared", "residual", "gradients", "loop", "widened already", "no product"],
)
def test_products_are_of_float32(fn: Callable[..., Any], shapes: Any, dtype: Any) -> None:
    assert 0.95 <= ratio(fn, *shapes, dtype=dtype) <= 1.15


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.cumsum(x, 1),
        lambda x: jnp.zeros((512, 128), x.dtype).at[jnp.arange(256) * 2].add(x),
        lambda x: ((2 * x)[:128] + 1, (2 * x)[128:] * 3),
        lambda x: (2 * x + 1, jnp.sin(2 * x)),
    ],
    ids=["cumulative", "scatter", "parts", "two readers"],
)
def test_so_is_what_else_a_library_computes_of_bfloat16_and_rounding_is_done_once(fn: Callable[..., Any]) -> None:
    assert 0.97 <= ratio(fn, X, dtype=jnp.bfloat16) <= 1.03


@pytest.mark.parametrize(
    ("fn", "shapes", "specs"),
    [
        (lambda x: 2 * x, ((256, 512),), ((P("x", "y"),), P())),
        (lambda x: 2 * x, ((256, 512),), ((P("y", None),), P(None, "y"))),
        (lambda x, w: x @ w, ((256, 512), (512, 512)), ((P(None, "y"), P("y", None)), P())),
    ],
    ids=["all-gather", "all-to-all", "all-reduce"],
)
def test_devices_send_each_other_float32_for_bfloat16(fn: Callable[..., Any], shapes: Any, specs: Any) -> None:
    mesh, by = device_mesh(x=2, y=4), measured_model("cpu-2core-intel.json")  # alike on every host
    wide, narrow = (
        plan(fn, [S(shape, dtype) for shape in shapes], mesh, in_specs=specs[0], out_specs=specs[1], cost_model=by)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    found = audit(narrow)
    assert found.fidelity == 1.0, found.report()
    assert found.memory_ratio == pytest.approx(1.0, rel=0.02)
    assert narrow.prediction.communication_seconds == pytest.approx(wide.prediction.communication_seconds, rel=0.05)


def test_problem_and_prediction_agree_on_what_that_takes() -> None:
    case = Case("halves", _residual, tuple(jnp.ones(shape, jnp.bfloat16) for shape in (X, W, V)))
    for assignment in random_assignments(priced_on(case, device_mesh(x=2, y=4)), 8, case.name):
        problem = assignment.priced.problem.evaluate(assignment.picks).cost
        said = predict(assignment, (None,))
        assert said.compute_seconds + said.communication_seconds == pytest.approx(problem - assignment.shared_seconds())
