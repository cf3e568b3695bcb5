"""The layouts that a plan is held against are what their names say."""

from __future__ import annotations

import jax
import pytest
from costmodel_cases import along, machine
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from costmodel import CostModel
from experiments.baselines import DIMENSIONS, STRATEGIES, NotApplicable, is_strategy, layout, memory_part
from experiments.runner.trial import Dimensions
from experiments.workloads import workload
from planner import Plan, plan


@pytest.fixture(scope="module")
def moe() -> Plan:
    """By prices at which nothing but bytes counts: where starting a collective does, so few tokens may be gathered."""
    work = workload("moe")
    model, mesh = CostModel(machine(along("x", 8))), AbstractMesh((8,), ("x",))
    return plan(work.fn, work.example_args, mesh, cost_model=model, donate_argnums=work.donate_argnums, time_limit=0.0)


def test_sequence_parallel_splits_the_sequence_and_no_parameter(moe: Plan) -> None:
    found = layout(moe, "sequence-parallel", DIMENSIONS["moe"], 0)
    state, batch = found.in_specs
    assert batch == {"inputs": P(None, "x"), "targets": P(None, "x")}
    assert all(spec == P() for spec in jax.tree.leaves(state["params"], is_leaf=lambda leaf: isinstance(leaf, P)))


def test_expert_parallel_splits_experts_and_sends_tokens(moe: Plan) -> None:
    found = layout(moe, "expert-parallel", DIMENSIONS["moe"], 0)
    state, batch = found.in_specs
    assert state["params"] == {"router": P(), "w_up": P("x"), "w_down": P("x")}
    assert batch == {"inputs": P("x"), "targets": P("x")}
    kinds = {one.kind for one in found.prediction.collectives}
    assert "all-to-all" in kinds
    gathered = [one.bytes for one in found.prediction.collectives if one.kind == "all-gather"]
    experts = 8 * 128 * 512 * 4
    assert max(gathered, default=0) < experts, "experts stay where they are"


def test_random_is_the_same_for_the_same_seed(moe: Plan) -> None:
    once, again, other = (layout(moe, "random", Dimensions(), seed).choice.assignment.picks for seed in (1, 1, 2))
    assert once == again != other


def test_what_a_function_does_not_have_is_not_applicable(moe: Plan) -> None:
    with pytest.raises(NotApplicable, match="nothing says which dimension of which argument is the experts"):
        layout(moe, "expert-parallel", Dimensions(experts={"elsewhere": 0}), 0)
    with pytest.raises(NotApplicable, match="no data x tensor layout on a mesh of"):
        layout(moe, "data x tensor", Dimensions(), 0)


def test_names_are_known() -> None:
    assert all(map(is_strategy, STRATEGIES))
    assert memory_part("planned@60%") == 0.6
    assert not is_strategy("planned@a%")
