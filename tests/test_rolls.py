"""Rolls are one op, which hands what crosses a border to the neighbour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, floats
from forced import bytes_by_kind, device_mesh, differences, priced_on, random_assignments, run_as_assigned
from jax import lax
from jax.sharding import PartitionSpec

from executor import audit, check
from planner import plan
from planner.graph import Graph
from planner.jaxpr import build_graph
from planner.predict import predict
from planner.trace import trace

P = PartitionSpec
X = floats(16, 24)
MESHES = (device_mesh(x=2, y=4), device_mesh(a=2, b=2, c=2), device_mesh(x=8))


def rolls_of(fn: Callable[..., Any], *args: Any) -> list[tuple[int, int]]:
    """Dimension and shift of each roll in the graph, which has no other op that moves elements."""
    graph: Graph = build_graph(trace(fn, args))
    ops = [op for op, _ in graph.walk()]
    assert not {op.name for op in ops} & {"slice", "split", "concatenate", "pad"}
    return [(op.params["dimension"], op.params["shift"]) for op in ops if op.name == "roll"]


def halves_exchanged(x: jax.Array) -> jax.Array:
    left, right = jnp.split(x, 2, axis=1)
    return jnp.concatenate([right, left], axis=1)


@pytest.mark.parametrize(
    ("fn", "rolls"),
    [
        (lambda x: jnp.roll(x, 1, axis=0), [(0, 1)]),
        (lambda x: jnp.roll(x, -1, axis=1), [(1, 23)]),
        (lambda x: jnp.roll(x, (2, 3), axis=(0, 1)), [(0, 2), (1, 3)]),
        (lambda x: jnp.concatenate([x[3:], x[:3]]), [(0, 13)]),
        (halves_exchanged, [(1, 12)]),
        (lambda x: jnp.roll(x, (0, -2), axis=(0, 1)), [(1, 22)]),
        (lambda x: jnp.roll(x, 16, axis=0) + x[:], []),
        (jnp.fft.fftshift, [(0, 8), (1, 12)]),
        (jax.grad(lambda x: (jnp.roll(x, 1, axis=0) * X).sum()), [(0, 15)]),
        (jax.grad(lambda x: (jnp.roll(x, -5, axis=1) * X).sum()), [(1, 5)]),
    ],
)
def test_rolls_and_their_gradients_are_found(fn: Callable[..., Any], rolls: list[tuple[int, int]]) -> None:
    assert rolls_of(fn, X) == rolls


def kept_part(x: jax.Array) -> Any:
    part = x[3:]
    return jnp.concatenate([part, x[:3]]), part


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: jnp.concatenate([x[3:], x[:4]])[:16], id="overlapping"),
        pytest.param(lambda x: jnp.concatenate([x[3:], x[1:4]]), id="one missing, one twice"),
        pytest.param(lambda x: jnp.concatenate([x[:3], x[3:]]), id="in their own order"),
        pytest.param(lambda x: jnp.concatenate([x[3:], (x + 1)[:3]]), id="of two arrays"),
        pytest.param(lambda x: jnp.concatenate([x[1::2], x[::2]]), id="every other"),
        pytest.param(lambda x: jnp.concatenate([x[3:, ::-1], x[:3, ::-1]]), id="reversed"),
        pytest.param(lambda x: jnp.concatenate([x[3:, 1:], x[:3, 1:]]), id="cut along another dimension"),
        pytest.param(lambda x: jnp.pad(x[:3], ((13, 0), (0, 0)), constant_values=1) + jnp.pad(x[3:], ((0, 3), (0, 0))),
                     id="ones around"),
        pytest.param(lambda x: jnp.pad(x[:3], ((12, 1), (0, 0))) + jnp.pad(x[3:], ((0, 3), (0, 0))), id="one overlaps"),
        pytest.param(kept_part, id="read otherwise too"),
    ],
)  # fmt: skip
def test_what_is_none_stays_and_is_right(fn: Callable[..., Any]) -> None:
    graph = build_graph(trace(fn, (X,)))
    assert "roll" not in {op.name for op, _ in graph.walk()}
    assert check(plan(fn, (X,), MESHES[0], in_specs=P("x")), (X,)).passed


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: "x".join(map(str, mesh.shape.values())))
@pytest.mark.parametrize("shift", [1, -1, 2, 3, 8, 11])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_layout_gives_the_same_and_moves_what_it_says(mesh: Any, shift: int, axis: int) -> None:
    """Forwards and backwards, within a loop and outside of one."""

    def fn(x: jax.Array) -> Any:
        rolled = jnp.roll(x, shift, axis)
        return rolled, lax.fori_loop(0, 3, lambda _, y: y * 2 + jnp.roll(y, -shift, axis), x)

    case = Case(f"roll {shift} along {axis}", fn, (X,))
    assignments = random_assignments(priced_on(case, mesh), 12, case.name)
    run = run_as_assigned(assignments, mesh, case.args)
    wanted = jax.tree.leaves(jax.jit(fn)(X))
    for found in run.results:
        assert not differences(found, wanted)
    predicted = bytes_by_kind(
        one for assignment in assignments for one in predict(assignment, (None, None)).collectives
    )
    assert run.communicated == pytest.approx(predicted)


def test_a_simulation_exchanges_borders_forwards_and_backwards() -> None:
    """Of a stencil on a large grid nothing else is communicated."""

    def simulated(u: jax.Array) -> jax.Array:
        def step(u: jax.Array, _: None) -> tuple[jax.Array, None]:
            around = sum(jnp.roll(u, by, axis) for axis in (0, 1) for by in (-1, 1))
            return u + np.float32(0.1) * (around - 4 * u), None

        return (lax.scan(step, u, None, length=4)[0] ** 2).sum()

    grid = jax.random.uniform(jax.random.key(0), (512, 512))
    planned = plan(jax.grad(simulated), (grid,), MESHES[2])
    found = audit(planned)
    assert found.fidelity == 1.0
    assert {one.kind for one in found.compiled} == {"collective-permute"}
    assert found.compiled_bytes == 2 * 2 * 4 * grid[0].nbytes
    assert check(planned, (grid,)).passed
