"""From one layout to another by elementary steps, each of which the compiler turns into one collective or a slice.

Asked to go from A to B at once, XLA often gathers everything; asked for one elementary step at a time it does just that
step. So a change of layout is a chain of `slice` (free of communication), `all-to-all`, `collective-permute` and
`all-gather` steps, and the planner prices the very chain that is emitted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from costmodel.model import MeshCost
from planner.layout import Layout, axes_of, divides, shard_count, shard_shape
from planner.rearrange import Turn, gathered_strides

StepKind = Literal["slice", "all-to-all", "collective-permute", "all-gather"]
Mesh = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Step:
    """One elementary change of layout.

    Attributes:
        axes: the mesh axes that the collective runs over; empty for a slice.
        layout: the layout after it.
        shards: into how many parts the side of which a device holds more is split; for a slice, the result.
        strided: whether what arrives is interleaved, which takes copies on some backends: rows, or elements where it is
            along the innermost dimension.
        columns: into how many parts the innermost dimension is split afterwards.
        along: the outermost dimension along which what arrives is put together; 0 where nothing arrives.
    """

    kind: StepKind
    axes: tuple[str, ...]
    layout: Layout
    shards: int
    strided: Literal["rows", "elements"] | None = None
    columns: int = 1
    along: int = 0


LONG_RUN = 16
"""Pieces with so many elements side by side, at least, are put together as fast as whole rows."""


def chains(
    shape: Sequence[int],
    source: Layout,
    target: Layout,
    mesh: Mesh,
    *,
    turning: bool,
    repeats: tuple[int, ...] = (),
) -> tuple[tuple[Step, ...], ...]:
    """The chains worth pricing, of which the first is always there: see `_gathering` and `_moving`.

    Args:
        shape: the array's global shape.
        source, target: layouts that divide it.
        mesh: (axis, size) pairs.
        turning: whether gathering along another dimension than the outermost transposes, so that moving first may pay.
        repeats: the dimensions along which a broadcast, which makes the array, repeats its operand.
    """
    gathering, *others = _ways(source, target, mesh, turning, repeats)
    sizes = dict(mesh)
    return gathering, *(way for way in others if all(divides(shape, step.layout, sizes) for step in way))


@lru_cache(maxsize=1 << 18)
def _ways(
    source: Layout, target: Layout, mesh: Mesh, turning: bool, repeats: tuple[int, ...]
) -> tuple[tuple[Step, ...], ...]:
    """The different chains for an array of any shape; the layouts on the way of all but the first may not divide it."""
    walked = (
        way(source, target, mesh, turned) for way in (_gathering, _moving) for turned in (False, True)[: 1 + turning]
    )
    return tuple(dict.fromkeys(_unmoved(steps, source, repeats) for steps in walked))


def _unmoved(steps: tuple[Step, ...], source: Layout, repeats: tuple[int, ...]) -> tuple[Step, ...]:
    """The chain without permutations, right after a broadcast, of nothing but what it repeats.

    All shards are the same there, and XLA's simplifier knows it of permutations, though not of other collectives.
    """
    before, made = source, list[Step]()
    for step in steps:
        changed = [dim for dim, (old, new) in enumerate(zip(before, step.layout, strict=True)) if old != new]
        if step.kind == "collective-permute" and set(changed) <= set(repeats):
            made.append(replace(step, kind="slice", axes=()))
        elif step.kind == "slice":
            made.append(step)
        else:
            break
        before = step.layout
    return (*made, *steps[len(made) :])


class _Walk:
    """A layout that is changed step by step, and never twice to the same."""

    def __init__(self, layout: Layout, mesh: Mesh):
        self.layout, self.sizes = layout, dict(mesh)
        self.visited = [layout]
        self.steps: list[Step] = []

    def to(self, kind: StepKind, axes: Sequence[str], layout: Layout) -> None:
        if layout in self.visited:
            before = self.visited.index(layout)
            del self.visited[before + 1 :], self.steps[before:]
        else:
            strided: Literal["rows", "elements"] | None = None
            gathered = [dim for dim, axes in enumerate(self.layout) if len(axes) > len(layout[dim])]
            if kind in ("all-gather", "all-to-all") and gathered != [0]:
                strided = "elements" if len(layout) - 1 in gathered else "rows"
            shards, columns = (shard_count(each, self.sizes) for each in (axes_of(layout), layout[-1]))
            self.visited.append(layout)
            self.steps.append(Step(kind, tuple(axes), layout, shards, strided, columns, min(gathered, default=0)))
        self.layout = layout

    def with_dim(self, dim: int, axes: Sequence[str]) -> Layout:
        return (*self.layout[:dim], tuple(axes), *self.layout[dim + 1 :])

    def gather(self, dim: int, kept: int, turned: bool) -> None:
        """Gathers a dimension back to so many of its axes.

        Args:
            turned: whether what splits another dimension than the outermost goes there first, and is gathered there.
                That is a collective more; but where gathering transposes what arrives, moving does so to a shard only.
        """
        if turned and dim:
            moved = len(self.layout[dim]) - kept
            for _ in range(moved):
                self.move(dim, 0)
            dim, kept = 0, len(self.layout[0]) - moved
        self.to("all-gather", self.layout[dim][kept:], self.with_dim(dim, self.layout[dim][:kept]))

    def move(self, giver: int, taker: int) -> None:
        """Moves the minor axis of one dimension to another."""
        axis = self.layout[giver][-1]
        layout = list(self.layout)
        layout[giver], layout[taker] = layout[giver][:-1], (*layout[taker], axis)
        self.to("all-to-all", (axis,), tuple(layout))


def _gathering(source: Layout, target: Layout, mesh: Mesh, turned: bool) -> tuple[Step, ...]:
    """Gather each dimension back to what it has in common with the target, then slice."""
    walk = _Walk(source, mesh)
    for dim, (have, want) in enumerate(zip(source, target, strict=True)):
        walk.gather(dim, _common(have, want), turned)
    walk.to("slice", (), target)
    return tuple(walk.steps)


def _common(have: Sequence[str], want: Sequence[str]) -> int:
    """How many major axes are the same."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(have, want, strict=False)))


