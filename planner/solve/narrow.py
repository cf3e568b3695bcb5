"""Exact elimination of what can still be better than the best assignment that is known.

Where each node and pair costs nothing or more, and the offset is a bound, an assignment whose parts add up to more than
the gap between bound and cutoff is not worth looking for; neither is a part of one. So tables list only the choices of
their nodes that add up to no more, among themselves and with what is left of the model between them. Where a
reparametrisation has brought the bound near the cutoff these are few, however many a full table would have
(`eliminate.py`), and however far the relaxation is from proving the optimum by itself.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.problem import FloatArray, IntArray
from planner.solve.clock import Clock
from planner.solve.model import GivenFew, Model, Reduction, codes
from planner.solve.rows import Impossible

TABLE_CHOICES = 1_000_000
"""The longest table: some tenths of a second to make."""

MOST_ENTRIES = np.iinfo(np.int64).max
"""Of the full table that a table is part of: each entry has a number."""

LISTED_WORK = 30.0
"""What a number in a table counts: it is sorted by and looked up."""


@dataclass(frozen=True, eq=False)
class Table:
    """The choices of some nodes that may be part of an assignment worth looking for, and what they cost.

    Attributes:
        scope: the nodes, ascending.
        picks: (nodes, choices), each choice once.
        costs: per choice, 0 or more.
    """

    scope: tuple[int, ...]
    picks: IntArray
    costs: FloatArray

    def keep(self, which: IntArray | NDArray[np.bool_]) -> Table:
        return Table(self.scope, self.picks[:, which], self.costs[which])


def eliminate_below(model: Model, cutoff: float, clock: Clock) -> Reduction | None:
    """All nodes eliminated: the offset that is left is the optimum, if that is below the cutoff or equal to it.

    None if the tables become too long, time or work are up, or a node needs memory.

    Raises:
        Impossible: every assignment costs more than the cutoff.
    """
    if any(load.spans.size for load in model.loads):
        return None
    narrow = _Narrow(model, cutoff)
    steps = []
    while narrow.left:
        if clock.expired:
            return None
        step = narrow.eliminate(clock)
        if step is None:
            return None
        steps.append(step)
    return narrow.reduction(steps)


class _Narrow:
    """What is left of a model on the way."""

    def __init__(self, model: Model, cutoff: float):
        self.model = model
        self.sizes = [costs.size for costs in model.costs]
        least = [float(costs.min()) for costs in model.costs]
        self.alone = [costs - low for costs, low in zip(model.costs, least, strict=True)]
        """Per node, what each strategy costs at least: exactly that, or `inf` for what is in no choice any more."""
        lows = {pair: float(cost.min()) for pair, cost in model.pairs.items()}
        self.offset = model.offset + sum(least) + sum(lows.values())
        self.gap = cutoff - self.offset
        if self.gap < 0:
            raise Impossible
        self.touching: list[dict[tuple[int, ...], Table]] = [{} for _ in self.sizes]
        for (i, j), cost in model.pairs.items():
            rest = cost - lows[i, j]
            picks = np.array(np.nonzero(rest + self.alone[i][:, None] + self.alone[j] <= self.gap))
            self.put(Table((i, j), picks, rest[tuple(picks)]))
        self.left = set(range(len(self.sizes)))
        self.queue = [(self.entries(node), node) for node in self.left]
        heapq.heapify(self.queue)

    def put(self, table: Table) -> None:
        if not table.costs.size:
            raise Impossible
        for node in table.scope:
            self.touching[node][table.scope] = table

    def entries(self, node: int) -> int:
        """Of the full table of a node and all its neighbours: the choices that it lists grow with it."""
        scope = {node, *(other for table in self.touching[node].values() for other in table.scope)}
        return math.prod(self.sizes[each] for each in scope)

    def eliminate(self, clock: Clock) -> GivenFew | None:
        """The node with the smallest full table is gone; None if what it lists of that is too much."""
        node = self._next()
        if self.entries(node) > MOST_ENTRIES:
            return None
        tables = list(self.touching[node].values())
        joined = Table((node,), np.arange(self.sizes[node])[None], self.alone[node])
        joined = joined.keep(joined.costs <= self.gap)
        while tables:
            tables.sort(key=lambda table: self._matches(table, joined.scope), reverse=True)
            found = self._join(joined, tables.pop())
            if found is None:
                return None
            joined = found
            clock.work(LISTED_WORK * joined.picks.size)
        joined = joined.keep(self._floor(joined, node) <= self.gap)
        if not joined.costs.size:
            raise Impossible
        self._forget_others(joined)
        return self._without(node, joined)

    def _next(self) -> int:
        while True:
            entries, node = heapq.heappop(self.queue)
            if node in self.left and entries == self.entries(node):
                self.left.remove(node)
                return node

    def _matches(self, table: Table, scope: Sequence[int]) -> float:
        """How many choices of a table go with one of the scope, on average."""
        return table.costs.size / math.prod(self.sizes[node] for node in table.scope if node in scope)

    def _join(self, left: Table, right: Table) -> Table | None:
        """The choices of both that agree, as far as they are within the gap; None if there are too many."""
        shared = tuple(node for node in right.scope if node in left.scope)
        dims = [self.sizes[node] for node in shared]
        ours, theirs = (codes(_columns(table, shared), dims) for table in (left, right))
        order = np.argsort(theirs, kind="stable")
        theirs = theirs[order]
        first = np.searchsorted(theirs, ours)
        counts = np.searchsorted(theirs, ours, side="right") - first
        total = int(counts.sum())
        if total > TABLE_CHOICES:
            return None
        rows = np.repeat(np.arange(ours.size), counts)
        starts = np.cumsum(counts) - counts
        matches = order[np.arange(total) - np.repeat(starts - first, counts)]
        costs = left.costs[rows] + right.costs[matches]
        new = tuple(node for node in right.scope if node not in shared)
        floor = costs
        for node in new:
            floor = floor + self.alone[node][right.picks[right.scope.index(node), matches]]
        within = floor <= self.gap
        rows, matches = rows[within], matches[within]
        picks = np.concatenate([left.picks[:, rows], _columns(right, new)[:, matches]])
        return Table((*left.scope, *new), picks, costs[within])

    def _floor(self, joined: Table, node: int) -> FloatArray:
        """What each choice costs with all that is left between the nodes of its scope."""
        floor = joined.costs.copy()
        inside = {
            scope: table
            for other in joined.scope
            if other != node
            for scope, table in self.touching[other].items()
            if node not in scope and set(scope) <= set(joined.scope)
        }
        for other in joined.scope:
            if other != node:
                floor += self.alone[other][joined.picks[joined.scope.index(other)]]
        for scope, table in inside.items():
            floor += self._looked_up(table, _columns(joined, scope))
        return floor

    def _looked_up(self, table: Table, picks: IntArray) -> FloatArray:
        """What choices cost by a table; `inf` where it does not list them."""
        dims = [self.sizes[node] for node in table.scope]
        listed, wanted = codes(table.picks, dims), codes(picks, dims)
        order = np.argsort(listed)
        at = order[np.minimum(np.searchsorted(listed, wanted, sorter=order), order.size - 1)]
        return np.where(listed[at] == wanted, table.costs[at], math.inf)

    def _forget_others(self, joined: Table) -> None:
        """What no choice of a node's table takes is not taken at all."""
        for node, picks in zip(joined.scope, joined.picks, strict=True):
            taken = np.zeros(self.sizes[node], dtype=bool)
            taken[picks] = True
            self.alone[node] = np.where(taken, self.alone[node], math.inf)

    def _without(self, node: int, joined: Table) -> GivenFew:
        """Puts the best pick of the node for each choice of its neighbours in place of all tables that it was in."""
        others = tuple(sorted(set(joined.scope) - {node}))
        dims = [self.sizes[other] for other in others]
        code = codes(_columns(joined, others), dims)
        order = np.lexsort((joined.costs, code))
        code = code[order]
        firsts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
        best = joined.keep(order[firsts])
        for scope in list(self.touching[node]):
            for other in scope:
                del self.touching[other][scope]
        self._charge(Table(others, _columns(best, others), best.costs))
        for other in others:
            heapq.heappush(self.queue, (self.entries(other), other))
        return GivenFew(node, others, tuple(dims), code[firsts], _columns(best, (node,))[0])

    def _charge(self, table: Table) -> None:
        """Adds a table to what is left."""
        if not table.scope:
            self.offset += float(table.costs[0])
            self.gap -= float(table.costs[0])
        elif len(table.scope) == 1:
            (node,) = table.scope
            charged = np.full(self.sizes[node], math.inf)
            charged[table.picks[0]] = table.costs
            self.alone[node] = self.alone[node] + charged
        else:
            present = self.touching[table.scope[0]].get(table.scope)
            if present is not None:
                costs = table.costs + self._looked_up(present, table.picks)
                table = Table(table.scope, table.picks, costs).keep(costs <= self.gap)
            self.put(table)

    def reduction(self, steps: Iterable[GivenFew]) -> Reduction:
        nothing = Model((), {}, (), self.model.base, self.model.prices, self.model.limit, self.offset, self.model.grain)
        return Reduction(nothing, (), tuple(steps), len(self.sizes))


def _columns(table: Table, nodes: Iterable[int]) -> IntArray:
    """(nodes, choices), the picks of these nodes."""
    return table.picks[[table.scope.index(node) for node in nodes]]
