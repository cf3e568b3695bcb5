"""`python -m planner.solve.warm`: compiles the inner loops, so that nobody's first solve has to wait for it."""

from __future__ import annotations

import numpy as np

from planner.problem import Edge, FloatArray, Problem
from planner.solve import solve


def warm() -> None:
    """Solves something that takes all of them."""
    solve(grid(side=5, strategies=6), time_limit=600.0, work_limit=0.02)


def grid(side: int, strategies: int) -> Problem:
    """Far from a tree, with costs that no strategy dominates and memory that binds."""
    random = np.random.default_rng(0)
    at = np.arange(side * side).reshape(side, side)
    ends = [
        *zip(at[:, :-1].ravel(), at[:, 1:].ravel(), strict=True),
        *zip(at[:-1].ravel(), at[1:].ravel(), strict=True),
    ]
    usages: list[FloatArray] = [random.integers(1, 100, strategies).astype(np.float64) for _ in range(at.size)]
    costs = tuple(random.random(strategies) + 20.0 / usage for usage in usages)
    edges = tuple(Edge(int(i), int(j), random.random((strategies, strategies))) for i, j in ends)
    limit = sum(float(0.8 * usage.min() + 0.2 * usage.mean()) for usage in usages)
    return Problem(costs, tuple(usages), ((0, 1),) * at.size, edges, limit)


if __name__ == "__main__":
    warm()
