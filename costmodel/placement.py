"""Where the axes of a logical mesh lie on the physical dimensions of a topology.

A dimension of size 8 can be split between mesh axes, say 2 × 4: the axis with stride 1 joins neighbours, the
one with stride 4 joins devices 0 and 4. An axis may have such a part, a `Segment`, on several dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# The parts of one dimension, innermost first: (mesh axis, size) each.
_Split = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Segment:
    """A mesh axis's part on one dimension: `size` devices, each `stride` places along `dim` from the next."""

    dim: int
    size: int
    stride: int


@dataclass(frozen=True)
class Placement:
    """The axes of a mesh on a topology.

    Attributes:
        axis_sizes: one per mesh axis.
        segments: for each mesh axis its parts, most significant first.
        exact: False where the axes do not nest into the dimensions, so that the segments are a stand-in for
            pricing.
    """

    axis_sizes: tuple[int, ...]
    segments: tuple[tuple[Segment, ...], ...]
    exact: bool = True


def row_major_placement(axis_sizes: tuple[int, ...], dim_sizes: tuple[int, ...]) -> Placement:
    """The placement of a mesh whose devices are numbered row-major, over the same count of devices."""
    axis_strides, dim_strides = _strides(axis_sizes), _strides(dim_sizes)
    segments, exact = [], True
    for size, stride in zip(axis_sizes, axis_strides, strict=True):
        overlaps = [
            (dim, max(stride, dim_stride), min(stride * size, dim_stride * dim_sizes[dim]))
            for dim, dim_stride in enumerate(dim_strides)
        ]
        overlaps = [(dim, low, high) for dim, low, high in overlaps if low < high]
        if all(high % low == 0 and low % dim_strides[dim] == 0 for dim, low, high in overlaps):
            parts = tuple(Segment(dim, high // low, low // dim_strides[dim]) for dim, low, high in overlaps)
        else:
            parts, exact = (Segment(overlaps[0][0], size, 1),), False
        segments.append(parts)
    return Placement(axis_sizes, tuple(segments), exact)


def all_placements(
    dim_sizes: tuple[int, ...], keys: Sequence[Hashable], ordered: Sequence[bool], max_axes: int
) -> tuple[Placement, ...]:
    """All placements of up to `max_axes` axes, up to symmetry; see `Topology.placements`.

    Args:
        keys: equal for dimensions that may be exchanged.
        ordered: per dimension, whether the order of its parts matters.
    """
    splits = [tuple(_splits(size, max_axes, order)) for size, order in zip(dim_sizes, ordered, strict=True)]
    found = {_canonical(combination, keys, ordered, max_axes) for combination in itertools.product(*splits)}
    placements = (_placement(combination) for combination in found)
    return tuple(sorted(placements, key=lambda p: (len(p.axis_sizes), p.axis_sizes, str(p.segments))))


def device_grid(placement: Placement, dim_sizes: tuple[int, ...]) -> np.ndarray:
    """Device numbers in the shape of the mesh."""
    if not placement.exact:
        return np.arange(math.prod(dim_sizes)).reshape(placement.axis_sizes)
    dim_strides = _strides(dim_sizes)
    grid = np.zeros((), dtype=int)
    for parts in placement.segments:
        along = np.zeros((), dtype=int)
        for part in parts:
            along = np.add.outer(along, np.arange(part.size) * part.stride * dim_strides[part.dim])
        grid = np.add.outer(grid, along.reshape(-1))
    return grid.reshape(placement.axis_sizes)


def _strides(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))


def _splits(size: int, axes: int, ordered: bool) -> Iterator[_Split]:
    """Every split of a dimension between the axes, at most one part each."""
    for sizes in _factorisations(size, axes):
        parts = tuple((axis, part) for axis, part in enumerate(sizes) if part > 1)
        yield from itertools.permutations(parts) if ordered else (parts,)


def _factorisations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every tuple of `count` positive integers with the product `number`, in all orders."""
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factorisations(number // first, count - 1))


def _canonical(
    splits: tuple[_Split, ...], keys: Sequence[Hashable], ordered: Sequence[bool], max_axes: int
) -> tuple[_Split, ...]:
    """The smallest of all renderings that differ by axis names or by exchanging equal dimensions."""
    return min(
        _exchange(tuple(_renamed(split, names, order) for split, order in zip(splits, ordered, strict=True)), keys)
        for names in itertools.permutations(range(max_axes))
    )


def _renamed(split: _Split, names: tuple[int, ...], ordered: bool) -> _Split:
    parts = tuple((names[axis], size) for axis, size in split)
    return parts if ordered else tuple(sorted(parts))


def _exchange(splits: tuple[_Split, ...], keys: Sequence[Hashable]) -> tuple[_Split, ...]:
    """The splits of dimensions with equal keys, sorted among themselves."""
    pools = {key: sorted(s for s, other in zip(splits, keys, strict=True) if other == key) for key in set(keys)}
    return tuple(pools[key].pop(0) for key in keys)


def _placement(splits: tuple[_Split, ...]) -> Placement:
    """The placement that the splits describe, its axes sorted outermost first."""
    parts_of: dict[int, list[Segment]] = {}
    for dim, split in enumerate(splits):
        stride = 1
        for axis, size in split:
            parts_of.setdefault(axis, []).append(Segment(dim, size, stride))
            stride *= size
    axes = sorted(parts_of.values(), key=lambda parts: [(part.dim, -part.stride) for part in parts])
    axes = axes or [[]]  # a single device is a mesh of one axis of size 1
    return Placement(
        tuple(math.prod(part.size for part in parts) for parts in axes), tuple(tuple(parts) for parts in axes)
    )
