"""Layouts: how one array lies over a mesh, as plain data.

A layout gives each dimension of an array the mesh axes that split it, major first:
`(("x",), ("y", "z"), ())` is `PartitionSpec("x", ("y", "z"), None)`. Layouts are tuples, so that they hash, compare and
serve as dictionary keys by the thousand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from planner.errors import InvalidSpec

Layout = tuple[tuple[str, ...], ...]


PartialLayout = tuple[tuple[str, ...] | None, ...]
"""A layout with dimensions that are left open, None."""


def replicated(rank: int) -> Layout:
    """The layout of an array of `rank` dimensions that every device holds whole."""
    return ((),) * rank


def axes_of(layout: Layout) -> tuple[str, ...]:
    """All mesh axes that the layout uses."""
    return tuple(axis for dim in layout for axis in dim)


def shard_count(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Into how many shards these mesh axes split a dimension."""
    return math.prod(sizes[axis] for axis in axes)


def shard_shape(shape: Sequence[int], layout: Layout, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """What one device holds of an array of `shape`."""
    return tuple(size // shard_count(axes, sizes) for size, axes in zip(shape, layout, strict=True))


def shard_elements(shape: Sequence[int], layout: Layout, sizes: Mapping[str, int]) -> int:
    """How many elements of an array of `shape` one device holds."""
    return math.prod(shard_shape(shape, layout, sizes))


def divides(shape: Sequence[int], layout: Layout, sizes: Mapping[str, int]) -> bool:
    """Whether every dimension splits evenly."""
    return all(size % shard_count(axes, sizes) == 0 for size, axes in zip(shape, layout, strict=True))


def to_spec(layout: Layout) -> PartitionSpec:
    """The layout as JAX writes it; trailing unsharded dimensions are kept out, as users leave them out."""
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in layout]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def from_spec(spec: PartitionSpec, shape: Sequence[int], sizes: Mapping[str, int], what: str) -> Layout:
    """The layout that a user's PartitionSpec asks for; mesh axes of one device split nothing and are left out.

    Args:
        spec: may be shorter than the array's rank; the missing dimensions are unsharded.
        shape: the array's global shape.
        sizes: mesh axis sizes by name.
        what: the array's name, for messages.

    Raises:
        InvalidSpec: too long, an open dimension, an unknown axis, an axis used twice, or a dimension that does not
            divide.
    """
    if not isinstance(spec, PartitionSpec):
        raise InvalidSpec(f"{what}: expected a jax.sharding.PartitionSpec or None, got {spec!r}")
    if PartitionSpec.UNCONSTRAINED in spec:
        raise InvalidSpec(
            f"{what}: {spec} leaves a dimension open with PartitionSpec.UNCONSTRAINED, which only "
            f"with_sharding_constraint may; name its mesh axes, or None to keep it whole"
        )
    if len(spec) > len(shape):
        raise InvalidSpec(f"{what}: {spec} has {len(spec)} entries for an array of shape {tuple(shape)}")
    entries = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec]
    layout = tuple(entries) + ((),) * (len(shape) - len(entries))
    used = axes_of(layout)
    for axis in used:
        if axis not in sizes:
            raise InvalidSpec(f"{what}: {spec} names the mesh axis {axis!r}, the mesh has {', '.join(sizes)}")
        if used.count(axis) > 1:
            raise InvalidSpec(f"{what}: {spec} names the mesh axis {axis!r} twice")
    for dim, (size, axes) in enumerate(zip(shape, layout, strict=True)):
        count = shard_count(axes, sizes)
        if size % count:
            raise InvalidSpec(
                f"{what}: {spec} splits dimension {dim} of size {size} into {count} shards ({' x '.join(axes)}), "
                f"which does not divide; pad the array or choose another PartitionSpec"
            )
    return tuple(tuple(axis for axis in axes if sizes[axis] > 1) for axes in layout)
