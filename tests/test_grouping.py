"""Which ops share a decision: those for which another layout between them could not pay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, Case, floats
from forced import device_mesh, priced_on
from jax import lax
from programs import PROGRAMS

from planner.decisions import REPLICATED, Decisions
from planner.graph import Value
from planner.grouping import splittable
from planner.rules import ShardingRule
from planner.strategies import Strategy

MESH = device_mesh(x=2, y=4)
X, W = floats(16, 32), floats(32, 32)


def decisions_of(fn: Callable[..., Any], *args: Any) -> Decisions:
    return priced_on(Case("", fn, args), MESH).decisions


def groups(decisions: Decisions) -> list[set[str]]:
    return [{member.op.name for member in node.members} for node in decisions.nodes if node.members]


def test_an_elementwise_chain_is_one_decision() -> None:
    assert groups(decisions_of(lambda x: jnp.exp(jnp.sin(x) * 2).T + 1, X)) == [
        {"sin", "mul", "exp", "transpose", "add"}
    ]


def test_contractions_stand_alone() -> None:
    found = groups(decisions_of(lambda x, w: jnp.tanh(x @ w) @ w, X, W))
    assert sorted(map(sorted, found)) == [["dot_general"], ["dot_general"], ["tanh"]]


def test_a_normalisation_is_one_decision() -> None:
    """Its mean lies inside: everything around it has the array's layout."""

    def normalise(x: jax.Array) -> jax.Array:
        x = jnp.sin(x)
        return (x - x.mean(axis=1, keepdims=True)) * 2

    (group,) = groups(decisions_of(normalise, X))
    assert {"sin", "reduce_sum", "sub", "mul"} <= group


def test_a_reduction_follows_the_array_it_covers() -> None:
    (group,) = groups(decisions_of(lambda x: jnp.sum(jnp.sin(x), axis=0), X))
    assert group == {"sin", "reduce_sum"}


def test_loops_have_borders() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        return lax.scan(lambda x, row: (jnp.tanh(x @ w), (x * row).sum()), x, X)

    kinds = [node.kind for node in decisions_of(fn, X, W).nodes]
    assert kinds.count("argument") == 2
    assert kinds.count("carry") == 1
    assert "invariant" in kinds


def test_bodies_count_as_often_as_they_run() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 7, lambda i, x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), x)

    weights = {name: node.weight for node in decisions_of(fn, X).nodes for name in {m.op.name for m in node.members}}
    assert weights["sin"] == pytest.approx(3.5)


def test_constants_are_not_decided() -> None:
    def fn(x: jax.Array) -> jax.Array:
        mask = jnp.tril(jnp.ones((32, 32), bool))
        return jnp.where(mask, x.T @ x, 0)

    decisions = decisions_of(fn, X)
    assert all(op.name != "iota" for node in decisions.nodes for op in (member.op for member in node.members))
    assert any(value.shape == (32, 32) for value in decisions.constant)


@pytest.mark.parametrize(
    ("pattern", "shapes", "replicate", "free"),
    [
        ("(a b) -> a b", ([(8,)], [(2, 4)]), "", "ab"),
        ("(a b) -> a b", ([(8,)], [(2, 4)]), "a", ""),
        ("(a b) -> a b", ([(8,)], [(2, 4)]), "b", "a"),
        ("(a b c) -> a b c", ([(64,)], [(4, 4, 4)]), "b", "a"),
        ("(a b) (b2 c) -> a b b2 c", ([(8, 6)], [(2, 4, 3, 2)]), "a b2", ""),
        ("a b -> b a", ([(1, 8)], [(8, 1)]), "", "b"),
    ],
)
def test_factors_that_may_be_split(
    pattern: str, shapes: tuple[list[tuple[int, ...]], list[tuple[int, ...]]], replicate: str, free: str
) -> None:
    """None that is minor to one that stays whole: its shards would not be contiguous."""
    rule = ShardingRule.parse(pattern, *shapes, replicate=replicate)
    assert splittable(rule) == tuple(free)


@pytest.mark.parametrize("case", [*CASES, *PROGRAMS], ids=lambda case: case.name)
def test_every_value_has_a_home_that_fits(case: Case) -> None:
    """Every strategy of every node gives each value that it lays out a layout of its rank, which divides it."""
    priced = priced_on(case, MESH)
    decisions, sizes = priced.decisions, priced.cost.axis_sizes
    for index, node in enumerate(decisions.nodes):
        assert all(size > 1 for size in node.sizes)
        assert len(set(priced.strategies[index])) == len(priced.strategies[index]) > 0
        assert Strategy(((),) * len(node.sizes)) in priced.strategies[index] or node.pinned is not None
    for value, home in decisions.homes.items():
        assert len(home.dims) == value.rank
        if home.node == REPLICATED:
            continue
        for strategy in priced.strategies[home.node]:
            for size, axes in zip(value.shape, strategy.layout(home.dims, result=True), strict=True):
                assert size % int(np.prod([sizes[axis] for axis in axes], dtype=int)) == 0
    for use in decisions.edges:
        assert isinstance(use.value, Value)
        assert len(use.dims) == use.value.rank
