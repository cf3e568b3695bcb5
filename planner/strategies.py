"""Strategies: which mesh axis splits which factor. One function enumerates them for every primitive and value."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.layout import Layout, shard_count

Dims = tuple[tuple[int, ...], ...]
"""The factors, by index, that make up each dimension of a value; major first."""


@dataclass(frozen=True)
class Strategy:
    """The mesh axes on each factor of a node, and where a contraction's result is scattered.

    Attributes:
        axes: per factor, in mesh order; empty where the factor stays whole.
        scatter: the factor over which a reduced result is scattered, and the axes of the reduction (a reduce-scatter
            in place of an all-reduce); or None.
    """

    axes: tuple[tuple[str, ...], ...]
    scatter: tuple[int, tuple[str, ...]] | None = None

    def layout(self, dims: Dims, result: bool = False) -> Layout:
        """The layout of a value whose dimensions are these factors; of a result, after any scattering."""
        return tuple(
            tuple(axis for factor in dim for axis in self._on(factor, result and factor == dim[-1])) for dim in dims
        )

    def _on(self, factor: int, result: bool) -> tuple[str, ...]:
        if result and self.scatter is not None and self.scatter[0] == factor:
            return self.axes[factor] + self.scatter[1]
        return self.axes[factor]

    def axes_on(self, factors: Sequence[int]) -> tuple[str, ...]:
        """The mesh axes on any of these factors."""
        return tuple(axis for factor in factors for axis in self.axes[factor])


def enumerate_strategies(
    sizes: Sequence[int],
    mesh: Mapping[str, int],
    values: Sequence[Dims],
    scatter_onto: Sequence[int],
    reduced: Sequence[int],
) -> tuple[Strategy, ...]:
    """Every way to give each mesh axis to one factor, or to none, that divides evenly and can be written as a spec.

    An axis of one device is given to none.

    Args:
        sizes: size of each factor.
        mesh: mesh axis sizes by name; axes on one factor keep this order.
        values: the dimensions of all values of the node, as factors. Of a dimension of several factors, a minor one
            can be split only where all factors major to it are split to the end.
        scatter_onto: factors of the result over which a reduction may be scattered; empty where the backend makes no
            reduce-scatter.
        reduced: the factors that are summed over.
    """
    compound = {dim for dims in values for dim in dims if len(dim) > 1}
    result = []
    factors = range(-1, len(sizes))
    for choice in itertools.product(*(factors if count > 1 else (-1,) for count in mesh.values())):
        axes = tuple(
            tuple(axis for axis, factor in zip(mesh, choice, strict=True) if factor == index)
            for index in range(len(sizes))
        )
        counts = [shard_count(names, mesh) for names in axes]
        if any(size % count for size, count in zip(sizes, counts, strict=True)):
            continue
        if not all(_tiles(dim, sizes, counts) for dim in compound):
            continue
        result.append(Strategy(axes))
        over = tuple(axis for factor in reduced for axis in axes[factor])
        if over:
            result.extend(
                Strategy(axes, (factor, over))
                for factor in scatter_onto
                if sizes[factor] % (counts[factor] * shard_count(over, mesh)) == 0
            )
    return tuple(result)


def _tiles(dim: tuple[int, ...], sizes: Sequence[int], counts: Sequence[int]) -> bool:
    """Whether the shards of a dimension made of several factors are contiguous."""
    whole = True
    for factor in dim:
        if counts[factor] > 1 and not whole:
            return False
        whole = whole and counts[factor] == sizes[factor]
    return True
