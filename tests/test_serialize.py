"""Plans as JSON: read back they are the same plan; for anything else they are refused."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, floats
from forced import device_mesh
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from programs import PROGRAMS

from costmodel import CostModel, preset
from planner import Plan, PlanMismatch, plan

P = PartitionSpec
MESH = device_mesh(x=2, y=4)
ARGS = ({"w": floats(32, 64), "b": floats(64)}, floats(16, 32))


def layer(params: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jax.nn.relu(x @ params["w"] + params["b"])
    return y, y.sum()


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning")
@pytest.mark.parametrize("case", [case for case in PROGRAMS if not case.name.startswith("keys")], ids=lambda c: c.name)
def test_read_back_it_is_the_same_plan(case: Case) -> None:
    written = plan(case.fn, case.args, MESH)
    read = Plan.from_json(written.to_json(), case.fn, case.args, MESH)
    assert read.choice.assignment.picks == written.choice.assignment.picks
    assert read.in_specs == written.in_specs
    assert read.out_specs == written.out_specs
    assert read.prediction == written.prediction
    assert read.objective_seconds == pytest.approx(written.objective_seconds)
    assert read.lower_bound_seconds == pytest.approx(written.lower_bound_seconds)
    assert read.to_json() == written.to_json()


def test_however_often_it_is_read_it_is_predicted_alike_to_the_last_digit() -> None:
    """Sums go in the order of the program, not in that of where its instructions lie in memory."""
    (case,) = (case for case in PROGRAMS if case.name == "conjugate gradient gradient")
    written = plan(case.fn, case.args, MESH)
    text = written.to_json()
    for _ in range(12):
        assert Plan.from_json(text, case.fn, case.args, MESH).prediction == written.prediction


def test_layouts_have_another_price_on_other_devices() -> None:
    here, there = plan(layer, ARGS, MESH), CostModel(preset("h100-dgx:1"))
    for elsewhere in (here.repriced(there), Plan.from_json(here.to_json(), layer, ARGS, MESH, cost_model=there)):
        assert elsewhere.in_specs == here.in_specs
        assert elsewhere.out_specs == here.out_specs
        assert elsewhere.prediction.communicated_bytes == here.prediction.communicated_bytes
        assert elsewhere.prediction.step_seconds < here.prediction.step_seconds


def test_a_plan_priced_anew_is_the_same_program() -> None:
    """What is exchanged here would be gathered by a plan that is made for other devices."""
    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    args, there = (floats(512, 1024),), CostModel(preset("h100-dgx:1"))

    def fn(x: jax.Array) -> jax.Array:
        return jnp.sin(lax.with_sharding_constraint(x, NamedSharding(mesh, P("x"))))

    here = plan(fn, args, mesh, in_specs=P(None, "x"), out_specs=P())
    made_there = Plan.from_json(here.to_json(), fn, args, mesh, cost_model=there)
    steps = [each.kind for each in here.prediction.collectives]
    assert steps == ["all-to-all", "all-gather"]
    assert [each.kind for each in here.repriced(there).prediction.collectives] == steps
    assert [each.kind for each in made_there.prediction.collectives] == ["all-gather", "all-gather"]


def test_what_was_asked_for_is_read_back() -> None:
    specs: dict[str, Any] = {"in_specs": ({"w": P(None, ("x", "y")), "b": None}, P("x")), "out_specs": (P("y"), None)}
    written = plan(layer, ARGS, MESH, donate_argnums=1, **specs)
    read = Plan.from_json(written.to_json(), layer, ARGS, MESH)
    assert read.request == written.request
    assert read.status == written.status
    np.testing.assert_allclose(read.jit().lower(*ARGS).compile()(*read.place(*ARGS))[0], layer(*ARGS)[0], rtol=1e-5)


def test_a_plan_for_a_machine_elsewhere_runs_here() -> None:
    """Planned with one machine's prices on an abstract mesh, read where there are devices."""
    model = CostModel(preset("h100-dgx:1"))
    written = plan(layer, ARGS, AbstractMesh((2, 4), ("x", "y")), cost_model=model)
    read = Plan.from_json(written.to_json(), layer, ARGS, MESH)
    assert read.in_specs == written.in_specs
    np.testing.assert_allclose(read.jit()(*ARGS)[0], layer(*ARGS)[0], rtol=1e-5)


def test_a_plan_with_a_memory_limit_is_read_back() -> None:
    peak = plan(layer, ARGS, MESH).prediction.peak_bytes
    written = plan(layer, ARGS, MESH, memory_limit=peak)
    assert Plan.from_json(written.to_json(), layer, ARGS, MESH).prediction.peak_bytes <= peak


def other_name(params: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return layer(params, x)


def test_other_functions_shapes_and_meshes_are_refused() -> None:
    text = plan(layer, ARGS, MESH).to_json()

    def changed(params: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.tanh(x @ params["w"]) @ params["w"].T
        return y, y.sum()

    changed.__name__ = "layer"
    wider = ({"w": floats(32, 128), "b": floats(128)}, ARGS[1])
    half = jax.tree.map(lambda array: array.astype(np.float16), ARGS)
    with pytest.raises(PlanMismatch, match=r"other functions: layer, here they are other_name; plan again"):
        Plan.from_json(text, other_name, ARGS, MESH)
    with pytest.raises(PlanMismatch, match=r"other arguments: .*64.*128"):
        Plan.from_json(text, layer, wider, MESH)
    with pytest.raises(PlanMismatch, match=r"other arguments: .*float32.*float16"):
        Plan.from_json(text, layer, half, MESH)
    with pytest.raises(PlanMismatch, match=r"other mesh axes: \{'x': 2, 'y': 4\}, here they are \{'x': 4, 'y': 2\}"):
        Plan.from_json(text, layer, ARGS, device_mesh(x=4, y=2))
    with pytest.raises(PlanMismatch, match=r"other mesh axes: "):
        Plan.from_json(text, layer, ARGS, device_mesh(a=2, b=4))
    with pytest.raises(PlanMismatch, match=r"other ops: "):
        Plan.from_json(text, changed, ARGS, MESH)


@pytest.mark.parametrize("text", ["", "plan", "[]", "{}", "3", '{"format": 99}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanMismatch, match=r"no plan that Plan\.to_json wrote|format 99, this version reads"):
        Plan.from_json(text, layer, ARGS, MESH)


def test_a_plan_that_was_tampered_with_is_refused() -> None:
    document = json.loads(plan(layer, ARGS, MESH).to_json())
    strategies = document["strategies"]
    for broken in (strategies[:-1], [*strategies[:-1], [[["nowhere"]], None]], None):
        with pytest.raises(PlanMismatch, match="plan again"):
            Plan.from_json(json.dumps({**document, "strategies": broken}), layer, ARGS, MESH)


def test_it_is_small_and_holds_no_array() -> None:
    assert len(plan(layer, ARGS, MESH).to_json()) < 3000
