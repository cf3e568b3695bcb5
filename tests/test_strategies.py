"""Strategies: all that divide and can be written as a spec, and none else, against brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.strategies import Dims, Strategy, enumerate_strategies

MESHES = ({"x": 8}, {"x": 2, "y": 4}, {"a": 2, "b": 2, "c": 2})


def owners(sizes: Sequence[int], dim: tuple[int, ...], axes: Sequence[tuple[str, ...]], mesh: dict[str, int]) -> bool:
    """Whether every device's part of a dimension of several factors is one contiguous run of it."""
    counts = [math.prod(mesh[axis] for axis in axes[factor]) for factor in dim]
    parts: dict[tuple[int, ...], list[int]] = {}
    for position, index in enumerate(itertools.product(*(range(sizes[factor]) for factor in dim))):
        part = tuple(i * count // sizes[factor] for i, count, factor in zip(index, counts, dim, strict=True))
        parts.setdefault(part, []).append(position)
    return all(run == list(range(run[0], run[-1] + 1)) for run in parts.values())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from((2, 3, 4, 8)), min_size=1, max_size=3),
    st.sampled_from(MESHES),
    st.sampled_from((((0,), (1,)), ((0, 1),), ((0, 1), (2,)), ((0, 1, 2),), ((2, 0), (1,)))),
)
def test_all_that_divide_and_are_contiguous(sizes: list[int], mesh: dict[str, int], dims: Dims) -> None:
    dims = tuple(tuple(factor for factor in dim if factor < len(sizes)) for dim in dims)
    found = enumerate_strategies(sizes, mesh, [dims], (), ())
    assert len(set(found)) == len(found)
    wanted = set()
    for choice in itertools.product([None, *range(len(sizes))], repeat=len(mesh)):
        given_to = zip(mesh, choice, strict=True)
        pairs = list(given_to)
        axes = tuple(tuple(axis for axis, where in pairs if where == factor) for factor in range(len(sizes)))
        counts = [math.prod(mesh[axis] for axis in names) for names in axes]
        if any(size % count for size, count in zip(sizes, counts, strict=True)):
            continue
        if all(owners(sizes, dim, axes, mesh) for dim in dims):
            wanted.add(axes)
    assert {strategy.axes for strategy in found} == wanted
    assert ((),) * len(sizes) in wanted, "replication is always one"


def test_scatter_is_offered_where_something_is_reduced() -> None:
    m, n, k = 0, 1, 2
    found = enumerate_strategies((8, 8, 8), {"x": 8}, [((m,), (k,)), ((k,), (n,)), ((m,), (n,))], (m, n), (k,))
    scattered = {strategy.scatter for strategy in found if strategy.axes[k]}
    assert scattered == {None, (m, ("x",)), (n, ("x",))}
    assert all(strategy.scatter is None for strategy in found if not strategy.axes[k])


def test_scatter_divides() -> None:
    found = enumerate_strategies((2, 8, 8), {"x": 8}, [((0,), (1,))], (0, 1), (2,))
    assert {strategy.scatter for strategy in found if strategy.scatter} == {(1, ("x",))}


@pytest.mark.parametrize("result", [False, True])
def test_layouts_of_operands_and_results(result: bool) -> None:
    strategy = Strategy((("x",), (), ("y",)), (1, ("y",)))
    assert strategy.layout(((0,), (1,)), result) == (("x",), ("y",) if result else ())
    assert strategy.layout(((2,), (0,)), result) == (("y",), ("x",))
    assert strategy.layout(((), (0, 2)), result) == ((), ("x", "y"))


def test_axes_on() -> None:
    strategy = Strategy((("x",), (), ("y", "z")))
    assert strategy.axes_on((0, 2)) == ("x", "y", "z")
    assert strategy.axes_on((1,)) == ()
