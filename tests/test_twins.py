"""Problems with one node for each class of twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.problem import tie
from planner.solve import solve
from planner.twins import merge
from tests.problems import random_problem


@pytest.mark.parametrize("seed", range(20))
def test_a_merged_problem_costs_what_the_tied_one_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    problem = replace(random_problem(seed, nodes=8, strategies=3), usage_limit=None)
    classes = [3 * int(random.integers(2)) + costs.size for costs in problem.costs]
    merged, tied = merge(problem, classes), tie(problem, classes)
    assert len(merged.problem.costs) == len(set(classes))
    for _ in range(5):
        picks = [int(random.integers(costs.size)) for costs in merged.problem.costs]
        whole = merged.lift(picks)
        assert merged.problem.evaluate(picks).cost == pytest.approx(tied.evaluate(whole).cost)
        assert merged.project(whole).tolist() == picks
    assert solve(merged.problem).cost == pytest.approx(solve(tied).cost)
