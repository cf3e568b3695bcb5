"""`CostModel`, a machine with its figures, and `MeshCost`, that bound to one mesh: what the planner asks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from costmodel import profile
from costmodel.collectives import BROADCAST, KINDS, check_kind, collective_seconds
from costmodel.compute import cold_seconds, matmul_seconds, roofline_seconds
from costmodel.curves import CollectiveCurve, between_group_sizes
from costmodel.device import Device
from costmodel.levels import Levels, protocols
from costmodel.placement import Placement, Segment
from costmodel.topology import Backend, Topology
from costmodel.waits import Waits


@dataclass(frozen=True)
class Group:
    """The devices that one collective joins.

    Attributes:
        size: how many.
        levels: by kind of collective, their links, once for each protocol of theirs.
        measured: what was timed of them, in place of formulas.
        busy_devices: how many run the collective at once, in groups like this one, where it was measured.
    """

    size: int
    levels: Mapping[str, tuple[Levels, ...]]
    measured: tuple[CollectiveCurve, ...]
    busy_devices: int

    def seconds(self, kind: str, nbytes: ArrayLike) -> np.ndarray:
        if curves := self._curves(kind):
            total = np.asarray(nbytes, dtype=float) * self.busy_devices
            return between_group_sizes(curves, self.size, lambda curve: curve.seconds(total))
        return np.minimum.reduce([collective_seconds(kind, levels, nbytes) for levels in self.levels[kind]])

    def parting_seconds(self, kind: str) -> float:
        curves = self._curves(kind)
        return float(between_group_sizes(curves, self.size, lambda curve: curve.parting_seconds)) if curves else 0.0

    def _curves(self, kind: str) -> list[CollectiveCurve]:
        """Of the kind; none where one device has nobody to meet."""
        return [curve for curve in self.measured if curve.kind == kind and self.size > 1]


@dataclass(frozen=True)
class MeshCost:
    """Prices on one logical mesh, in seconds.

    Attributes:
        axis_sizes: the mesh, in the order of its axes.
        device: each of its devices.
        backend: "cpu", "gpu" or "tpu".
        reduce_scatters: whether the compiler's partitioner makes reduce-scatters; on CPU it makes all-reduces
            instead.
        overlap: by kind of collective, the share of its time, 0 to 1, that hides behind computation; 0 where
            there is none.
        groups: for each set of mesh axes the devices that a collective over them joins.
        waits: how unevenly devices come to a collective, where they share cores; None where each has its own.
    """

    axis_sizes: Mapping[str, int] = field(hash=False)
    device: Device
    backend: Backend
    reduce_scatters: bool
    overlap: Mapping[str, float] = field(hash=False)
    groups: Mapping[frozenset[str], Group] = field(hash=False, repr=False)
    waits: Waits | None

    @property
    def shares_caches(self) -> bool:
        """Whether what one device moves drives what others have moved out of a cache."""
        return self.backend == "cpu"

    @property
    def fetches_ahead(self) -> bool:
        """Whether what a product multiplies next comes from memory meanwhile; a CPU's core waits for it."""
        return self.backend != "cpu"

    @property
    def hoists(self) -> bool:
        """Whether the compiler moves out of a loop what is the same in all rounds (WhileLoopInvariantCodeMotion)."""
        return self.backend == "cpu"

    def collective_seconds(self, kind: str, axes: Sequence[str], nbytes: ArrayLike) -> np.ndarray:
        """Seconds of one collective over the product of the axes, all groups of the mesh running it at once.

        Args:
            nbytes: per device, of the larger side: an all-gather's result, a reduce-scatter's input, else the
                buffer.

        Raises:
            ValueError: an unknown kind of collective or mesh axis.
        """
        if unknown := [axis for axis in axes if axis not in self.axis_sizes]:
            raise ValueError(f"unknown mesh axis {unknown[0]!r}; the mesh has {', '.join(self.axis_sizes)}")
        check_kind(kind)
        return self.groups[frozenset(axes)].seconds(kind, nbytes)

    def exposed_seconds(self, kind: str, axes: Sequence[str], nbytes: ArrayLike) -> np.ndarray:
        """What a collective adds to a step: its seconds, less the share that hides behind computation.

        The share is a measured factor by kind, whatever stands beside a collective; so the sum over a program
        remains a sum over its parts, which a solver can take. It presumes that there is enough to compute.
        Arguments and errors as in `collective_seconds`.
        """
        return (1.0 - self.overlap.get(kind, 0.0)) * self.collective_seconds(kind, axes, nbytes)

    def waiting_seconds(self, axes: Collection[str], since: Mapping[str, float], begun: float = 0.0) -> float:
        """Seconds that the devices of a group wait for each other; see `costmodel.waits`.

        Args:
            since: seconds that each device has computed since devices along an axis last waited for each other, of all
                axes. Those of `axes` wait for what was computed since the first of theirs; and with them, for what came
                before, those that have met along others since.
            begun: seconds that each computed before, from the call until some first waited for each other.
        """
        if self.waits is None:
            return 0.0
        longest = max(since[axis] for axis in axes)
        times = sorted({longest, *(each for each in since.values() if 0.0 < each < longest)}, reverse=True)
        held_up = [
            (time, self.groups[frozenset(a for a in since if a in axes or since[a] < time)].size) for time in times
        ]
        return self.waits.seconds(self.groups[frozenset(axes)].size, held_up, self.device_count, begun)

    def parting_seconds(self, kind: str, axes: Collection[str]) -> float:
        """Seconds that devices of different groups wait for each other when they meet after one such collective."""
        return self.groups[frozenset(axes)].parting_seconds(kind)

    @property
    def device_count(self) -> int:
        return math.prod(self.axis_sizes.values())

    def latency_seconds(self, kind: str, axes: Sequence[str]) -> float:
        """Seconds of one collective of no bytes."""
        return float(self.collective_seconds(kind, axes, 0.0))

    def bandwidth_seconds(self, kind: str, axes: Sequence[str], nbytes: ArrayLike) -> np.ndarray:
        """Seconds of one collective less those of none of its bytes: what the links' bandwidth takes."""
        return self.collective_seconds(kind, axes, nbytes) - self.latency_seconds(kind, axes)

    def compute_seconds(
        self,
        flops: ArrayLike,
        nbytes: ArrayLike,
        dtype: str,
        elements: Mapping[str, ArrayLike] = MappingProxyType({}),
        cold_bytes: ArrayLike = 0.0,
        crowding: ArrayLike = 1.0,
        cold_written: ArrayLike = 0.0,
    ) -> np.ndarray:
        """Roofline seconds of work on one device, launch not included; see `roofline_seconds`."""
        return roofline_seconds(self.device, flops, nbytes, dtype, elements, cold_bytes, crowding, cold_written)

    def rearrange_seconds(
        self,
        nbytes: ArrayLike,
        itemsize: int,
        stride_bytes: ArrayLike,
        span_bytes: ArrayLike,
        in_tiles: bool = False,
        near_share: float = 1.0,
    ) -> np.ndarray:
        """Seconds of copying so many bytes on one device with their elements in another order.

        Args:
            stride_bytes, span_bytes, in_tiles, near_share: see `Device.rearranging_seconds`.
        """
        moved = np.asarray(nbytes)
        each = self.device.rearranging_seconds(stride_bytes, itemsize, span_bytes, in_tiles, near_share)
        return self.device.memory_seconds(2 * moved) + moved / itemsize * each

    def matmul_seconds(
        self,
        dtype: str,
        rows: ArrayLike,
        inner: ArrayLike,
        columns: ArrayLike,
        batch: ArrayLike = 1.0,
        nbytes: ArrayLike = 0.0,
        transposed_itemsize: int = 0,
        window: float = 0.0,
    ) -> np.ndarray:
        """Seconds of a matrix multiplication on one device, launch included; see `costmodel.compute.matmul_seconds`."""
        return matmul_seconds(self.device, dtype, rows, inner, columns, batch, nbytes, transposed_itemsize, window)

    def product_fetch_seconds(self, cold_bytes: ArrayLike, crowding: ArrayLike, cold_written: ArrayLike) -> np.ndarray:
        """Seconds that a product takes longer when so many of its bytes are cold; see `Device.memory_seconds`."""
        if self.fetches_ahead:
            return np.zeros_like(np.asarray(cold_bytes, dtype=float))
        return cold_seconds(self.device, cold_bytes, crowding, cold_written)


