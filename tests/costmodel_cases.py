"""Small machines for the tests of the cost model, and one that prices nothing but what the solver sees."""

from dataclasses import replace

from costmodel import CostModel, Device, Dim, Link, MeshCost, Topology, preset

MACHINES = (
    "cpu:8",
    "a100-dgx:2",
    "h100-dgx:4",
    "h200-dgx:1",
    "v4:4x4x4",
    "v5e:16x16",
    "v5p:4x4x8",
    "v6e:8x8",
)
VOLUME = 2.0**30
_EIGHT = preset("cpu:8")
SOLVERS_PRICES = CostModel(
    replace(_EIGHT, waits=None, device=replace(_EIGHT.device, memory_curve=(), cold_memory_curve=()))
)
"""Where devices wait for each other, or read again what the caches have lost, a layout by hand may be better than the
solver's best, and is not proven to be."""


def machine(*dims: Dim) -> Topology:
    device = Device("test", {"float32": 1e12, "bfloat16": 2e12}, 1e10, 1e11, 1e-6)
    return Topology("test", device, dims, "gpu")


def along(name: str, size: int, kind: str = "switch", rate: float = 1e9, **link: object) -> Dim:
    return Dim(name, size, Link(kind, latency_seconds=0.0, bytes_per_second=rate, **link))  # type: ignore[arg-type]


def flat(topology: Topology) -> MeshCost:
    """The machine as a mesh of one axis."""
    return CostModel(topology).on(("all",), (topology.device_count,))
