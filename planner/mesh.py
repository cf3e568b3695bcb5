"""The meshes to plan for: the one that the user gave, or every shape that the machine could take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from costmodel.model import CostModel, MeshCost
from costmodel.placement import Placement, device_grid
from costmodel.presets import device_preset, preset
from costmodel.topology import Topology
from planner.errors import InvalidSpec, NoDevices

AnyMesh = Mesh | AbstractMesh | Topology | str | int
AXIS_NAMES = ("x", "y", "z")


@dataclass(frozen=True, eq=False)
class MeshChoice:
    """One mesh to plan for.

    Attributes:
        mesh: with devices if they are attached, else abstract; as the user gave it, Explicit axes included.
        cost: prices on it.
    """

    mesh: Mesh | AbstractMesh
    cost: MeshCost


def mesh_choices(mesh: AnyMesh, cost_model: CostModel | None = None) -> Iterator[MeshChoice]:
    """The meshes to choose from, most promising (fewest axes) first.

    Args:
        mesh: a mesh, taken as it is; or a `Topology`, a preset's name or a number of devices, whose every
            factorisation into up to three axes and every placement of those on the links is a choice.
        cost_model: prices of the machine; by default those of the preset for the devices' kind.

    Raises:
        NoDevices: the mesh is empty, or no devices are attached to count.
        UnknownPreset: no machine has that name.
        InvalidSpec: `mesh` is none of these, or has another number of devices than the cost model.
    """
    if isinstance(mesh, Mesh | AbstractMesh):
        if not mesh.axis_names or math.prod(mesh.axis_sizes) == 0:
            raise NoDevices("the mesh has no devices; make one with jax.make_mesh((8,), ('x',)) or name a preset")
        model = cost_model or default_cost_model(mesh)
        yield MeshChoice(mesh, model.on(mesh.axis_names, mesh.axis_sizes))
        return
    if cost_model is not None and (wanted := _device_count(mesh)) != (priced := cost_model.topology.device_count):
        raise InvalidSpec(f"cost_model prices {priced} devices, mesh asks for {wanted}; give a cost model of as many")
    model = cost_model or CostModel(_topology(mesh))
    devices = _attached(model.topology)
    placements = sorted(model.topology.placements(len(AXIS_NAMES)), key=lambda placement: len(placement.axis_sizes))
    for placement in placements or [model.topology.place((1,))]:
        sizes = tuple(placement.axis_sizes)
        names = AXIS_NAMES[: len(sizes)]
        yield MeshChoice(_build(devices, model.topology, placement, names), model.on(names, sizes, placement))


def auto_mesh(mesh: Mesh) -> Mesh:
    """The same devices with Auto axes, on which `with_sharding_constraint` speaks."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def default_cost_model(mesh: Mesh | AbstractMesh) -> CostModel:
    """The preset's prices for a mesh's devices; for an abstract mesh without a device, those attached here."""
    if isinstance(mesh, Mesh):
        kind, hosts = (
            mesh.devices.flat[0].device_kind,
            len({device.process_index for device in mesh.devices.flat}),
        )
    else:
        named = mesh.abstract_device
        kind, hosts = (named.device_kind if named is not None else jax.devices()[0].device_kind), 1
    return CostModel(_machine(kind, math.prod(mesh.axis_sizes), hosts))


def _device_count(mesh: Topology | str | int) -> int:
    """Of devices whose kind need not be known."""
    return mesh if isinstance(mesh, int) and not isinstance(mesh, bool) else _topology(mesh).device_count


def _topology(mesh: Topology | str | int) -> Topology:
    if isinstance(mesh, Topology):
        return mesh
    if isinstance(mesh, str):
        return preset(mesh)
    if isinstance(mesh, int) and not isinstance(mesh, bool):
        if mesh < 1:
            raise NoDevices(f"cannot plan for {mesh} devices; give a positive count, a mesh or a preset's name")
        devices = jax.devices()
        hosts = len({device.process_index for device in itertools.islice(devices, mesh)})
        return _machine(devices[0].device_kind, mesh, hosts)
    raise InvalidSpec(
        f"mesh is {mesh!r}; give a jax.sharding.Mesh or AbstractMesh, a costmodel.Topology, a preset's name such as "
        f"'h100-dgx:4', or a number of devices"
    )


def _machine(kind: str, count: int, hosts: int) -> Topology:
    topology = device_preset(kind, count, hosts)
    if topology is None:
        raise InvalidSpec(
            f"there are no figures for devices of kind {kind!r}; measure them with executor.calibrate(mesh) and pass "
            f"cost_model="
        )
    return topology


def _attached(topology: Topology) -> np.ndarray | None:
    """The devices here, if they are of the topology's kind and as many as it needs."""
    devices = jax.devices()
    if devices[0].device_kind != topology.device.kind or len(devices) < topology.device_count:
        return None
    return np.array(devices[: topology.device_count])


def _build(
    devices: np.ndarray | None, topology: Topology, placement: Placement, names: tuple[str, ...]
) -> Mesh | AbstractMesh:
    axis_types = (AxisType.Auto,) * len(names)
    if devices is None:
        return AbstractMesh(tuple(placement.axis_sizes), names, axis_types=axis_types)
    return Mesh(devices[device_grid(placement, topology.dim_sizes)], names, axis_types=axis_types)
