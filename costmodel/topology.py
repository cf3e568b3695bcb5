"""Devices and the links between them: what a plan is priced on.

A `Topology` is a grid of identical devices. Its dimensions run from the outermost (slowest links) to the
innermost, and devices are numbered row-major over them: `Topology(dims=(hosts, gpus))` puts devices 0 to 7 on
the first host of eight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from costmodel.curves import CollectiveCurve
from costmodel.device import Device
from costmodel.placement import Placement, all_placements, device_grid, row_major_placement
from costmodel.waits import Waits

LinkKind = Literal["bus", "switch", "mesh", "torus", "network"]
Backend = Literal["cpu", "gpu", "tpu"]


@dataclass(frozen=True)
class Eager:
    """A second protocol of a link, for small messages: sooner off, slower on the way (NCCL's LL).

    Attributes: as in `Link`, in whose place they stand.
    """

    start_seconds: float
    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Link:
    """What joins the devices along one dimension of a topology.

    Attributes:
        kind: "bus" (one memory that all share), "switch" (each reaches each at full rate), "mesh" (a wire
            from each to each, among which a device's rate is split), "torus" (neighbours only), or "network"
            (a switch between hosts).
        latency_seconds: one message to the next device.
        bytes_per_second: per device and direction, and on a torus per neighbour; of the whole bus for a bus.
            A host's network cards are split evenly among its devices, whether each has its own rail or not,
            since all groups of a mesh communicate at once.
        start_seconds: paid once by each collective, before anything moves.
        wrap: on a torus, whether the last device is a neighbour of the first.
        staged: whether collectives finish on the dimensions inside before they cross this one, as XLA does
            between TPU slices; else one ring runs through all devices, as NCCL's do.
        wire_bytes_per_second: on a mesh, of one wire, where a part of the devices has but one from each to
            each and all of them have more between them; None where the rate is split evenly.
        copy_bytes_per_second: at which a device copies its own share to its place; None where that is free.
        reduce_bytes_per_second: of an all-reduce that the switch itself adds up; None where it does not.
        eager: the protocol for small messages; None where there is one protocol for all.
    """

    kind: LinkKind
    latency_seconds: float
    bytes_per_second: float
    start_seconds: float = 0.0
    wrap: bool = False
    staged: bool = False
    wire_bytes_per_second: float | None = None
    copy_bytes_per_second: float | None = None
    reduce_bytes_per_second: float | None = None
    eager: Eager | None = None

    def small(self) -> Link:
        """The link as small messages see it."""
        if self.eager is None:
            return self
        return replace(
            self,
            start_seconds=self.eager.start_seconds,
            latency_seconds=self.eager.latency_seconds,
            bytes_per_second=self.eager.bytes_per_second,
            reduce_bytes_per_second=None,
        )


@dataclass(frozen=True)
class Dim:
    """One dimension of a topology: `size` devices (or hosts of devices) in a row, joined by `link`.

    Attributes:
        measured: by kind of collective, the link as it was measured for that kind, in place of `link`.
    """

    name: str
    size: int
    link: Link
    measured: Mapping[str, Link] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Topology:
    """A grid of identical devices.

    Attributes:
        name: as `preset` takes it, or a name of the user's.
        device: what stands at each point of the grid.
        dims: outermost first, each larger than one; none for a single device.
        backend: the compiler that will be used, since backends choose different collectives.
        measured: timed collectives within the innermost dimension, in place of formulas.
        waits: how unevenly devices come to a collective, where they share cores; None where each has its own.
    """

    name: str
    device: Device
    dims: tuple[Dim, ...]
    backend: Backend
    measured: tuple[CollectiveCurve, ...] = ()
    waits: Waits | None = None

    def __post_init__(self) -> None:
        for dim in self.dims:
            if dim.size < 2:
                raise ValueError(f"topology {self.name!r}: dimension {dim.name!r} has size {dim.size}; leave it out")

    @property
    def dim_sizes(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.dims)

    @property
    def device_count(self) -> int:
        return math.prod(self.dim_sizes)

    def place(self, axis_sizes: Sequence[int]) -> Placement:
        """The placement of a mesh whose devices come in row-major order, last mesh axis innermost.

        An axis that does not nest into the dimensions (3 × 4 over hosts of 4 × 3) is priced as if all of it
        ran over the outermost, slowest dimension that it touches, and the placement is marked inexact.

        Raises:
            ValueError: the sizes do not multiply to the device count.
        """
        if math.prod(axis_sizes) != self.device_count:
            raise ValueError(
                f"mesh {tuple(axis_sizes)} needs {math.prod(axis_sizes)} devices; topology {self.name!r} has "
                f"{self.device_count}: choose axis sizes with that product"
            )
        return row_major_placement(tuple(axis_sizes), self.dim_sizes)

    def placements(self, max_axes: int = 3) -> Iterator[Placement]:
        """Every way to lay a mesh of at most `max_axes` axes on the devices, up to what is physically the
        same.

        All factorisations of the device count into axes above one, each axis spread over the dimensions in
        every way that gives it at most one part of each dimension. The order of the parts along a dimension
        counts on a torus alone; meshes that differ by the names of their axes, or by exchanging equal
        dimensions, come once. Fewest axes first; the axes of each are sorted outermost first.
        """
        keys = tuple((dim.size, dim.link, *dim.measured.items()) for dim in self.dims)
        ordered = tuple(dim.link.kind == "torus" for dim in self.dims)
        return iter(all_placements(self.dim_sizes, keys, ordered, max_axes))

    def device_grid(self, placement: Placement) -> np.ndarray:
        """Device numbers in the shape of the mesh, `grid[i, j]` being the device at mesh position (i, j)."""
        return device_grid(placement, self.dim_sizes)