@dataclass(frozen=True)
class CostModel:
    """What a second and a byte cost on a machine.

    Attributes:
        topology: devices and links.
        overlap: by kind of collective, the share of its time that hides behind computation; 0 unless it was
            measured. On CPU nothing does: the cores that would compute are those that copy.
        measured_on: what the figures were taken on, empty for published ones.
    """

    topology: Topology
    overlap: Mapping[str, float] = field(default_factory=dict, hash=False)
    measured_on: Mapping[str, str | int | float] = field(default_factory=dict, hash=False)

    def on(self, axis_names: Sequence[str], axis_sizes: Sequence[int], placement: Placement | None = None) -> MeshCost:
        """Prices for a mesh; by default its devices are in row-major order, last axis innermost.

        Raises:
            ValueError: the sizes do not multiply to the device count.
        """
        placement = placement or self.topology.place(axis_sizes)
        segments = dict(zip(axis_names, placement.segments, strict=True))
        return MeshCost(
            axis_sizes=dict(zip(axis_names, axis_sizes, strict=True)),
            device=self.topology.device,
            backend=self.topology.backend,
            reduce_scatters=self.topology.backend != "cpu",
            overlap=self.overlap,
            groups={axes: _group(self.topology, [segments[axis] for axis in axes]) for axes in _subsets(axis_names)},
            waits=self.topology.waits,
        )

    def to_json(self) -> str:
        """The profile as JSON; `from_json` reads it back equal."""
        return profile.dump(self.topology, self.overlap, self.measured_on)

    @staticmethod
    def from_json(text: str, source: str = "profile") -> CostModel:
        """Reads a profile.

        Raises:
            ProfileError: not JSON, or a field missing or of the wrong kind; names `source` and the field.
        """
        return CostModel(*profile.load(text, source))

    @staticmethod
    def read(path: str | Path) -> CostModel:
        """Reads a profile's file; errors as `from_json`."""
        return CostModel.from_json(profile.read_text(path), str(path))


@cache
def measured_model(name: str) -> CostModel:
    """A profile that comes with this package."""
    return CostModel.from_json(resources.files("costmodel").joinpath("profiles", name).read_text(), name)


def _subsets(axis_names: Sequence[str]) -> Iterable[frozenset[str]]:
    counts = range(len(axis_names) + 1)
    return (frozenset(axes) for count in counts for axes in itertools.combinations(axis_names, count))


def _group(topology: Topology, axes: Iterable[Sequence[Segment]]) -> Group:
    segments = [segment for axis in axes for segment in axis]
    innermost = len(topology.dims) - 1
    return Group(
        size=math.prod(segment.size for segment in segments),
        levels={kind: protocols(topology, segments, kind) for kind in (*KINDS, BROADCAST)},
        measured=topology.measured if all(segment.dim == innermost for segment in segments) else (),
        busy_devices=topology.dim_sizes[innermost] if topology.dims else 1,
    )
