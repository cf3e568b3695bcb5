"""Nodes that are tied to pick the same strategy, as twin layers are, merged before anything else is done.

Presolve would merge them too, one after the other; a network of a hundred layers is as small as one of two this way.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from planner.problem import FloatArray, IntArray, Problem
from planner.solve.model import Given, Model, Reduction


def without_ties(problem: Problem) -> Reduction:
    """The problem as a model in which tied nodes are one."""
    group = _groups(problem)
    leaders = np.unique(group, return_index=True)[1]
    same = [np.arange(cost.size) for cost in (problem.costs[leader] for leader in leaders)]
    steps = tuple(
        Given(node, (int(leaders[number]),), same[number])
        for node, number in enumerate(group.tolist())
        if leaders[number] != node
    )
    return Reduction(Model.from_problem(problem, group), tuple(map(int, leaders)), steps, group.size)


def _groups(problem: Problem) -> IntArray:
    """For each node the number of its group; numbers ascend with each group's first node."""
    count = len(problem.costs)
    known = {id(edge.cost): edge.cost for edge in problem.edges}
    ties = {key for key, cost in known.items() if _ties(cost)}
    ends = np.array([(edge.tail, edge.head) for edge in problem.edges if id(edge.cost) in ties], dtype=np.int64)
    if not ends.size:
        return np.arange(count)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    first = np.unique(labels, return_index=True)[1]
    order = np.empty(first.size, dtype=np.int64)
    order[np.argsort(first)] = np.arange(first.size)
    return order[labels]


def _ties(cost: FloatArray) -> bool:
    """Whether equal strategies go together at no cost, and no others."""
    rows, columns = cost.shape
    if rows != columns or cost[0, 0] != 0 or (rows > 1 and cost[0, 1] != np.inf):
        return False
    return bool((cost == np.where(np.eye(rows, dtype=bool), 0.0, np.inf)).all())
