"""From one layout to another by elementary steps, each of which the compiler turns into one collective or a slice.

Asked to go from A to B at once, XLA often gathers everything; asked for one elementary step at a time it does just that
step. So a change of layout is a chain of `slice` (free of communication), `all-to-all`, `collective-permute` and
`all-gather` steps, and the planner prices the very chain that is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from costmodel.model import MeshCost
from planner.layout import Layout, axes_of, shard_count, shard_elements

StepKind = Literal["slice", "all-to-all", "collective-permute", "all-gather"]
Mesh = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Step:
    """One elementary change of layout.

    Attributes:
        axes: the mesh axes that the collective runs over; empty for a slice.
        layout: the layout after it.
        elements: what one device holds of the larger side; for a slice, of the result.
    """

    kind: StepKind
    axes: tuple[str, ...]
    layout: Layout
    elements: int


def chains(
    shape: tuple[int, ...], source: Layout, target: Layout, mesh: Mesh
) -> tuple[tuple[Step, ...], ...]:
    """The chains worth pricing: move axes where they can be moved, or gather what differs and slice.

    Args:
        shape: the array's global shape.
        source, target: layouts that divide it.
        mesh: (axis, size) pairs.
    """
    if source == target:
        return ((),)
    moving, gathering = _moving(shape, source, target, mesh), _gathering(shape, source, target, mesh)
    return (gathering,) if moving is None or moving == gathering else (moving, gathering)


class _Walk:
    """A layout that is changed step by step."""

    def __init__(self, shape: tuple[int, ...], layout: Layout, mesh: Mesh):
        self.shape, self.layout, self.sizes = shape, layout, dict(mesh)
        self.steps: list[Step] = []

    def to(self, kind: StepKind, axes: Sequence[str], layout: Layout) -> None:
        if layout == self.layout:
            return
        sides = (self.layout, layout) if kind == "all-gather" else (layout,)
        elements = max(shard_elements(self.shape, side, self.sizes) for side in sides)
        self.steps.append(Step(kind, tuple(axes), layout, elements))
        self.layout = layout

    def with_dim(self, dim: int, axes: Sequence[str]) -> Layout:
        return (*self.layout[:dim], tuple(axes), *self.layout[dim + 1 :])

    def splits(self, dim: int, axes: Sequence[str]) -> bool:
        return self.shape[dim] % shard_count(axes, self.sizes) == 0


@lru_cache(maxsize=1 << 16)
def _gathering(shape: tuple[int, ...], source: Layout, target: Layout, mesh: Mesh) -> tuple[Step, ...]:
    """Gather each dimension back to what it has in common with the target, then slice."""
    walk = _Walk(shape, source, mesh)
    for dim, (have, want) in enumerate(zip(source, target, strict=True)):
        common = 0
        while common < min(len(have), len(want)) and have[common] == want[common]:
            common += 1
        walk.to("all-gather", have[common:], walk.with_dim(dim, have[:common]))
    walk.to("slice", (), target)
    return tuple(walk.steps)


@lru_cache(maxsize=1 << 16)
def _moving(shape: tuple[int, ...], source: Layout, target: Layout, mesh: Mesh) -> tuple[Step, ...] | None:
    """Slice by new axes, put each dimension in order, move axes between dimensions, gather what is left over.

    All-to-all and all-gather act on the minor axes of a dimension, so a permutation of devices brings them there first.
    None where a step would not divide evenly.
    """
    walk = _Walk(shape, source, mesh)
    held, wanted = set(axes_of(source)), set(axes_of(target))
    goal = {axis: dim for dim, axes in enumerate(target) for axis in axes}

    sliced = tuple(
        (*have, *(axis for axis in want if axis not in held))
        for have, want in zip(source, target, strict=True)
    )
    if not all(walk.splits(dim, axes) for dim, axes in enumerate(sliced)):
        return None
    walk.to("slice", (), sliced)

    def stays(dim: int, axis: str) -> bool:
        return goal.get(axis, dim) == dim

    arranged = tuple(
        (
            *_in_order(axes, want),
            *(a for a in axes if a not in wanted),
            *(a for a in axes if not stays(dim, a)),
        )
        for dim, (axes, want) in enumerate(zip(walk.layout, target, strict=True))
    )
    walk.to("collective-permute", _disordered(walk.layout, arranged), arranged)

    for dim in range(len(shape)):
        while walk.layout[dim] and not stays(dim, axis := walk.layout[dim][-1]):
            receiver = goal[axis]
            received = (*walk.layout[receiver], axis)
            if not walk.splits(receiver, received):
                return None
            moved = list(walk.layout)
            moved[dim], moved[receiver] = walk.layout[dim][:-1], received
            walk.to("all-to-all", (axis,), tuple(moved))

    ordered = tuple(
        (*_in_order(axes, want), *(axis for axis in axes if axis not in wanted))
        for axes, want in zip(walk.layout, target, strict=True)
    )
    walk.to("collective-permute", _disordered(walk.layout, ordered), ordered)
    for dim, want in enumerate(target):
        left = walk.layout[dim][len(want) :]
        walk.to("all-gather", left, walk.with_dim(dim, want))
    return tuple(walk.steps)


def _in_order(axes: Sequence[str], want: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in want if axis in axes)


def _disordered(before: Layout, after: Layout) -> tuple[str, ...]:
    """The axes of the dimensions whose order changes."""
    return tuple(axis for old, new in zip(before, after, strict=True) if old != new for axis in old)


class Resharder:
    """Prices changes of layout on one mesh, and picks the chain; remembers what it has computed."""

    def __init__(self, cost: MeshCost):
        self.cost = cost
        self.mesh: Mesh = tuple(cost.axis_sizes.items())
        self._paths: dict[tuple[tuple[int, ...], int, Layout, Layout], tuple[Step, ...]] = {}
        self._matrices: dict[object, np.ndarray] = {}

    def path(self, shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The cheapest chain of steps from `source` to `target`."""
        if source == target:
            return ()
        key = (shape, itemsize, source, target)
        if key not in self._paths:
            options = chains(shape, source, target, self.mesh)
            self._paths[key] = min(
                options, key=lambda steps: sum(self.seconds(step, itemsize) for step in steps)
            )
        return self._paths[key]

    def seconds(self, step: Step, itemsize: int) -> float:
        """Seconds of one step for elements of `itemsize` bytes."""
        return float(self._seconds(step.kind, step.axes, np.asarray(step.elements * itemsize, dtype=float)))

    def matrix(
        self, shape: tuple[int, ...], itemsize: int, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> np.ndarray:
        """Seconds from every source to every target layout, `[len(sources), len(targets)]`."""
        key = (shape, itemsize, tuple(sources), tuple(targets))
        if key not in self._matrices:
            self._matrices[key] = self._matrix(shape, itemsize, sources, targets)
        return self._matrices[key]

    def _matrix(
        self, shape: tuple[int, ...], itemsize: int, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> np.ndarray:
        batches: dict[tuple[StepKind, tuple[str, ...]], tuple[list[int], list[int]]] = {}
        width = len(targets)
        alternative = np.zeros(len(sources) * width, dtype=bool)
        for row, source in enumerate(sources):
            for column, target in enumerate(targets):
                options = chains(shape, source, target, self.mesh)
                for option, steps in enumerate(options):
                    cell = 2 * (row * width + column) + option
                    for step in steps:
                        cells, sizes = batches.setdefault((step.kind, step.axes), ([], []))
                        cells.append(cell)
                        sizes.append(step.elements * itemsize)
                alternative[row * width + column] = len(options) > 1
        seconds = np.zeros(2 * len(alternative))
        for (kind, axes), (cells, sizes) in batches.items():
            np.add.at(seconds, cells, self._seconds(kind, axes, np.asarray(sizes, dtype=float)))
        first, second = seconds.reshape(-1, 2).T
        return np.where(alternative, np.minimum(first, second), first).reshape(len(sources), width)

    def _seconds(self, kind: StepKind, axes: tuple[str, ...], nbytes: np.ndarray) -> np.ndarray:
        if kind == "slice":
            return np.asarray(self.cost.compute_seconds(0.0, 2 * nbytes, "float32"))
        return np.asarray(self.cost.collective_seconds(kind, axes, nbytes))
