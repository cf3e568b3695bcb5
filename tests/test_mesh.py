"""The meshes that are planned for: the user's, or every shape that a machine could take."""

from __future__ import annotations

import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import floats
from forced import device_mesh
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from costmodel import CostModel, Topology, preset
from planner import InvalidSpec, NoDevices, plan
from planner.mesh import auto_mesh, mesh_choices

ARGS = (jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w)


def shapes_of(mesh: object) -> list[tuple[int, ...]]:
    return [tuple(choice.cost.axis_sizes.values()) for choice in mesh_choices(mesh)]  # type: ignore[arg-type]


@pytest.mark.parametrize("mesh", [device_mesh(x=2, y=4), jax.make_mesh((8,), ("x",)), AbstractMesh((3, 5), ("a", "b"))])
def test_a_mesh_is_taken_as_it_is(mesh: Mesh | AbstractMesh) -> None:
    (choice,) = mesh_choices(mesh)
    assert choice.mesh is mesh
    assert dict(choice.cost.axis_sizes) == dict(mesh.shape)


@pytest.mark.parametrize("mesh", [8, "cpu:8", preset("cpu:8")], ids=["count", "preset", "topology"])
def test_every_factorisation_is_tried_with_the_fewest_axes_first(mesh: object) -> None:
    shapes = shapes_of(mesh)
    assert {tuple(sorted(shape)) for shape in shapes} == {(8,), (2, 4), (2, 2, 2)}
    assert [len(shape) for shape in shapes] == sorted(len(shape) for shape in shapes)
    assert len(set(shapes)) == len(shapes), "links that are all alike need no shape twice"


MACHINES = [(1, 1), (6, 6), (7, 7), ("h100-dgx:2", 16), ("v5e:2x4", 8), ("v5p:2x2x2", 8)]


@pytest.mark.parametrize(("mesh", "count"), MACHINES)
def test_all_devices_are_used(mesh: object, count: int) -> None:
    shapes = shapes_of(mesh)
    assert shapes
    assert all(math.prod(shape) == count for shape in shapes)
    assert all(size > 1 for shape in shapes for size in shape if count > 1)


def test_attached_devices_each_once() -> None:
    for choice in mesh_choices(8):
        assert isinstance(choice.mesh, Mesh)
        assert sorted(device.id for device in choice.mesh.devices.flat) == list(range(8))


def test_machines_elsewhere_are_abstract() -> None:
    assert all(isinstance(choice.mesh, AbstractMesh) for choice in mesh_choices("h100-dgx:1"))
    assert all(isinstance(choice.mesh, AbstractMesh) for choice in mesh_choices("cpu:16"))


def test_fewer_devices_than_there_are() -> None:
    planned = plan(layer, ARGS, 4)
    assert isinstance(planned.mesh, Mesh)
    assert planned.mesh.size == 4
    args = floats(512, 512), floats(512, 512)
    np.testing.assert_allclose(planned.jit()(*args), layer(*args), rtol=1e-5)


def test_the_chosen_mesh_is_the_best_of_all() -> None:
    planned = plan(layer, ARGS, 8)
    each = [plan(layer, ARGS, choice.mesh).objective_seconds for choice in mesh_choices(8)]
    assert planned.objective_seconds == pytest.approx(min(each))


@pytest.mark.parametrize(("mesh", "count"), MACHINES)
def test_every_machine_is_planned_for(mesh: int | str, count: int) -> None:
    assert plan(layer, ARGS, mesh).mesh.size == count


def test_a_chosen_mesh_runs() -> None:
    planned = plan(layer, ARGS, "cpu:8")
    args = floats(512, 512), floats(512, 512)
    np.testing.assert_allclose(planned.jit()(*args), layer(*args), rtol=1e-5)


def test_too_many_devices_plan_but_do_not_run() -> None:
    planned = plan(layer, ARGS, 16)
    assert planned.mesh.size == 16
    with pytest.raises(NoDevices, match="cannot run"):
        planned.jit()


def test_a_cost_model_goes_with_its_mesh() -> None:
    model = CostModel(preset("h100-dgx:1"))
    planned = plan(layer, ARGS, device_mesh(x=2, y=4), cost_model=model)
    assert planned.choice.priced.cost.backend == "gpu"
    with pytest.raises(ValueError, match="8"):
        plan(layer, ARGS, AbstractMesh((4,), ("x",)), cost_model=model)


@pytest.mark.parametrize("mesh", [4, "h100-dgx:2", preset("cpu:4")])
def test_a_cost_model_of_other_devices_is_refused(mesh: int | str | Topology) -> None:
    with pytest.raises(InvalidSpec, match="prices 8 devices, mesh asks for"):
        plan(layer, ARGS, mesh, cost_model=CostModel(preset("h100-dgx:1")))


def test_auto_mesh_keeps_devices_and_names() -> None:
    explicit = jax.make_mesh((2, 4), ("x", "y"))
    auto = auto_mesh(explicit)
    assert auto.axis_types == (AxisType.Auto,) * 2
    assert (auto.devices == explicit.devices).all()
    assert auto.axis_names == explicit.axis_names


def test_planning_for_an_abstract_mesh_touches_no_device() -> None:
    """With a cost model, not even to ask what kind they are."""
    program = """
import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh
from costmodel import CostModel, Topology, preset
from planner import plan
x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
plan(lambda x: x @ x, (x,), AbstractMesh((8,), ("x",)), cost_model=CostModel(preset("h100-dgx:1")))
jax.config.update("jax_num_cpu_devices", 3)  # raises once a backend is up
"""
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_meshes_that_the_specs_do_not_go_on_are_passed_over() -> None:
    args = (jax.ShapeDtypeStruct((64, 64), jnp.float32),)
    planned = plan(lambda x: x * 2, args, "h100-dgx:1", in_specs=PartitionSpec("x", "y"))
    assert tuple(planned.mesh.shape) == ("x", "y")
    assert planned.status == "optimal"
    with pytest.raises(InvalidSpec, match="names the mesh axis 'q'"):
        plan(lambda x: x * 2, args, "h100-dgx:1", in_specs=PartitionSpec("q"))
