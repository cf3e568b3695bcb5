"""Elimination of what lies below a cutoff: it finds the optimum or says that there is none, or gives up."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from planner.problem import Edge, Problem
from planner.solve import solve
from planner.solve.clock import Clock
from planner.solve.eliminate import eliminate
from planner.solve.model import Model
from planner.solve.narrow import eliminate_below
from planner.solve.rows import Impossible
from tests.problems import brute_force, grid, problems

NO_LIMIT = Clock.of(math.inf)


@settings(deadline=None)
@given(problems())
def test_elimination_below_a_cutoff_finds_what_is_below_it(problem: Problem) -> None:
    unlimited = replace(problem, usage_limit=None)
    best, model = brute_force(unlimited).cost, Model.from_problem(unlimited)
    if math.isinf(best):
        return
    nearly = 1e-9 * (1 + abs(best))
    reduction = eliminate_below(model, best + nearly, NO_LIMIT)
    assert reduction is not None
    assert reduction.model.offset == pytest.approx(best)
    assert model.cost(reduction.lift(np.zeros(0, dtype=np.int64))) == pytest.approx(best)
    with pytest.raises(Impossible):
        eliminate_below(model, best - nearly, NO_LIMIT)


def test_elimination_below_a_cutoff_gives_up_where_choices_cannot_be_numbered() -> None:
    """Seventy nodes of two strategies, each next to all others: 2**70 entries."""
    alike = np.array([[0.0, 9.0], [9.0, 9.0]])
    problem = Problem(
        (np.zeros(2),) * 70,
        (np.zeros(2),) * 70,
        ((0, 1),) * 70,
        tuple(Edge(i, j, alike) for i, j in itertools.combinations(range(70), 2)),
    )
    assert eliminate_below(Model.from_problem(problem), 1.0, NO_LIMIT) is None
    assert solve(problem).cost == 0.0


def test_elimination_below_a_cutoff_where_a_full_table_is_too_large() -> None:
    """A grid, where the relaxation alone does not prove the optimum either."""
    problem = grid(7, 12, np.random.default_rng(5))
    assert eliminate(Model.from_problem(problem)) is None
    found = solve(problem, time_limit=20)
    assert found.status == "optimal"
    assert found.method == "elimination"
