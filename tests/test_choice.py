"""What is chosen, on meshes with devices and without, and what the model says of it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, floats
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from layer import BIG, EXPLICIT, MESH, assert_same, layer, layer_plan
from programs import PROGRAMS, attention

from costmodel import CostModel
from costmodel.model import measured_model
from costmodel.waits import Waits
from experiments.workloads import workload
from planner import Plan, plan

P = PartitionSpec


# Meshes without devices


def test_abstract_mesh_plans_without_devices() -> None:
    planned = plan(layer, (BIG, floats(256, 256)), AbstractMesh((16, 16), ("data", "model")))
    assert isinstance(planned.mesh, AbstractMesh)
    assert "16" in planned.explain()


def test_a_mesh_of_devices_elsewhere_compiles() -> None:
    pytest.importorskip("libtpu", reason="the TPU compiler, extra `tpu`, is not installed")
    description = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4")
    mesh = topologies.make_mesh(description, (2, 4), ("x", "y"))
    planned = plan(layer, (BIG, floats(256, 256)), mesh)
    assert planned.jit().lower(BIG, floats(256, 256)).compile().as_text()


def test_lower_takes_shapes() -> None:
    shapes = (jax.ShapeDtypeStruct(BIG.shape, BIG.dtype), jax.ShapeDtypeStruct((256, 256), np.float32))
    compiled = plan(layer, shapes, MESH).jit().lower(*shapes).compile()
    assert compiled.memory_analysis().argument_size_in_bytes > 0


def test_nothing_is_allocated_for_shapes() -> None:
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.bfloat16)
    planned = plan(lambda x: (x * 2).sum(axis=0), (huge,), MESH)
    assert planned.prediction.peak_bytes > 2**35


# What the model says of its choice


@pytest.mark.parametrize("case", [PROGRAMS[1], PROGRAMS[2], PROGRAMS[7]], ids=lambda case: case.name)
@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2)], ids=str)
def test_never_worse_than_the_hand_written(case: Case, sizes: tuple[int, ...]) -> None:
    planned = plan(case.fn, case.args, AbstractMesh(sizes, ("x", "y", "z")[: len(sizes)]))
    assert planned.alternatives
    for name, other in planned.alternatives.items():
        assert planned.prediction.step_seconds <= other.prediction.step_seconds * (1 + 1e-6), name
    assert planned.lower_bound_seconds <= planned.objective_seconds * (1 + 1e-9)


def test_nor_where_what_collectives_bring_lies_in_caches() -> None:
    """The solver's problem has them bring into cold memory."""
    by = measured_model("cpu-2core-amd.json")
    wide = jax.ShapeDtypeStruct((256, 512), jnp.float32)
    mesh = AbstractMesh((2, 4), ("x", "y"))
    planned = plan(lambda x: 2 * x, (wide,), mesh, in_specs=(P("y"),), out_specs=P(None, "y"), cost_model=by)
    costs = {name: other.choice.solution.cost for name, other in planned.alternatives.items()}
    steps = {name: other.prediction.step_seconds for name, other in planned.alternatives.items()}
    assert min(steps, key=steps.__getitem__) != min(costs, key=costs.__getitem__)
    assert planned.prediction.step_seconds <= min(steps.values()) * (1 + 1e-6)


def test_where_devices_share_cores_a_layout_by_hand_is_taken_that_is_about_as_good() -> None:
    """Elsewhere the best is taken, however little better it is."""
    work = workload("cnn")

    def planned(waits: Waits | None) -> Plan:
        model = CostModel(replace(measured_model("cpu-2core-amd.json").topology, waits=waits))
        return plan(work.fn, work.example_args, AbstractMesh((8,), ("x",)), cost_model=model)

    exact, taken = planned(None), planned(Waits((1e-3,), (1e-6,)))
    (name, best), *_ = sorted(exact.alternatives.items(), key=lambda item: item[1].prediction.step_seconds)
    assert exact.status == "optimal"
    assert 0.95 < exact.prediction.step_seconds / best.prediction.step_seconds < 1
    assert taken.choice.assignment.picks == best.choice.assignment.picks
    assert (taken.status, taken.gap) == ("feasible", pytest.approx(best.gap))
    assert f"feasible, {name}, at most" in taken.explain()


def test_alternatives_compute_the_same() -> None:
    args = (floats(64, 64), floats(64, 64))
    for other in plan(attention_like, args, MESH).alternatives.values():
        assert_same(other.jit()(*args), attention_like(*args))


def attention_like(x: jax.Array, w: jax.Array) -> jax.Array:
    scores = jax.nn.softmax((x @ w) @ x.T, axis=-1)
    return scores @ (x @ w)


def test_megatron() -> None:
    """Two layers, their weights kept apart over one axis: columns, then rows, then one all-reduce."""
    rows, width, hidden = 512, 256, 1024

    def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w1) @ w2

    args = (
        jax.ShapeDtypeStruct((rows, width), jnp.float32),
        jax.ShapeDtypeStruct((width, hidden), jnp.float32),
        jax.ShapeDtypeStruct((hidden, width), jnp.float32),
    )
    mesh = AbstractMesh((8,), ("model",))
    specs = (P(), P(None, "model"), P("model"))
    planned = plan(mlp, args, mesh, in_specs=specs, out_specs=P())
    (reduction,) = planned.prediction.collectives
    assert reduction.kind == "all-reduce"
    assert reduction.axes == ("model",)
    assert reduction.bytes == rows * width * 4
    assert planned.in_specs == specs


def test_tensor_parallel_alternative_is_megatron() -> None:
    """Without being told, among layouts that leave the batch alone the best is column, then row."""
    shapes = [(4096, 512), (512, 4096), (4096, 512)]

    def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return x + jax.nn.gelu(x @ w1) @ w2

    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    # By other profiles it may pay to add x in parts, and to gather the sums.
    by = measured_model("cpu-2core-amd.json")
    mesh = AbstractMesh((8,), ("model",))
    planned = plan(mlp, args, mesh, in_specs=(P(), None, None), out_specs=P(), cost_model=by)
    megatron = planned.alternatives["tensor-parallel"]
    assert megatron.in_specs[1:] == (P(None, "model"), P("model"))
    assert [(one.kind, one.bytes) for one in megatron.prediction.collectives] == [("all-reduce", 4096 * 512 * 4)]


def test_axis_types_are_the_users() -> None:
    assert plan(layer, (BIG, floats(256, 256)), EXPLICIT).mesh.axis_types == (AxisType.Explicit,) * 2


def test_explain_names_the_arguments() -> None:
    text = layer_plan().explain()
    assert "x  " in text
    assert "split: dimension 0 over x" in text
    assert "split: dimension 1 over y" in text
    assert "tensor-parallel" in text or "data-parallel" in text


def test_explain_groups_layers_by_their_names() -> None:
    def named(params: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for place in range(3):
            x = x @ params[f"h_{place}"]["w"]
        return x

    params = {f"h_{place}": {"w": floats(64, 64)} for place in range(3)}
    assert "params/h_*/w (3)" in plan(named, (params, floats(64, 64)), MESH).explain()


def test_attention_uses_every_device() -> None:
    """Heads or rows: something is split eight ways where all are worth it."""
    shapes = [jax.ShapeDtypeStruct((16, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)]
    assert plan(attention, shapes, MESH).prediction.step_seconds > 0
