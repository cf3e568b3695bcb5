"""Programs with callbacks, effects, kernels, nested control flow and odd types plan, run and give the same numbers."""

from __future__ import annotations

import jax
import pytest
from forced import device_mesh
from odd_programs import W, X, odd_cases, shard_map_inside
from planned import Job, outcomes

from executor.check import check
from planner import ReplicatedPrimitiveWarning, plan

MESHES = ({"x": 8}, {"x": 2, "y": 4})
TOGETHER = 6


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning")
@pytest.mark.parametrize("first", range(0, len(odd_cases()), TOGETHER), ids=lambda first: odd_cases()[first].name)
def test_odd_programs_compute_the_same(first: int) -> None:
    """As JAX is used; `python tests/sweep.py odd` takes more meshes and assignments."""
    with jax.numpy_dtype_promotion("standard"):
        found = outcomes(
            [Job(case, MESHES[1:], drawn=0, solved=False) for case in odd_cases()[first : first + TOGETHER]]
        )
    assert not [outcome for outcome in found if outcome.status != "passed"]


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning")
@pytest.mark.parametrize(
    "name", ["keys", "empty and scalar", "weak types", "narrow types", "nothing", "debug_callback"]
)
def test_odd_arguments_and_results(name: str) -> None:
    """By the way that users take."""
    (case,) = (case for case in odd_cases() if case.name == name)
    planned = plan(case.fn, case.args, device_mesh(x=2, y=4))
    found = check(planned, case.args)
    assert found.passed, found


def test_a_shard_map_keeps_its_specs() -> None:
    """Over the plan's own axes its specs are its rule; over others it is warned of."""
    planned = plan(shard_map_inside, (X, W), device_mesh(x=2, y=4), unknown="error")
    assignment = planned.choice.assignment
    (op,) = (op for op, _ in assignment.priced.graph.walk() if op.name == "shard_map")
    wanted = [assignment.wanted(use) for use in assignment.priced.decisions.operands[op] if use]
    assert wanted == [(("x",), ("y",)), (("y",), ())]
    assert assignment.home(op.results[0]) == (("x",), ())
    with pytest.warns(ReplicatedPrimitiveWarning, match=r"shard_map at odd_programs\.py:\d+"):
        plan(shard_map_inside, (X, W), device_mesh(x=8))
