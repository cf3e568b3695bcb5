"""From one layout to another by elementary steps, each of which the compiler turns into one collective or a slice.

Asked to go from A to B at once, XLA often gathers everything; asked for one elementary step at a time it does just that
step. So a change of layout is a chain of `slice` (free of communication), `all-to-all`, `collective-permute` and
`all-gather` steps, and the planner prices the very chain that is emitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from costmodel.model import MeshCost
from planner.layout import Layout, axes_of, divides, shard_count

StepKind = Literal["slice", "all-to-all", "collective-permute", "all-gather"]
Mesh = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Step:
    """One elementary change of layout.

    Attributes:
        axes: the mesh axes that the collective runs over; empty for a slice.
        layout: the layout after it.
        shards: into how many parts the side of which a device holds more is split; for a slice, the result.
        strided: whether an all-gather interleaves what it gathers, which takes copies on some backends.
    """

    kind: StepKind
    axes: tuple[str, ...]
    layout: Layout
    shards: int
    strided: bool = False


def chains(shape: Sequence[int], source: Layout, target: Layout, mesh: Mesh) -> tuple[tuple[Step, ...], ...]:
    """The chains worth pricing: gather what differs and slice, or move axes where they can be moved.

    Args:
        shape: the array's global shape.
        source, target: layouts that divide it.
        mesh: (axis, size) pairs.
    """
    gathering, moving = _gathering(source, target, mesh), _moving(source, target, mesh)
    sizes = dict(mesh)
    if moving == gathering or not all(divides(shape, step.layout, sizes) for step in moving):
        return (gathering,)
    return gathering, moving


class _Walk:
    """A layout that is changed step by step."""

    def __init__(self, layout: Layout, mesh: Mesh):
        self.layout, self.sizes = layout, dict(mesh)
        self.steps: list[Step] = []

    def to(self, kind: StepKind, axes: Sequence[str], layout: Layout) -> None:
        if layout != self.layout:
            strided = kind == "all-gather" and layout[0] == self.layout[0]
            self.steps.append(Step(kind, tuple(axes), layout, shard_count(axes_of(layout), self.sizes), strided))
            self.layout = layout

    def with_dim(self, dim: int, axes: Sequence[str]) -> Layout:
        return (*self.layout[:dim], tuple(axes), *self.layout[dim + 1 :])


@lru_cache(maxsize=1 << 18)
def _gathering(source: Layout, target: Layout, mesh: Mesh) -> tuple[Step, ...]:
    """Gather each dimension back to what it has in common with the target, then slice."""
    walk = _Walk(source, mesh)
    for dim, (have, want) in enumerate(zip(source, target, strict=True)):
        common = 0
        while common < min(len(have), len(want)) and have[common] == want[common]:
            common += 1
        walk.to("all-gather", have[common:], walk.with_dim(dim, have[:common]))
    walk.to("slice", (), target)
    return tuple(walk.steps)


@lru_cache(maxsize=1 << 18)
def _moving(source: Layout, target: Layout, mesh: Mesh) -> tuple[Step, ...]:
    """One permutation of devices if that will do; else slice by new axes, move some elsewhere, gather the rest.

    All-to-all and all-gather act on the minor axes of a dimension, so a permutation of devices brings them there first.
    The layouts on the way split dimensions more than either end does, and need not divide every array.
    """
    walk = _Walk(source, mesh)
    counts = [[shard_count(axes, walk.sizes) for axes in layout] for layout in (source, target)]
    if counts[0] == counts[1]:
        walk.to("collective-permute", _moved(source, target, walk.sizes), target)
        return tuple(walk.steps)
    held, wanted = set(axes_of(source)), set(axes_of(target))
    goal = {axis: dim for dim, axes in enumerate(target) for axis in axes}

    def arranged(dim: int) -> tuple[str, ...]:
        """The dimension's axes: those that stay as wanted, then those to gather, then those to move elsewhere."""
        axes = walk.layout[dim]
        staying = tuple(axis for axis in target[dim] if axis in axes)
        return *staying, *(a for a in axes if a not in wanted), *(a for a in axes if goal.get(a, dim) != dim)

    def arrange(dims: Sequence[int]) -> None:
        layout = tuple(arranged(dim) if dim in dims else axes for dim, axes in enumerate(walk.layout))
        walk.to("collective-permute", _moved(walk.layout, layout, walk.sizes), layout)

    new = (tuple(axis for axis in want if axis not in held) for want in target)
    walk.to("slice", (), tuple((*have, *added) for have, added in zip(source, new, strict=True)))
    while leaving := [dim for dim, axes in enumerate(walk.layout) if any(goal.get(a, dim) != dim for a in axes)]:
        arrange(leaving)
        giver = leaving[0]
        axis = walk.layout[giver][-1]
        moved = list(walk.layout)
        moved[giver], moved[goal[axis]] = moved[giver][:-1], (*moved[goal[axis]], axis)
        walk.to("all-to-all", (axis,), tuple(moved))
    arrange(range(len(source)))
    for dim, want in enumerate(target):
        walk.to("all-gather", walk.layout[dim][len(want) :], walk.with_dim(dim, want))
    return tuple(walk.steps)


