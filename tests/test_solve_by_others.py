"""The solver against other ways to the same optimum: CP-SAT on a plain formulation, and itself without numba."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ortools.sat.python import cp_model

from planner.problem import Edge, Problem, tie
from planner.solve import solve
from planner.solve.model import Model
from planner.solve.ties import without_ties
from tests.problems import random_problem


def optimum_by_cp_sat(problem: Problem) -> float:
    """Of whole costs: a literal for each strategy, and one for each pair of strategies that an edge joins; the pairs
    of a strategy add up to it."""
    sat = cp_model.CpModel()
    picks = [[sat.new_bool_var("") for _ in costs] for costs in problem.costs]
    terms = []
    for own, costs in zip(picks, problem.costs, strict=True):
        sat.add_exactly_one(own)
        for pick, cost in zip(own, costs.tolist(), strict=True):
            if math.isinf(cost):
                sat.add(pick == 0)
            else:
                terms.append(int(cost) * pick)
    for edge in problem.edges:
        pairs = np.array([[sat.new_bool_var("") for _ in row] for row in edge.cost], dtype=object)
        for s, pick in enumerate(picks[edge.tail]):
            sat.add(sum(pairs[s]) == pick)
        for t, pick in enumerate(picks[edge.head]):
            sat.add(sum(pairs[:, t]) == pick)
        for (s, t), cost in np.ndenumerate(edge.cost):
            if math.isinf(cost):
                sat.add(pairs[s, t] == 0)
            else:
                terms.append(int(cost) * pairs[s, t])
    for time in {start for start, _ in problem.intervals} if problem.usage_limit is not None else ():
        live = [
            int(usage) * pick
            for own, usages, (start, end) in zip(picks, problem.usages, problem.intervals, strict=True)
            if start <= time < end
            for pick, usage in zip(own, usages.tolist(), strict=True)
        ]
        sat.add(sum(live) <= int(problem.usage_limit or 0))
    sat.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    status = solver.solve(sat)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return solver.objective_value if status == cp_model.OPTIMAL else math.inf


def middling_problem(seed: int) -> Problem:
    """Twenty nodes, twice as many edges between neighbours and across, some pairs forbidden, a limit that binds."""
    random = np.random.default_rng(seed)
    count, sizes = 20, random.integers(2, 6, 20)
    edges = []
    for tail in range(count):
        for head in {tail + 1, tail + int(random.integers(2, 8))}:
            if head < count:
                cost = random.integers(0, 50, (sizes[tail], sizes[head])).astype(float)
                cost[random.random(cost.shape) < 0.1] = math.inf
                edges.append(Edge(tail, head, cost))
    usages = tuple(random.integers(1, 40, size).astype(float) for size in sizes)
    costs = tuple(
        random.integers(0, 50, size) + np.floor(200.0 / usage) for size, usage in zip(sizes, usages, strict=True)
    )
    spans = tuple((node, node + int(random.integers(2, 8))) for node in range(count))
    peak = max(
        sum(float(usages[node].mean()) for node in range(count) if spans[node][0] <= time < spans[node][1])
        for time in range(count)
    )
    return Problem(costs, usages, spans, tuple(edges), math.floor(0.8 * peak))


@pytest.mark.parametrize("seed", range(12))
def test_cp_sat_finds_no_other_optimum(seed: int) -> None:
    problem = middling_problem(seed)
    found, optimum = solve(problem, time_limit=60), optimum_by_cp_sat(problem)
    assert found.status == ("infeasible" if math.isinf(optimum) else "optimal")
    assert found.cost == optimum
    assert found.lower_bound == pytest.approx(optimum)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_without_ties_costs_and_needs_the_same(seed: int) -> None:
    random = np.random.default_rng(seed)
    problem = random_problem(seed, nodes=8, strategies=3)
    groups = [3 * int(random.integers(2)) + costs.size for costs in problem.costs]
    tied = tie(problem, groups)
    merged = without_ties(tied)
    assert len(merged.model.costs) == len(set(groups))
    picks = np.array([int(random.integers(costs.size)) for costs in merged.model.costs])
    whole = merged.lift(picks)
    found = tied.evaluate(whole)
    assert merged.model.cost(picks) == pytest.approx(found.cost)
    assert merged.project(whole).tolist() == picks.tolist()
    if tied.usage_limit is not None and merged.model.rows:
        unmerged = Model.from_problem(tied)
        np.testing.assert_allclose(merged.model.usage(picks), unmerged.usage(whole))


WITHOUT_NUMBA = """
import json, sys
sys.modules["numba"] = None
from planner.problem import Problem
from planner.solve import solve
found = solve(Problem.read(sys.argv[1]), time_limit=60, work_limit=0.05)
print(json.dumps([found.picks.tolist(), found.lower_bound]))
"""


def test_without_numba_the_answer_is_the_same(tmp_path: Path) -> None:
    problem = middling_problem(7)
    problem.write(tmp_path / "problem.json")
    command = [sys.executable, "-c", WITHOUT_NUMBA, str(tmp_path / "problem.json")]
    plain = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    picks, lower_bound = json.loads(plain.stdout)
    found = solve(problem, time_limit=60, work_limit=0.05)
    assert found.picks is not None
    assert picks == found.picks.tolist()
    assert lower_bound == pytest.approx(found.lower_bound)
