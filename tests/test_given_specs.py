"""What is asked of a plan is kept: layouts of arguments, results and constraints, and donation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import floats
from forced import device_mesh
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from layer import BIG, EXPLICIT, MESH, assert_same
from programs import PROGRAMS, X
from test_reshard import layouts_of

from planner import plan
from planner.layout import to_spec
from planner.trace import trace

P = PartitionSpec


def test_given_specs_are_kept_exactly() -> None:
    def fn(x: jax.Array, pair: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        return x @ pair["a"], {"b": pair["b"] * 2, "c": x.sum(axis=0)}

    args = (floats(64, 32), {"a": floats(32, 16), "b": floats(64, 8)})
    in_specs = (P(("y", "x")), {"a": P(None, "x"), "b": None})
    out_specs = (P("x", "y"), {"b": P(None, "y"), "c": P(("x", "y"))})
    planned = plan(fn, args, MESH, in_specs=in_specs, out_specs=out_specs)
    assert planned.in_specs[0] == in_specs[0]
    assert planned.in_specs[1]["a"] == in_specs[1]["a"]
    assert planned.out_specs == out_specs
    result = planned.jit()(*args)
    assert_same(result, fn(*args))
    for array, sharding in zip(jax.tree.leaves(result), jax.tree.leaves(planned.out_shardings), strict=True):
        assert array.sharding == sharding


def test_a_prefix_covers_what_is_below_it() -> None:
    def fn(state: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {name: array + x for name, array in state.items()}

    args = ({"a": floats(16, 8), "b": floats(16, 8)}, floats(16, 8))
    planned = plan(fn, args, MESH, in_specs=(P("x"), None), out_specs=P("y"))
    assert planned.in_specs[0] == {"a": P("x"), "b": P("x")}
    assert planned.out_specs == {"a": P("y"), "b": P("y")}
    assert_same(planned.jit()(*args), fn(*args))


def random_specs(avals: Sequence[jax.ShapeDtypeStruct], mesh: Mesh, generator: random.Random) -> list[Any]:
    """For each array a spec that divides it, or None. Dimensions of no elements are not split, for nothing would be."""
    sizes = dict(mesh.shape)
    options = [sorted(set(layouts_of(aval.shape, sizes))) if 0 not in aval.shape else [] for aval in avals]
    return [to_spec(generator.choice(some)) if some and generator.random() < 0.6 else None for some in options]


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning", "ignore:Some donated buffers")
@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_asked_for(seed: int) -> None:
    """Random programs, meshes, specs and donation: the numbers are right, and what was given is kept."""
    generator = random.Random(seed)
    case, mesh = generator.choice(PROGRAMS), generator.choice((MESH, EXPLICIT, device_mesh(a=2, b=2, c=2)))
    traced = trace(case.fn, case.args)
    ins, outs = (random_specs(avals, mesh, generator) for avals in (traced.in_avals, traced.out_avals))
    planned = plan(
        case.fn,
        case.args,
        mesh,
        in_specs=jax.tree.unflatten(traced.in_tree, ins),
        out_specs=jax.tree.unflatten(traced.out_tree, outs),
        donate_argnums=[argnum for argnum in range(len(case.args)) if generator.random() < 0.3],
    )
    result = planned.jit()(*map(jnp.array, case.args))
    assert_same(result, jax.jit(case.fn)(*case.args))
    for given, chosen in ((ins, planned.in_specs), (outs, planned.out_specs)):
        found = jax.tree.leaves(chosen, is_leaf=lambda node: isinstance(node, P))
        assert all(want in (None, have) for want, have in zip(given, found, strict=True))
    for array, sharding in zip(jax.tree.leaves(result), jax.tree.leaves(planned.out_shardings), strict=True):
        assert array.sharding.is_equivalent_to(sharding, array.ndim)


@pytest.mark.parametrize("spec", [P("x", "y"), P(None, ("x", "y")), P("y", P.UNCONSTRAINED), P()])
def test_constraints_inside_are_kept(spec: PartitionSpec) -> None:
    """A result that nobody asked for otherwise lies as it was made: as the constraint has it."""

    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.lax.with_sharding_constraint(x @ w, NamedSharding(MESH, spec))
        return jnp.sin(y) @ w, y

    args = (floats(48, 64), floats(64, 64))
    planned = plan(fn, args, MESH)
    result = planned.jit()(*args)
    assert_same(result, jax.jit(fn)(*args))
    pairs = zip(padded(planned.out_specs[1]), padded(spec), strict=True)
    kept = [want if want is P.UNCONSTRAINED else have for have, want in pairs]
    assert kept == list(padded(spec))
    assert result[1].sharding.is_equivalent_to(planned.out_shardings[1], 2)


def padded(spec: PartitionSpec) -> tuple[Any, ...]:
    return (*spec, *[None] * (2 - len(spec)))


def test_constraint_on_a_bare_spec_under_set_mesh() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x * 2, P("x", "y")) + 1

    with jax.set_mesh(MESH):
        planned = plan(fn, (floats(64, 64),), MESH)
        assert_same(planned.jit()(floats(64, 64)), floats(64, 64) * 2 + 1)


# Donation


def test_donated_arrays_are_taken() -> None:
    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return state + x.sum(), x.sum()

    planned = plan(step, (BIG, X), MESH, donate_argnums=0)
    state, x = planned.place(BIG, X)
    result, _ = planned.jit()(state, x)
    assert state.is_deleted()
    assert not x.is_deleted()
    assert_same(result, BIG + X.sum())
    kept = plan(step, (BIG, X), MESH)
    state, x = kept.place(BIG, X)
    kept.jit()(state, x)
    assert not state.is_deleted()


def test_donation_counts_in_memory() -> None:
    def step(state: jax.Array) -> jax.Array:
        return state * 2

    for specs in (None, P(("x", "y"))):  # where both are given alike as well
        kept, donated = (
            plan(step, (BIG,), MESH, in_specs=specs, out_specs=specs, donate_argnums=argnums).prediction.peak_bytes
            for argnums in ((), (0,))
        )
        assert donated == pytest.approx(kept / 2)
