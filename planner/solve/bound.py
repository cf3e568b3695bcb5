"""A lower bound by message passing on the dual of the local-polytope relaxation, with prices for memory.

A *reparametrisation* moves cost between a node and its pairs without changing the cost of any assignment: message
a_e(s) is taken from pair e's row s and given to the node. The sum of each part's own least is a bound on the whole, and
the moves below only raise it (sequential tree-reweighted message passing: Kolmogorov, PAMI 2006; in the form of SRMP:
Kolmogorov, PAMI 2015). On a tree it reaches the optimum in one pass each way.

Memory enters as a Lagrangian: a byte in row r costs `prices[r] >= 0`, and the bound pays back prices . (limit - base).
`prices.py` moves them. The inner loops are in `passes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.problem import FloatArray, IntArray
from planner.solve import passes
from planner.solve.clock import Clock
from planner.solve.flat import Flat
from planner.solve.model import Model
from planner.solve.prices import PriceSteps

PASS_MARGIN = 1.5
"""A pass starts only if this many times the last one's duration is left."""

STALL_PASSES = 32
"""Before so many passes nothing is said of whether the bound has stalled."""

STALL = 0.02
"""The bound has stalled when the last half of all passes closed less than this part of the gap."""


@dataclass(frozen=True, eq=False)
class _Place:
    """A reparametrisation and prices, to return to."""

    prices: FloatArray
    unary: FloatArray
    messages: FloatArray


class Dual:
    """A model's reparametrisation and memory prices; `ascend` improves them in place.

    Every row of every matrix needs a finite entry, as presolve leaves it.

    Attributes:
        lower_bound: the best bound so far on the cost of any assignment that fits.
        rise: what it was after each pass.
        picks: the assignment that the last pass decodes to, or None before the first.
        prices: per row, the cost per byte.
    """

    def __init__(self, model: Model, flat: Flat):
        self.model = model
        self.flat = flat
        self.prices = model.prices
        self.unary = flat.costs.copy()
        passes.add_price(flat.graph, flat.memory, self.prices, self.unary)
        self.messages = np.zeros(flat.graph.held[-1])
        self.lower_bound = -np.inf
        self.picks: IntArray | None = None
        self.steps = PriceSteps(self.prices)
        self.bound = -np.inf
        self.rise: list[float] = []
        self._possible = np.ones(self.unary.size, dtype=bool)
        self._totals = np.zeros(self.unary.size)
        self._elsewhere = np.zeros(len(model.costs))
        self._pass_seconds = 0.0
        self._best = self._place()

    @property
    def possible(self) -> list[NDArray[np.bool_]]:
        """Per node, which strategies may be part of an assignment that costs at most the cutoff."""
        return np.split(self._possible, self.flat.graph.start[1:-1])

    @property
    def left(self) -> int:
        """How many strategies may."""
        return int(self._possible.sum())

    def ascend(self, count: int, cutoff: float, clock: Clock) -> float:
        """Some passes forward and back, fewer if the time is up before.

        Args:
            count: how many; each goes over all pairs twice.
            cutoff: the cost of an assignment that is known; strategies only in worse ones are marked impossible.

        Returns:
            How much work was done, which the clock has been told.
        """
        done = 0.0
        for _ in range(count):
            if clock.left_seconds <= PASS_MARGIN * self._pass_seconds:
                break
            begun = clock.seconds
            if self.picks is not None and self.model.rows:
                self._reprice(self.picks)
            self._sweep(forward=True)
            self.bound = self._sweep(forward=False)
            self.lower_bound = max(self.lower_bound, self.bound)
            if self.bound == np.inf:
                break
            self._mark(cutoff)
            self.rise.append(self.lower_bound)
            if self.steps.heard(self.bound, cutoff - self.bound):
                self._best = self._place()
            self.picks = passes.decode(self.flat.graph, self.unary, self.messages)
            clock.work(2 * self.flat.work)
            done += 2 * self.flat.work
            self._pass_seconds = clock.seconds - begun
        return done

    def stalled(self, cutoff: float) -> bool:
        """Whether the last half of the passes did little to close the gap."""
        if len(self.rise) < STALL_PASSES:
            return False
        # The gap alone says little while only bad assignments are known.
        worth = min(cutoff - self.lower_bound, self.lower_bound - self.rise[0])
        return self.lower_bound - self.rise[len(self.rise) // 2] <= STALL * worth

    def _sweep(self, *, forward: bool) -> float:
        held = passes.sweep(self.flat.graph, self.unary, self.messages, forward, self._totals, self._elsewhere)
        return self._constant() + held

    def _mark(self, cutoff: float) -> None:
        """What a node held when it held most, with the least of everything else, is a bound for each strategy."""
        sizes = np.diff(self.flat.graph.start)
        self._possible &= np.repeat(self._constant() + self._elsewhere, sizes) + self._totals <= cutoff

    def _constant(self) -> float:
        room = self.model.limit - self.model.base
        return self.model.offset - float(self.prices @ room) if self.model.rows else self.model.offset

    def _reprice(self, picks: IntArray) -> None:
        if self.steps.give_up():
            self._return_to_best()
            return
        before = self.prices
        live = passes.live_bytes(self.flat.memory, picks)
        self.prices = self.steps.propose(live - self.model.limit, self.bound)
        passes.add_price(self.flat.graph, self.flat.memory, self.prices - before, self.unary)

    def _place(self) -> _Place:
        return _Place(self.prices, self.unary.copy(), self.messages.copy())

    def _return_to_best(self) -> None:
        self.prices = self._best.prices
        self.unary[:], self.messages[:] = self._best.unary, self._best.messages

    def reparametrised(self, cutoff: float) -> Model:
        """The same model with costs moved so that its parts show what is known of the whole.

        Pairs of strategies that are only in assignments worse than the cutoff are forbidden.
        """
        self._return_to_best()
        graph = self.flat.graph
        unary = self.flat.split(self.unary)
        least = [float(held.min()) for held in unary]
        slack = cutoff - self._constant() - sum(least)
        pairs = {}
        for arc, j in enumerate(graph.other):
            twin = graph.twin[arc]
            i = int(graph.other[twin])
            if i > j:
                continue
            own = self.messages[graph.held[arc] : graph.held[arc + 1]]
            others = self.messages[graph.held[twin] : graph.held[twin + 1]]
            cost = self.model.pairs[i, int(j)] - own[:, None] - others
            at_least = (unary[i] - least[i])[:, None] + (unary[j] - least[j]) + cost
            pairs[i, int(j)] = np.where(at_least <= slack, cost, np.inf)
        priced = np.zeros(self.unary.size)
        passes.add_price(graph, self.flat.memory, self.prices, priced)
        costs = tuple(self.flat.split(self.unary - priced))
        return replace(self.model, costs=costs, pairs=pairs, prices=self.prices)
