"""Limits of bytes per device that hold, against every assignment there is."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case
from costmodel_cases import SOLVERS_PRICES
from forced import priced_on
from jax.sharding import AbstractMesh

from costmodel import CostModel, preset
from planner import Infeasible, Plan, plan
from planner.assignment import Assignment
from planner.predict import predict

S = jax.ShapeDtypeStruct
EIGHT = AbstractMesh((8,), ("x",))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def two_layers(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sort(x @ w, axis=0) @ w)


SMALL = {
    "layer": Case("layer", layer, (np.ones((512, 64), np.float32), np.ones((64, 256), np.float32))),
    "two layers": Case("two layers", two_layers, (np.ones((512, 64), np.float32), np.ones((64, 64), np.float32))),
}


@functools.cache
def every_outcome(name: str) -> list[tuple[float, float]]:
    """Peak and objective of every assignment of the problem, on a mesh of eight."""
    priced = priced_on(SMALL[name], EIGHT, SOLVERS_PRICES)  # type: ignore[arg-type]
    options = [range(len(strategies)) for strategies in priced.strategies]
    assert math.prod(map(len, options)) < 3000, "or this takes too long"
    outcomes = []
    for picks in itertools.product(*options):
        assignment = Assignment(priced, (*picks, 0))
        cost = priced.problem.evaluate(assignment.picks).cost
        outcomes.append((predict(assignment, (None,)).peak_bytes, cost))
    return outcomes


def planned(name: str, **options: Any) -> Plan:
    return plan(SMALL[name].fn, SMALL[name].args, EIGHT, cost_model=SOLVERS_PRICES, **options)


@pytest.mark.parametrize("name", SMALL)
def test_the_smallest_limit_is_the_smallest_there_is(name: str) -> None:
    least = min(peak_bytes for peak_bytes, _ in every_outcome(name))
    with pytest.raises(Infeasible) as caught:
        planned(name, memory_limit=least - 1)
    assert caught.value.smallest_limit_bytes == pytest.approx(least)
    assert planned(name, memory_limit=least).prediction.peak_bytes <= least


@pytest.mark.parametrize("name", SMALL)
def test_every_limit_gets_the_best_that_fits(name: str) -> None:
    outcomes = every_outcome(name)
    limits = sorted({peak_bytes for peak_bytes, _ in outcomes})
    for limit in limits[:: max(1, len(limits) // 6)]:
        found = planned(name, memory_limit=limit)
        best = min(cost for peak_bytes, cost in outcomes if peak_bytes <= limit)
        assert found.prediction.peak_bytes <= limit
        assert found.objective_seconds == pytest.approx(best), f"limit {limit}"


def test_a_looser_limit_is_never_worse() -> None:
    costs = []
    free = planned("two layers").prediction.peak_bytes
    for factor in (0.7, 0.8, 0.9, 1.0, 1.1):
        try:
            costs.append(planned("two layers", memory_limit=free * factor).objective_seconds)
        except Infeasible:
            assert not costs, "what fitted less fits more"
    assert costs == sorted(costs, reverse=True)


def test_the_devices_memory_is_the_limit_where_it_is_known() -> None:
    """Eighty gigabytes each: a terabyte of parameters fits on no eight of them."""
    model = CostModel(preset("h100-dgx:1"))
    huge = S((1 << 20, 1 << 18), jnp.float32)
    with pytest.raises(Infeasible, match=r"no plan fits \d+\.\d GiB per device; the smallest needs .* x 128\.0 GiB"):
        plan(lambda x: x.sum(), (huge,), EIGHT, cost_model=model)
    fitting = plan(lambda x: x.sum(), (S((1 << 20, 1 << 15), jnp.float32),), EIGHT, cost_model=model)
    assert fitting.prediction.peak_bytes < model.topology.device.memory_bytes