def _moving(source: Layout, target: Layout, mesh: Mesh, turned: bool) -> tuple[Step, ...]:
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
        walk.move(leaving[0], goal[walk.layout[leaving[0]][-1]])
    arrange(range(len(source)))
    for dim, want in enumerate(target):
        walk.gather(dim, len(want), turned)
    return tuple(walk.steps)


def _moved(before: Layout, after: Layout, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which data goes to other devices.

    XLA sends each device's shard to the one that has its place afterwards, in the order of the shards and, among those
    of the same shard, of the mesh. So where an axis no longer splits anything, some that never did may come elsewhere.
    """
    old, new = _strides(before, sizes), _strides(after, sizes)
    return tuple(axis for axis in sizes if old[axis] != new[axis])


def _strides(layout: Layout, sizes: Mapping[str, int]) -> dict[str, int]:
    """How many places lie between neighbours along each axis, in the order of the shards."""
    split = axes_of(layout)
    order = (*split, *(axis for axis in sizes if axis not in split))
    return {axis: shard_count(order[place + 1 :], sizes) for place, axis in enumerate(order)}


class Resharder:
    """Prices changes of layout on one mesh, and picks the chain; remembers what it has computed."""

    def __init__(self, cost: MeshCost, call_bytes: float = 0.0, guide: Resharder | None = None):
        """
        Args:
            call_bytes: of arrays that come once a call, what all devices together read and write in one.
            guide: picks the chains, by its own prices: that of a program which is there and is priced anew.
        """
        self.cost, self.call_bytes = cost, call_bytes
        self._guide = guide
        self.mesh: Mesh = tuple(cost.axis_sizes.items())
        self.transposes = cost.backend == "cpu"
        """Whether gathering along another dimension than the outermost does."""
        self._paths: dict[object, tuple[Step, ...]] = {}
        self._tables: dict[tuple[int, tuple[int, ...]], _Table] = {}
        self._matrices: dict[object, np.ndarray] = {}

    def path(
        self, shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, repeats: tuple[int, ...] = ()
    ) -> tuple[Step, ...]:
        """The cheapest chain of steps from `source` to `target`, or the one that the guide takes."""
        if self._guide is not None:
            return self._guide.path(shape, itemsize, source, target, repeats)
        key = (shape, itemsize, source, target, repeats)
        if key not in self._paths:

            def seconds(steps: tuple[Step, ...]) -> float:
                return sum(self.seconds(step, shape, itemsize) for step in steps)

            ways = chains(shape, source, target, self.mesh, turning=self.transposes, repeats=repeats)
            self._paths[key] = min(ways, key=seconds)
        return self._paths[key]

    def seconds(self, step: Step, shape: Sequence[int], itemsize: int) -> float:
        """Seconds of a step for an array of that global shape."""
        return float(self.seconds_alike(step, shape, itemsize, step.shards, step.columns))

    def seconds_alike(
        self, step: Step, shape: Sequence[int], itemsize: int, shards: ArrayLike, columns: ArrayLike
    ) -> np.ndarray:
        """Seconds of steps that differ in nothing but `shards` and `columns`."""
        nbytes = math.prod(shape) * itemsize / np.asarray(shards, dtype=float)
        if step.kind == "slice":
            return self._slice_seconds(nbytes)
        sent, arrived = self._copies_alike(step, shape, itemsize, shards, columns)
        return self.cost.exposed_seconds(step.kind, step.axes, nbytes) + sent + arrived

    def copies_seconds(self, step: Step, shape: Sequence[int], itemsize: int) -> tuple[float, float]:
        """Of a step's seconds, those of copies of what is sent, and of what arrives."""
        sent, arrived = self._copies_alike(step, shape, itemsize, step.shards, step.columns)
        return float(sent), float(arrived)

    def again_seconds(self, step: Step, shape: Sequence[int], itemsize: int) -> float:
        """Of each kernel after the first that reads what a step brings.

        Pieces of an all-to-all that interleave are put together by each reader. Of short ones it finds out where every
        element is, which takes what elements take that do not lie beside each other.
        """
        if step.kind != "all-to-all" or step.strided is None or not self.transposes:
            return 0.0
        nbytes = math.prod(shape) * itemsize / step.shards
        local = shard_shape(shape, step.layout, self.cost.axis_sizes)
        run = math.prod(local[step.along :]) // shard_count(step.axes, self.cost.axis_sizes)
        apart, span = (itemsize, nbytes) if run >= LONG_RUN else (2 * itemsize, run * itemsize)
        return float(self.cost.rearrange_seconds(nbytes, itemsize, apart, span))

    def turns(self, step: Step, shape: Sequence[int], itemsize: int) -> tuple[Turn | None, Turn | None]:
        """How the copies of what is sent, and of what arrives, read elements; None where rows stay whole."""
        if step.kind != "all-gather" or step.strided != "elements" or not self.transposes:
            return None, None
        group = shard_count(step.axes, self.cost.axis_sizes)
        arrived = math.prod(shape) * itemsize / step.shards

        def turn(row: tuple[int, ...], stride: float, nbytes: float) -> Turn:
            each = self.cost.device.rearranging_seconds(stride, itemsize, nbytes, in_tiles=True)
            return Turn(row, stride, nbytes, nbytes / itemsize * float(each))

        there, back = map(float, gathered_strides(shape, itemsize, group, step.shards, step.columns))
        return turn(tuple(range(len(shape) - 1)), there, arrived / group), turn((), back, arrived)

    def _copies_alike(
        self, step: Step, shape: Sequence[int], itemsize: int, shards: ArrayLike, columns: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray]:
        """XLA's CPU collectives gather along the dimension that is outermost in memory: for another one, what is sent
        is copied, so that this one comes first, and what arrives is copied back. All-to-alls are timed with theirs.
        """
        nbytes = math.prod(shape) * itemsize / np.asarray(shards, dtype=float)
        if step.kind != "all-gather" or step.strided is None or not self.transposes:
            return np.zeros_like(nbytes), np.zeros_like(nbytes)
        group = shard_count(step.axes, self.cost.axis_sizes)
        there = back = np.full_like(nbytes, itemsize)
        if step.strided == "elements":
            there, back = gathered_strides(shape, itemsize, group, shards, columns)
        sent = self.cost.rearrange_seconds(nbytes / group, itemsize, there, nbytes / group, in_tiles=True)
        return sent, self.cost.rearrange_seconds(nbytes, itemsize, back, nbytes, in_tiles=True)

    def _slice_seconds(self, nbytes: np.ndarray) -> np.ndarray:
        """Of what comes once a call, what is read is cold, and so is the memory that takes the slice."""
        moved = 2 * nbytes
        cold, written = (moved, nbytes) if self.call_bytes else (0.0, 0.0)
        return self.cost.compute_seconds(
            0.0, moved, "float32", cold_bytes=cold, crowding=self.crowding(moved), cold_written=written
        )

    def crowding(self, nbytes: ArrayLike) -> np.ndarray:
        """How many times as many bytes a whole call reads and writes, all devices together."""
        return self.call_bytes / np.maximum(1.0, np.multiply(nbytes, self.cost.device_count))

    def matrix(
        self,
        shape: tuple[int, ...],
        itemsize: int,
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        repeats: tuple[int, ...] = (),
    ) -> np.ndarray:
        """Seconds from every source to every target layout, `[len(sources), len(targets)]`."""
        key = (shape, itemsize, tuple(sources), tuple(targets), repeats)
        if key not in self._matrices:
            table = self._tables.setdefault((len(shape), repeats), _Table(self.mesh, self.transposes, repeats))
            pairs = table.pairs(sources, targets)
            self._matrices[key] = table.seconds(shape, itemsize, self)[pairs]
        return self._matrices[key]


class _Table:
    """The chains between layouts of one rank, ready to be priced for arrays of any shape.

    Each chain of each pair of layouts has a cell, those of a pair side by side. For steps that cost alike there are the
    cells that such a step is in, with the shards that the array and its innermost dimension are then split into; by
    layout, the cells whose chains need it to divide the array.
    """

    def __init__(self, mesh: Mesh, turning: bool, repeats: tuple[int, ...]):
        self._mesh, self._turning, self._repeats = mesh, turning, repeats
        self._layouts: dict[Layout, int] = {}
        self._pairs = np.zeros((0, 0), dtype=np.int64)
        self._first: list[int] = []
        self._cells = 0
        self._steps: dict[object, tuple[Step, list[tuple[int, int, int]]]] = {}
        self._visits: dict[Layout, list[int]] = {}

    def pairs(self, sources: Sequence[Layout], targets: Sequence[Layout]) -> np.ndarray:
        """`[len(sources), len(targets)]` numbers of the pairs; chains that are new are worked out."""
        rows, columns = (
            [self._layouts.setdefault(layout, len(self._layouts)) for layout in side] for side in (sources, targets)
        )
        grown = len(self._layouts) - len(self._pairs)
        self._pairs = np.pad(self._pairs, (0, grown), constant_values=-1)
        for row, column in np.argwhere(self._pairs[np.ix_(rows, columns)] < 0):
            self._pairs[rows[row], columns[column]] = len(self._first)
            self._add(sources[row], targets[column])
        return self._pairs[np.ix_(rows, columns)]

    def _add(self, source: Layout, target: Layout) -> None:
        self._first.append(self._cells)
        for option, way in enumerate(_ways(source, target, self._mesh, self._turning, self._repeats)):
            for step in way:
                alike = self._steps.setdefault((step.kind, step.axes, step.strided), (step, []))
                alike[1].append((self._cells, step.shards, step.columns))
                if option:
                    self._visits.setdefault(step.layout, []).append(self._cells)
            self._cells += 1

    def seconds(self, shape: tuple[int, ...], itemsize: int, resharder: Resharder) -> np.ndarray:
        """Seconds of the cheapest chain that divides the array, for every pair there is."""
        sizes = dict(self._mesh)
        seconds = np.zeros(self._cells)
        for step, entries in self._steps.values():
            cells, shards, columns = np.array(entries).T
            np.add.at(seconds, cells, resharder.seconds_alike(step, shape, itemsize, shards, columns))
        for layout, cells in self._visits.items():
            if not divides(shape, layout, sizes):
                seconds[cells] = np.inf
        return np.minimum.reduceat(seconds, self._first)
