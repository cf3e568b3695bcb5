"""A user's own function as one op with a rule of its own."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, floats
from forced import described, device_mesh, differences, priced_on, random_assignments, run_as_assigned
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from planner import plan, sharding_rule

Array = jax.Array
MESH = device_mesh(x=2, y=4)
X, W = floats(16, 32), floats(32, 8) / 32


@sharding_rule("m k, k n -> m n", reduce="k", flops=lambda operands, results: 2.0 * operands[0].size * 8)
def matmul(x: Array, w: Array) -> Array:
    return x @ w


@sharding_rule("... rows width, -> ... rows width, ... rows", replicate="width")
def normal(tree: dict[str, Array], scale: Array, *, shift: float) -> dict[str, Array]:
    """Takes and gives trees; a Pallas kernel, which the compiler cannot split."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] / jnp.sqrt(jnp.mean(x_ref[...] ** 2, axis=-1, keepdims=True))

    x = tree["x"]
    made = pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
    return {"normal": made * scale + np.float32(shift), "total": x.sum(axis=-1)}


def dense(x: Array, w: Array) -> Array:
    return jnp.tanh(matmul(jnp.sin(x), w))


def looped(x: Array, w: Array) -> tuple[Array, Array]:
    def body(x: Array, _: None) -> tuple[Array, Array]:
        made = normal({"x": x}, np.float32(2), shift=0.5)
        return jnp.tanh(made["normal"]), made["total"]

    return jax.lax.scan(body, x, None, length=3)


CASES = [
    Case("dense", dense, (X, W)),
    Case("looped", looped, (X, W)),
    Case("vmapped", jax.vmap(jax.vmap(matmul, (0, None)), (None, 0)), (floats(2, 16, 32), floats(4, 32, 8))),
    Case("gradient", jax.grad(lambda x, w: dense(x, w).sum(), argnums=(0, 1)), (X, W)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_strategy_computes_the_same(case: Case) -> None:
    assignments = random_assignments(priced_on(case, MESH), 12, case.name)
    wanted = jax.tree.leaves(jax.jit(case.fn)(*case.args))
    for assignment, found in zip(assignments, run_as_assigned(assignments, MESH, case.args).results, strict=True):
        assert not differences(found, wanted), described(assignment)


def test_it_runs_on_shards_and_sums_what_is_reduced() -> None:
    planned = plan(dense, (X, W), MESH, in_specs=(P("x", "y"), P("y")), out_specs=P("x"))
    (collective,) = planned.prediction.collectives
    assert (collective.kind, collective.axes, collective.bytes) == ("all-reduce", ("y",), 8 * 8 * 4)
    compiled = planned.jit().lower(X, W).compile().as_text()
    assert len(re.findall(r" all-reduce\(", compiled)) == 1
    assert "f32[8,8]" in compiled


def test_a_pallas_kernel_is_not_gathered_for() -> None:
    spec = P(("x", "y"))
    planned = plan(looped, (X, W), MESH, in_specs=(spec, None), out_specs=(spec, P(None, ("x", "y"))), unknown="error")
    assert not planned.prediction.collectives
    assert "all-gather" not in planned.jit().lower(X, W).compile().as_text()


def test_the_rule_is_kept_under_vmap() -> None:
    jaxpr = jax.make_jaxpr(jax.vmap(jax.vmap(matmul, (0, None)), (None, 0)))(floats(2, 16, 32), floats(4, 32, 8))
    (call,) = jaxpr.eqns
    ruled = call.params["ruled"]
    assert str(ruled.rule([v.aval for v in call.invars], [v.aval for v in call.outvars])).endswith("{reduce: k}")
    assert ruled.flops([v.aval for v in call.invars], []) == (2 * 4) * (2.0 * 16 * 32 * 8)


def test_a_pattern_that_does_not_fit_is_an_error_at_the_call() -> None:
    with pytest.raises(ValueError, match=r'"m -> m": operand 0 has shape \(16, 32\), but 1 dimensions are named'):
        sharding_rule("m -> m")(lambda x: x)(X)
    with pytest.raises(ValueError, match=r"names 1 operands, but the op has 2"):
        sharding_rule("m n -> m n")(lambda x, y: x)(X, X)


def test_where_it_was_written_is_the_users_line() -> None:
    planned = plan(dense, (X, W), MESH, in_specs=(P("x", "y"), P("y")), out_specs=P("x"))
    assert re.fullmatch(r"test_sharding_rule\.py:\d+", planned.prediction.collectives[0].source)
