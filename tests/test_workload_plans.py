"""Every workload, planned for meshes of one, two and three axes, computes what it does on one device.

The largest are planned for one of the meshes here, and for the others by `make test-long`.
"""

from __future__ import annotations

import functools

import jax
import pytest
from costmodel_cases import SOLVERS_PRICES
from forced import device_mesh

from executor import check
from experiments import workloads
from planner import Plan, plan

MESHES = {"8": {"x": 8}, "2x4": {"x": 2, "y": 4}, "2x2x2": {"x": 2, "y": 2, "z": 2}}

LARGE, THEIR_MESH = ("gpt", "gpt-scan", "llama", "cnn", "moe"), "2x4"


pytestmark = pytest.mark.parametrize(
    ("name", "mesh"),
    [
        pytest.param(name, mesh, id=f"{mesh}-{name}", marks=[pytest.mark.long] * (name in LARGE and mesh != THEIR_MESH))
        for name in workloads.names()
        for mesh in MESHES
    ],
)


@functools.cache
def planned(name: str, mesh: str, waits: bool = True) -> Plan:
    workload = workloads.workload(name)
    devices, model = device_mesh(**MESHES[mesh]), None if waits else SOLVERS_PRICES
    donated = workload.donate_argnums
    return plan(workload.fn, workload.example_args, devices, donate_argnums=donated, cost_model=model)


def test_computes_the_same(name: str, mesh: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = check(planned(name, mesh), workloads.workload(name).make_args(jax.random.key(0)))
    assert found.passed, f"{found.worst} is off by {found.error:.1e}"
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


def test_never_worse_than_the_hand_written(name: str, mesh: str) -> None:
    found = planned(name, mesh)
    assert set(found.alternatives) >= {"replicated", "data-parallel"}
    for alternative, other in found.alternatives.items():
        assert found.prediction.step_seconds <= other.prediction.step_seconds * (1 + 1e-9), alternative
    assert found.lower_bound_seconds <= found.objective_seconds * (1 + 1e-9)
    if is_hand_written(found):  # maybe for waits, which no solver sees
        found = planned(name, mesh, waits=False)
    if is_hand_written(found):  # maybe for the carries that a loop copies, which no solver sees either
        assert found.objective_seconds <= 1.05 * found.lower_bound_seconds
    else:
        assert found.status == "optimal"


def is_hand_written(found: Plan) -> bool:
    return found.choice.assignment.picks in found.choice.candidates.values()


def test_state_comes_out_as_it_went_in(name: str, mesh: str) -> None:
    found = planned(name, mesh)
    ins, outs = (jax.tree.leaves(shardings) for shardings in (found.in_shardings, found.out_shardings))
    if workloads.workload(name).donate_argnums:
        assert any(tie is not None for tie in found.request.ties)
    for out, tie in zip(outs, found.request.ties, strict=True):
        assert tie is None or out == ins[tie]


def test_explains_itself(name: str, mesh: str) -> None:
    text = planned(name, mesh).explain()
    assert text.startswith(f"{planned(name, mesh).traced.name} on a mesh of x=")
    for alternative in planned(name, mesh).alternatives:
        assert alternative in text
