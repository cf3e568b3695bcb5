"""Local search for cheap assignments that fit.

The moves are exact: the best joint choice for a random tree of nodes, all others left alone (`trees.py`). They are made
for costs with a price on each byte in each row, and those prices are tuned until the limit just holds: they rise in the
rows that are above it, and fall slowly once none is. Whenever all rows fit, a copy of the assignment goes down the same
moves for the costs alone, within the limit, and is a candidate for the answer.

Memory as prices that are tuned until it just holds, instead of moves that it forbids, is what the best entries of the
ASPLOS 2025 contest did (there per node: "Soft Constraints, Strong Solutions", Staudt, Blacher et al.).
"""

from __future__ import annotations

import math

import numpy as np

from planner.problem import FloatArray, IntArray
from planner.solve import passes, trees
from planner.solve.flat import Flat, Graph

TREE_NODES = 30
"""The largest trees; sizes are drawn from one to this."""

LOOKS = 5.0
"""How often a step looks at each node, on average."""

TREE_WORK = 5.0
"""What a number that a tree looks at counts: they lie scattered, so it takes longer than one in a pass over all."""

PRESSURE = 3e-3
"""By how much a first rise of the prices makes the rows above the limit dearer, relative to all costs."""

RELIEF = 0.02
"""The part by which a first fall of the prices makes memory cheaper."""

COOLING, COLD = 0.97, 0.05
"""What rises and falls are multiplied by after a step that found nothing better, and when they start anew."""

POLISH_WITHIN = 0.01
"""A candidate this much dearer than the best, relatively, goes on until its moves end; a worse one does not."""


class Search:
    """The state of one search: an assignment that need not fit, and prices.

    Attributes:
        best: the best assignment found that fits, or None.
        best_cost: what it costs, less the model's offset.
    """

    def __init__(self, flat: Flat, limit: float, start: IntArray, prices: FloatArray, seed: int):
        self.flat = flat
        self.limit = limit
        self.graph, self.forbidden = _with_finite_entries(flat)
        self.random = np.random.default_rng(seed)
        self.tree = trees.tree(flat.graph, TREE_NODES)
        self.picks = start.copy()
        self.prices = prices
        self.swing = 1.0
        self.best: IntArray | None = None
        self.best_cost = math.inf
        spans = np.diff(flat.memory.spans)
        degrees = np.diff(flat.graph.arcs)
        self.look_work = int((np.diff(flat.graph.start) * (degrees + 2 * spans + 1)).sum())

    def run(self, work: float, picks: IntArray | None = None, prices: FloatArray | None = None) -> float:
        """Steps until so much work is done; returns how much was.

        Args:
            picks, prices: of another search or of a bound; taken over if, at those prices, that is the better start.
        """
        done = 0.0
        if picks is not None and prices is not None:
            done += self._consider(picks.copy(), prices)
        while done < work:
            done += self._step()
        return done

    def _consider(self, picks: IntArray, prices: FloatArray) -> float:
        work = self._improve(picks, self._priced(prices), math.inf)
        theirs, ours = (
            self._cost(each) + float(prices @ passes.live_bytes(self.flat.memory, each)) for each in (picks, self.picks)
        )
        if theirs < ours:
            self.picks, self.prices, self.swing = picks, prices, 1.0
        return work

    def _step(self) -> float:
        """Moves at the present prices, then other prices."""
        work = self._improve(self.picks, self._priced(self.prices), self.limit)
        over = np.maximum(0.0, passes.live_bytes(self.flat.memory, self.picks) - self.limit)
        if over.any():
            rise = PRESSURE * self.swing * abs(self._cost(self.picks))
            self.prices = self.prices + rise / float(over @ over) * over
            return work
        self.prices = self.prices * (1.0 - RELIEF * self.swing)
        return work + self._polish(self.picks.copy())

    def _polish(self, picks: IntArray) -> float:
        """Takes an assignment that fits down to where no move pays, and keeps it if it is the best."""
        work, cost, before = 0.0, self._cost(picks), math.inf
        while cost < before and cost <= (1 + POLISH_WITHIN) * self.best_cost:
            work += self._improve(picks, self.flat.costs, self.limit)
            cost, before = self._cost(picks), cost
        if cost < min(self.best_cost, self.forbidden):
            self.best, self.best_cost = picks, cost
        else:
            self.swing = self.swing * COOLING if self.swing > COLD else 1.0
        return work

    def _improve(self, picks: IntArray, costs: FloatArray, limit: float) -> float:
        live = passes.live_bytes(self.flat.memory, picks)
        work = trees.improve(
            self.graph,
            self.flat.memory,
            trees.peaks(live),
            max(limit, float(live.max(initial=0.0))),
            costs,
            picks,
            self.tree,
            int(LOOKS * self.look_work),
            self.random,
        )
        return TREE_WORK * work

    def _priced(self, prices: FloatArray) -> FloatArray:
        costs = self.flat.costs.copy()
        passes.add_price(self.flat.graph, self.flat.memory, prices, costs)
        return costs

    def _cost(self, picks: IntArray) -> float:
        return passes.cost(self.graph, self.flat.costs, picks)


def _with_finite_entries(flat: Flat) -> tuple[Graph, float]:
    """The graph with something finite, more than all costs together, where a pair is forbidden; and that something.

    So a search can begin with pairs that are forbidden, and leaves them as soon as it can.
    """
    entries = flat.graph.entries
    finite = entries[np.isfinite(entries)]
    forbidden = 1.0 + np.abs(flat.costs).sum() + np.abs(finite).max(initial=0.0) * flat.graph.other.size
    return flat.graph._replace(entries=np.where(np.isfinite(entries), entries, forbidden)), float(forbidden)
