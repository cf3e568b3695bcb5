"""Exact elimination: a node is replaced by a table of its best cost for every choice of its neighbours.

Each step takes `min over x of sum of the tables that x is in`, and remembers which x. Eliminating every node leaves the
optimum as a number (bucket elimination; Dechter, 1999). The order takes the node with the smallest table first.
Only nodes without memory in any row may go this way.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from planner.problem import FloatArray
from planner.solve.model import Given, Model, Pair, Reduction

TABLE_ENTRIES = 20_000_000
"""The largest table that is built: 160 MB."""

TOTAL_ENTRIES = 60_000_000
"""All tables of one elimination together: about a second."""

SOON_ENTRIES = TOTAL_ENTRIES // 10
"""As many before a bound is raised, which often takes less time than larger tables and leaves smaller ones."""

CHAIN_ENTRIES = 300_000
"""The largest table for folding a node between two neighbours: about a millisecond."""


def eliminate(model: Model, total_entries: int = TOTAL_ENTRIES) -> Reduction | None:
    """All nodes eliminated: the offset that is left is the optimum. None if the tables would be too large."""
    order, entries = _order(model, degree=len(model.costs), table_entries=TABLE_ENTRIES)
    if len(order) < len(model.costs) or entries > total_entries:
        return None
    return _eliminated(model, order)


def fold_chains(model: Model) -> Reduction:
    """Leaves, and nodes between two others, eliminated: what is left is pairwise still."""
    order, _ = _order(model, degree=2, table_entries=CHAIN_ENTRIES)
    return _eliminated(model, order)


def _order(model: Model, degree: int, table_entries: int) -> tuple[list[int], int]:
    """Nodes to eliminate, those with the smallest table first, as far as the limits allow; and the tables' entries."""
    sizes = [costs.size for costs in model.costs]
    near: list[set[int]] = [set() for _ in sizes]
    for i, j in model.pairs:
        near[i].add(j)
        near[j].add(i)

    def entries(node: int) -> int:
        return sizes[node] * math.prod(sizes[other] for other in near[node])

    free = {node for node, load in enumerate(model.loads) if not load.spans.size}
    heap = [(entries(node), node) for node in free]
    heapq.heapify(heap)
    order: list[int] = []
    total = 0
    while heap:
        size, node = heapq.heappop(heap)
        if node not in free or size != entries(node) or size > table_entries or len(near[node]) > degree:
            continue
        free.remove(node)
        order.append(node)
        total += size
        for other in near[node]:
            near[other] |= near[node]
            near[other] -= {node, other}
        for other in near[node] & free:
            heapq.heappush(heap, (entries(other), other))
    return order, total


def _eliminated(model: Model, order: Iterable[int]) -> Reduction:
    tables: dict[tuple[int, ...], FloatArray] = {(node,): costs for node, costs in enumerate(model.costs)}
    tables.update(((i, j), cost) for (i, j), cost in model.pairs.items())
    touching: list[set[tuple[int, ...]]] = [set() for _ in model.costs]
    for scope in tables:
        for node in scope:
            touching[node].add(scope)
    steps = []
    offset = model.offset
    for node in order:
        scopes = list(touching[node])
        others = tuple(sorted(set().union(*scopes) - {node}))
        table = _sum(tables, scopes, (*others, node))
        steps.append(Given(node, others, table.argmin(axis=-1).astype(np.int32)))
        least = table.min(axis=-1)
        for scope in scopes:
            del tables[scope]
            for member in scope:
                touching[member].discard(scope)
        if not others:
            offset += float(least)
            continue
        tables[others] = tables[others] + least if others in tables else least
        for member in others:
            touching[member].add(others)
    return _what_is_left(model, tables, offset, steps)


def _sum(tables: dict[tuple[int, ...], FloatArray], scopes: list[tuple[int, ...]], axes: tuple[int, ...]) -> FloatArray:
    """The tables added up over one set of axes; each scope is in ascending order."""
    position = {node: axis for axis, node in enumerate(axes)}
    total: FloatArray = np.zeros((1,) * len(axes))
    # Small tables first, so that the full size is only reached in the last additions.
    for scope in sorted(scopes, key=lambda scope: tables[scope].size):
        by_axis = sorted(range(len(scope)), key=lambda at: position[scope[at]])
        shape = [1] * len(axes)
        for at in by_axis:
            shape[position[scope[at]]] = tables[scope].shape[at]
        total = total + tables[scope].transpose(by_axis).reshape(shape)
    return total


def _what_is_left(
    model: Model, tables: dict[tuple[int, ...], FloatArray], offset: float, steps: list[Given]
) -> Reduction:
    nodes = sorted(scope[0] for scope in tables if len(scope) == 1)
    index = {node: new for new, node in enumerate(nodes)}
    pairs: dict[Pair, FloatArray] = {
        (index[scope[0]], index[scope[1]]): table for scope, table in tables.items() if len(scope) == 2
    }
    left = replace(
        model,
        costs=tuple(tables[(node,)] for node in nodes),
        pairs=pairs,
        loads=tuple(model.loads[node] for node in nodes),
        offset=offset,
    )
    return Reduction(left, tuple(nodes), tuple(steps), len(model.costs))