def _moved(before: Layout, after: Layout, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which data goes to other devices: those that come to split another range of indices."""
    old, new = _strides(before, sizes), _strides(after, sizes)
    return tuple(axis for axis in sizes if old.get(axis) != new.get(axis))


def _strides(layout: Layout, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Each axis' dimension, and how many shards lie between neighbours along the axis."""
    return {
        axis: (dim, shard_count(axes[position + 1 :], sizes))
        for dim, axes in enumerate(layout)
        for position, axis in enumerate(axes)
    }


class Resharder:
    """Prices changes of layout on one mesh, and picks the chain; remembers what it has computed."""

    def __init__(self, cost: MeshCost):
        self.cost = cost
        self.mesh: Mesh = tuple(cost.axis_sizes.items())
        self._paths: dict[tuple[tuple[int, ...], int, Layout, Layout], tuple[Step, ...]] = {}
        self._tables: dict[int, _Table] = {}
        self._matrices: dict[object, np.ndarray] = {}

    def path(self, shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The cheapest chain of steps from `source` to `target`."""
        key = (shape, itemsize, source, target)
        if key not in self._paths:
            elements = math.prod(shape)

            def seconds(steps: tuple[Step, ...]) -> float:
                return sum(float(self.seconds(step, elements / step.shards, itemsize)) for step in steps)

            self._paths[key] = min(chains(shape, source, target, self.mesh), key=seconds)
        return self._paths[key]

    def seconds(self, step: Step, elements: float | np.ndarray, itemsize: int) -> np.ndarray:
        """Seconds of a step of which one device holds so many elements on the larger side.

        XLA's CPU collectives gather along the dimension that is outermost in memory: for another one, what is sent and
        what arrives are transposed. Together that takes what transposing the larger side does, where all of it is read.
        """
        nbytes = np.asarray(elements) * itemsize
        if step.kind == "slice":
            return self.cost.compute_seconds(0.0, 2 * nbytes, "float32")
        seconds = np.asarray(self.cost.exposed_seconds(step.kind, step.axes, nbytes))
        if not (step.strided and self.cost.backend == "cpu"):
            return seconds
        return seconds + self.cost.compute_seconds(0.0, 2 * nbytes, "float32", {"rearrange": np.asarray(elements)})

    def matrix(
        self, shape: tuple[int, ...], itemsize: int, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> np.ndarray:
        """Seconds from every source to every target layout, `[len(sources), len(targets)]`."""
        key = (shape, itemsize, tuple(sources), tuple(targets))
        if key not in self._matrices:
            table = self._tables.setdefault(len(shape), _Table(self.mesh))
            pairs = table.pairs(sources, targets)
            self._matrices[key] = table.seconds(shape, itemsize, self)[pairs]
        return self._matrices[key]


class _Table:
    """The chains between layouts of one rank, ready to be priced for arrays of any shape.

    Each pair of layouts has two cells, gathering and moving. For steps that cost alike there are the cells that such a
    step is in, with the shards that the array is then split into; by layout, the pairs that visit it.
    """

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._layouts: dict[Layout, int] = {}
        self._pairs = np.zeros((0, 0), dtype=np.int64)
        self._count = 0
        self._steps: dict[tuple[StepKind, tuple[str, ...], bool], tuple[Step, list[tuple[int, int]]]] = {}
        self._visits: dict[Layout, list[int]] = {}

    def pairs(self, sources: Sequence[Layout], targets: Sequence[Layout]) -> np.ndarray:
        """`[len(sources), len(targets)]` numbers of the pairs; chains that are new are worked out."""
        rows, columns = (
            [self._layouts.setdefault(layout, len(self._layouts)) for layout in side] for side in (sources, targets)
        )
        grown = len(self._layouts) - len(self._pairs)
        self._pairs = np.pad(self._pairs, (0, grown), constant_values=-1)
        for row, column in np.argwhere(self._pairs[np.ix_(rows, columns)] < 0):
            self._pairs[rows[row], columns[column]] = self._count
            self._add(sources[row], targets[column])
        return self._pairs[np.ix_(rows, columns)]

    def _add(self, source: Layout, target: Layout) -> None:
        gathering, moving = _gathering(source, target, self._mesh), _moving(source, target, self._mesh)
        for option, chain in enumerate((gathering, moving)):
            for step in chain:
                alike = self._steps.setdefault((step.kind, step.axes, step.strided), (step, []))
                alike[1].append((2 * self._count + option, step.shards))
        for step in moving:
            self._visits.setdefault(step.layout, []).append(self._count)
        self._count += 1

    def seconds(self, shape: tuple[int, ...], itemsize: int, resharder: Resharder) -> np.ndarray:
        """Seconds of the cheaper chain that divides the array, for every pair there is."""
        elements, sizes = math.prod(shape), dict(self._mesh)
        seconds = np.zeros(2 * self._count)
        for step, entries in self._steps.values():
            cells, shards = np.array(entries).T
            np.add.at(seconds, cells, resharder.seconds(step, elements / shards, itemsize))
        gathering, moving = seconds.reshape(-1, 2).T
        for layout, pairs in self._visits.items():
            if not divides(shape, layout, sizes):
                moving[pairs] = np.inf
        return np.minimum(gathering, moving)
