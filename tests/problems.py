"""Random sharding problems, small enough for brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from planner.problem import Edge, FloatArray, Problem


def small_problem(usage_limit: float | None = None) -> Problem:
    """Two nodes that are cheap alone (0 and 0) but not together; 3 is the least."""
    clash = Edge(0, 1, np.array([[9.0, 0.0], [0.0, 0.0]]))
    return Problem(
        costs=(np.array([0.0, 4.0]), np.array([0.0, 3.0])),
        usages=(np.array([1.0, 1.0]), np.array([1.0, 1.0])),
        intervals=((0, 2), (1, 3)),
        edges=(clash,),
        usage_limit=usage_limit,
    )


def random_problem(seed: int, nodes: int, strategies: int, *, whole: bool = True, limited: bool = True) -> Problem:
    """Random costs, loops, parallel edges, impossible strategies and pairs, and a limit that often binds."""
    random = np.random.default_rng(seed)
    sizes = [int(random.integers(1, strategies + 1)) for _ in range(nodes)]

    def numbers(*shape: int) -> FloatArray:
        return random.integers(0, 20, shape).astype(float) if whole else random.random(shape)

    costs = [numbers(size) for size in sizes]
    for cost in costs:
        if cost.size > 1 and random.random() < 0.2:
            cost[random.integers(cost.size)] = math.inf
    usages = [random.integers(0, 10, size).astype(float) for size in sizes]
    intervals = [sorted(random.integers(0, 8, 2).tolist()) for _ in sizes]
    edges = []
    for _ in range(int(random.integers(0, 2 * nodes + 1))):
        tail, head = random.integers(0, nodes, 2).tolist()
        cost = numbers(sizes[tail], sizes[head])
        if random.random() < 0.4:
            cost[random.random(cost.shape) < 0.3] = math.inf
        edges.append(Edge(tail, head, cost))
    limit = float(random.integers(2 * nodes, 8 * nodes)) if limited and random.random() < 0.8 else None
    return Problem(tuple(costs), tuple(usages), tuple((start, end) for start, end in intervals), tuple(edges), limit)


def problems(nodes: int = 5, strategies: int = 4) -> st.SearchStrategy[Problem]:
    return st.builds(
        random_problem,
        st.integers(0, 2**32 - 1),
        st.integers(1, nodes),
        st.integers(1, strategies),
        whole=st.booleans(),
    )


@dataclass(frozen=True)
class BruteForce:
    """The least cost of an assignment that fits, and the least peak of one of finite cost; `inf` if there is none."""

    cost: float
    peak: float


def brute_force(problem: Problem) -> BruteForce:
    found = [problem.evaluate(picks) for picks in itertools.product(*(range(costs.size) for costs in problem.costs))]
    return BruteForce(
        cost=min((one.cost for one in found if one.feasible), default=math.inf),
        peak=min((one.peak_usage for one in found if one.cost < math.inf), default=math.inf),
    )


def grid(side: int, strategies: int, random: np.random.Generator) -> Problem:
    """Nodes in a square, random costs between neighbours and twice as much of their own."""
    at = np.arange(side * side).reshape(side, side)
    ends = [*zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), *zip(at[:-1].flat, at[1:].flat, strict=True)]
    edges = tuple(Edge(int(i), int(j), random.random((strategies, strategies))) for i, j in ends)
    costs = tuple(2 * random.random(strategies) for _ in range(at.size))
    return Problem(costs, costs, ((0, 1),) * at.size, edges)
